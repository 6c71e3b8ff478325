"""Sorting, searching and slicing as each place where a step runs does them fast.

In XLA, `tf.sort` carries the places of the values along, and `tf.searchsorted` compares each value
with all sorted ones.
"""

import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops

from tfdp.runtime.xla import is_compiling, platform

# A TPU compares faster than it gathers: up to so many pairs, all of them at once.
_ALL_PAIRS_ON_TPU = 1 << 30
# Each turn of a loop calls three kernels. Without a loop, each turn's kernel computes the turns
# before it again: shorter for up to so many values times turns squared.
_UNROLLED = 1 << 20


def sort(values):
    """(n,) integers, ascending."""
    return gen_xla_ops.xla_sort(input=values) if is_compiling() else tf.sort(values)


def sort_with_order(values, bound):
    """(n,) int64 in [0, bound), ascending, and where each stood.

    Args:
        values: (n,) int64, n known.
        bound: a Python integer.

    Returns:
        (n,) int64; (n,) int64 places, ascending where values are equal.
    """
    bits = max(values.shape[0] - 1, 1).bit_length()
    if bound << bits > tf.int64.max:
        order = tf.argsort(values, stable=True)
        return tf.gather(values, order), tf.cast(order, tf.int64)
    place = tf.range(values.shape[0], dtype=tf.int64)
    both = sort(tf.bitwise.left_shift(values, tf.constant(bits, tf.int64)) | place)
    return tf.bitwise.right_shift(both, tf.constant(bits, tf.int64)), both & (2**bits - 1)


def search(ordered, values, side="left"):
    """`tf.searchsorted` of vectors, as int64.

    Args:
        ordered: (n,) ascending.
        values: (m,).
        side: "left" for the number of those smaller, "right" of those not larger.
    """
    if not _one_by_one(ordered, values):
        return tf.searchsorted(ordered, values, side=side, out_type=tf.int64)
    count = ordered.shape[0]
    before = tf.less if side == "left" else tf.less_equal
    turns = count.bit_length()

    def halve(step, place):
        further = place + step
        passed = before(tf.gather(ordered, tf.minimum(further, count) - 1), values)
        return tf.where((further <= count) & passed, further, place)

    def turn(number, place):
        step = tf.bitwise.left_shift(tf.constant(1, tf.int64), tf.cast(turns - number, tf.int64))
        return number + 1, halve(step, place)

    place = tf.zeros_like(values, tf.int64)
    if values.shape[0] * turns**2 <= _UNROLLED:
        for bit in reversed(range(turns)):
            place = halve(2**bit, place)
        return place
    _, place = tf.while_loop(
        lambda number, _: number <= turns, turn, (1, place), maximum_iterations=turns
    )
    return place


def part(values, start, size):
    """(size,) values from a place on that is known when the step runs.

    XLA compiles `tf.slice` of such a place for minutes: it looks for what the place may be.

    Args:
        values: (n,).
        start: scalar integer in [0, n - size].
        size: a Python integer.
    """
    if is_compiling():
        return gen_xla_ops.xla_dynamic_slice(values, [start], [size])
    return tf.slice(values, [start], [size])


def _one_by_one(ordered, values):
    if not is_compiling() or None in (ordered.shape[0], values.shape[0]):
        return False
    return platform() != "TPU" or ordered.shape[0] * values.shape[0] > _ALL_PAIRS_ON_TPU
