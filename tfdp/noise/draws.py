"""Random draws whose number is only known inside the step, all in float64 and int64."""

import tensorflow as tf

_PHILOX = 1  # tf.random.Algorithm.PHILOX
_RANGE = 2**63 - 1


def random_bits(source, count):
    """(count,) independent uniform uint64 values.

    Args:
        source: a `tfdp.noise.NoiseSource`; 192 fresh bits of it key these draws.
        count: scalar integer tensor.
    """
    words = source.bits((3,))
    return tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=tf.reshape(tf.cast(count, tf.int64), [1]),
        key=words[:1],
        counter=words[1:],
        alg=_PHILOX,
        dtype=tf.uint64,
    )


def standard_normal(source, count):
    """(count,) float64 standard normal values with true tails."""
    return source.normal_any(tf.cast(count, tf.int32))


def standard_exponential(source, count):
    """(count,) float64 exponential values of mean 1, small ones at full precision."""
    bits = tf.bitwise.right_shift(random_bits(source, count), tf.constant(1, tf.uint64))
    uniform = (tf.cast(tf.cast(bits, tf.int64), tf.float64) + 0.5) * 2.0**-63
    return -tf.math.log1p(-tf.minimum(uniform, 1.0 - 2.0**-53))


def binomial(source, count, probability):
    """A Binomial(count, probability) number, int64.

    Args:
        source: a `tfdp.noise.NoiseSource`.
        count: scalar int64 tensor, at most 2^53.
        probability: scalar float64 tensor in [0, 1].
    """
    return tf.random.stateless_binomial(
        [],
        seed=tf.bitcast(source.bits((2,)), tf.int64),
        counts=tf.cast(count, tf.float64),
        probs=probability,
        output_dtype=tf.int64,
    )


def distinct_below(source, count, bound):
    """`count` distinct integers, uniform without replacement in [0, bound), sorted.

    Memory and time are those of `count`, whatever the bound.

    Args:
        source: a `tfdp.noise.NoiseSource`.
        count: scalar int64 tensor, between 0 and `bound`.
        bound: scalar int64 tensor.

    Returns:
        (count,) int64.
    """
    return tf.cond(
        2 * count > bound,
        lambda: _first_of_permutation(source, count, bound),
        lambda: _first_distinct(source, count, bound),
    )


def distinct_outside(source, count, excluded, bound):
    """`count` distinct integers, uniform without replacement in [0, bound), none excluded.

    Args:
        source: a `tfdp.noise.NoiseSource`.
        count: scalar int64 tensor.
        excluded: (m,) int64, sorted and distinct.
        bound: integer; m + count must not exceed it.

    Returns:
        (count,) int64, sorted.
    """
    num_excluded = tf.size(excluded, out_type=tf.int64)
    rank = distinct_below(source, count, bound - num_excluded)
    # The r-th integer that is not excluded is r plus the number of excluded ones before it.
    before = excluded - tf.range(num_excluded)
    return rank + tf.searchsorted(before, rank, side="right", out_type=tf.int64)


def _first_distinct(source, count, bound):
    # The first `count` distinct values of an independent uniform sequence are a uniform subset.
    # A round never draws more than are missing, so that none is ever thrown away by rank.
    def missing(found):
        return tf.size(found, out_type=tf.int64) < count

    def another_round(found):
        more = _below(source, count - tf.size(found, out_type=tf.int64), bound)
        return [tf.unique(tf.concat([found, more], 0)).y]

    (found,) = tf.while_loop(
        missing,
        another_round,
        [tf.zeros([0], tf.int64)],
        shape_invariants=[tf.TensorShape([None])],
        parallel_iterations=1,
    )
    return tf.sort(found)


def _below(source, count, bound):
    """At most `count` independent integers, exactly uniform in [0, bound)."""
    values, exact = below(random_bits(source, count), bound)
    return tf.boolean_mask(values, exact)


def below(bits, bound):
    """Integers in [0, bound) from uniform uint64 bits, and which of them may be used.

    Those that may are exactly uniform: without whole multiples of the bound, the remainder would
    favour small integers.
    """
    values = tf.cast(tf.bitwise.right_shift(bits, tf.constant(1, tf.uint64)), tf.int64)
    return values % bound, values < (_RANGE // bound) * bound


def _first_of_permutation(source, count, bound):
    keys = tf.bitcast(random_bits(source, bound), tf.int64)
    return tf.sort(tf.cast(tf.argsort(keys)[:count], tf.int64))
