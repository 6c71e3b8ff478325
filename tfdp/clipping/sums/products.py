"""Sums of squares and products of float32 factors, with bounds of their rounding."""

import math

import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops

from tfdp.runtime.xla import is_compiling, platform

# Rounding bounds (MATH.md section 1, "Cancellation"), all raising a squared norm to what float32
# can have hidden. Checked against adversarial inputs in tests/clipping.
#
# A sum of squares has positive terms only: 32 of them in float32, the rest in float64. They lose
# 32·2⁻²⁴ of it at most, and a root on the way, good to two units in the last place, 4·2⁻²³.
POSITIVE = 2.5e-6
# A squared norm found through grams is a difference of numbers as large as
# U = (sum_t |left_t| |right_t|)^2; dot products of length k are off by this much, times U.
_GRAM, _GRAM_PER_TERM = 6e-7, 2e-8
# The clipped sum adds up such numbers, too, in float32, however exactly their norm is known. Raised
# by this much of U, a norm leaves at most 1,300 C of any of them, whose rounding is below C/10⁴.
SUMMED = 6e-7
# A part of the squared norm that may be added to it; sums of fewer terms are no longer fast.
_RAISED, _SHORTEST = 1.8e-3, 256
# Examples with at least so many numbers are multiplied by XLA in parts of so many of them. On a CPU
# the products of a part stay in its cache; up to these lengths of rows and examples they do so all
# together, too, and take 0.6 to 0.9 of the time. On a TPU, 128 examples are what one tile of a
# tensor whose last axis in memory is the batch holds, and a part's copy into another layout is
# small.
_APART_UNDER_XLA = 1 << 16
_TOGETHER_ON_CPU = 1 << 12, 3 << 16
_TOGETHER_UNDER_XLA = {"CPU": 1, "TPU": 128}
# So many numbers are squared by themselves: one pass is no shorter then, and waits for its threads.
_FEW = 1 << 17
# So many sums side by side in vector instructions.
_LANES = 4
# Squares below this are flushed to zero.
UNDERFLOW = 1.2e-38


def sum_of_squares(x):
    """(B, ...) float32 to (B,) float64 sums of squares, off by at most `POSITIVE`·value."""
    count = math.prod(x.shape[1:])
    few = x.shape.is_fully_defined() and x.shape.num_elements() <= _FEW
    # XLA for CPUs makes no vector instructions of a sum along the last axis, but a product of many.
    lanes = is_compiling() and platform() == "CPU" and few and count % _LANES == 0
    lanes = _LANES if lanes else 1
    count //= lanes
    width = max(w for w in range(1, 33) if count % w == 0)
    rows = tf.reshape(x, [-1, width])
    if lanes > 1:
        rows = tf.reshape(x, [-1, width, lanes])
        partial = tf.cast(tf.reduce_sum(rows * rows, axis=1), tf.float64)
    elif width == 1:
        partial = tf.square(tf.cast(rows[:, 0], tf.float64))
    elif is_compiling() or few:
        partial = tf.cast(tf.linalg.matvec(rows * rows, tf.ones([width], x.dtype)), tf.float64)
    else:  # one pass over x, which needs no memory for its squares
        norms = tf.math.reduce_euclidean_norm(rows, axis=1)
        partial = tf.square(tf.cast(norms, tf.float64))
    return tf.reduce_sum(tf.reshape(partial, [-1, count // width * lanes]), axis=1)


def sum_of_squares_of_rows(x):
    """(B, T, d) to (B, T) float64."""
    return tf.reduce_sum(tf.square(tf.cast(x, tf.float64)), axis=2)


def product_of_present(x, matrix):
    """x·matrix of (n, k) and (k, m); rows of zeros that stand last, as padding does, take no time.

    Only for gradients of single examples: a row of zeros is one of no example, or adds nothing.
    """
    if is_compiling():
        return x @ matrix
    count = tf.shape(x)[0]
    is_present = tf.reduce_any(x != 0.0, axis=1)
    last = tf.reduce_max(tf.where(is_present, tf.range(1, count + 1), 0))
    return tf.ensure_shape(
        tf.pad(x[:last] @ matrix, [[0, count - last], [0, 0]]), [x.shape[0], matrix.shape[1]]
    )


def lengths_of_products(left, right):
    """How many terms of a gram's dot products may be added up in float32, for both factors.

    Few enough that `gram_rounding` raises the norm of T gradients in different directions by 0.1%
    at most: as a part of the squared norm, the bound is then T times as large as `_GRAM` says.
    Under XLA all of them: parts would be copied into other layouts.

    Args:
        left: (B, T, p).
        right: (B, T, r).
    """
    p, r = left.shape[2], right.shape[2]
    if is_compiling():
        return p, r
    terms = (_RAISED / (left.shape[1] or 64) - _GRAM) / _GRAM_PER_TERM
    short = min(p, r, terms / 2)
    return tuple(min(n, max(int(terms - short), _SHORTEST)) for n in (p, r))


def gram(x, ids=None, length=None):
    """x·xᵀ for each example of (B, T, p), (B, T, T); with ids, x[b, t, ids[b, t']], too.

    With a length, so many terms are added up in float32, and their sums in float64.
    """
    if is_compiling() and x.shape.is_fully_defined():
        together = _TOGETHER_UNDER_XLA.get(platform(), x.shape[0])
        if x.shape[0] > together and _is_apart(x):
            return _gram_in_parts(x, ids, together)
    product = _product(x, length)
    return product if ids is None else (product, _at_ids(x, ids))


def _is_apart(x):
    size = math.prod(x.shape[1:])
    row, example = _TOGETHER_ON_CPU
    if platform() == "CPU" and x.shape[2] <= row and size <= example:
        return False
    return size >= _APART_UNDER_XLA


def _product(x, length):
    if length is None or length >= x.shape[2]:
        return tf.matmul(x, x, transpose_b=True)
    total = tf.zeros([], tf.float64)
    for start in range(0, x.shape[2], length):
        with tf.control_dependencies([total]):  # one copy of a part at a time
            part = x[:, :, start : start + length]
        total += tf.cast(tf.matmul(part, part, transpose_b=True), tf.float64)
    return tf.cast(total, x.dtype)


def _gram_in_parts(x, ids, size):
    """`gram` of `size` examples after another."""
    whole = x.shape[0] // size

    def part(i):
        rows = tf.slice(x, [i * size, 0, 0], [size, *x.shape[1:]])
        if platform() == "TPU":
            # Or XLA would copy all of x into the layout of the product, ahead of the loop.
            (rows,) = gen_xla_ops.xla_optimization_barrier([rows])
        if ids is None:
            return [gram(rows)]
        return gram(rows, tf.slice(ids, [i * size, 0], [size, ids.shape[1]]))

    ends = [[x.shape[1], y.shape[1]] for y in (x, ids) if y is not None]
    found = _one_by_one(whole, part, [[size, *end] for end in ends], x.dtype)
    found = [tf.reshape(f, [whole * size, *end]) for f, end in zip(found, ends, strict=True)]
    if whole * size < x.shape[0]:
        rest = gram(x[whole * size :], None if ids is None else ids[whole * size :])
        rest = [rest] if ids is None else rest
        found = [tf.concat([f, r], 0) for f, r in zip(found, rest, strict=True)]
    return found[0] if ids is None else found


def _at_ids(z, ids):
    """z[b, t', ids[b, t]] as (B, T', T)."""
    if not is_compiling():
        batch, positions, count = tf.shape(z)[0], tf.shape(z)[1], z.shape[2]
        starts = tf.range(tf.cast(batch * positions, tf.int64), dtype=tf.int64) * count
        starts = tf.reshape(starts, [batch, positions, 1])
        return tf.gather(tf.reshape(z, [-1]), starts + tf.cast(ids, tf.int64)[:, tf.newaxis])
    # XLA would make the flat view by a copy into another layout.
    if platform() != "TPU":
        return tf.gather(z, ids, axis=2, batch_dims=1)
    # XLA for TPUs copies what it gathers from, padded to twice its size; what it multiplies, not.
    chosen = tf.equal(ids[..., tf.newaxis], tf.range(z.shape[2], dtype=ids.dtype))
    return tf.matmul(z, tf.cast(chosen, z.dtype), transpose_b=True)


def gram_rounding(left_gram, right_gram, sizes, lengths, more=0.0):
    """(B,) bound of what grams, and the float32 sum, can hide of a squared norm.

    Args:
        left_gram, right_gram: (B, T, T).
        sizes: lengths of the dot products in them.
        lengths: how many of their terms were added up in float32.
        more: (B,) norms of further terms that were added to the gradient.
    """
    left = tf.sqrt(tf.cast(tf.linalg.diag_part(left_gram), tf.float64))
    right = tf.sqrt(tf.cast(tf.linalg.diag_part(right_gram), tf.float64))
    magnitude = tf.reduce_sum(left * right, axis=1) + more
    p, r = sizes
    underflow = (
        p * tf.square(tf.reduce_sum(right, axis=1)) + r * tf.square(tf.reduce_sum(left, axis=1))
    ) * UNDERFLOW + tf.cast(tf.size(left_gram[0]), tf.float64) * UNDERFLOW
    is_exact = left_gram.dtype == tf.float64
    part = SUMMED if is_exact else _GRAM + _GRAM_PER_TERM * sum(lengths)
    return part * tf.square(magnitude) + underflow


def affords_float64(left, right):
    """Whether grams are so small that float64 costs nothing, and raises norms by less."""
    positions = left.shape[1]
    return positions is not None and positions**2 * (left.shape[2] + right.shape[2]) <= 1 << 16


def squared_norms_one_by_one(left, right, rows=None):
    """Squared norms from the examples' own matrices, held for one example at a time.

    Args:
        left: (B, T, p).
        right: (B, T, r).
        rows: optionally (ids (B, T'), values (B, T', r)), merged rows to add to the matrix.

    Returns:
        (B,) squared norms and (B,) bounds of their rounding error.
    """
    p, r = left.shape[2], right.shape[2]
    batch = tf.shape(left)[0] if left.shape[0] is None else left.shape[0]
    # The smaller side first: libraries multiply (r, T)·(T, p) with r < p up to twice as fast.
    small, large = (right, left) if r < p else (left, right)

    def one(i):
        matrix = tf.matmul(small[i], large[i], transpose_a=True)
        norm = gross = sum_of_squares(matrix[tf.newaxis])[0]
        if rows is not None:
            ids, values = rows[0][i], tf.cast(rows[1][i], tf.float64)
            met = tf.transpose(tf.gather(matrix, ids, axis=1)) if r < p else tf.gather(matrix, ids)
            met = tf.cast(met, tf.float64)
            norm += tf.reduce_sum(values * (2.0 * met + values))
            gross += tf.reduce_sum(tf.abs(values) * (2.0 * tf.abs(met) + tf.abs(values)))
        # ‖|left|^T·|right|‖ is at most the sum of the norms of its T products.
        lengths = [tf.sqrt(sum_of_squares_of_rows(t[i][tf.newaxis])[0]) for t in (small, large)]
        return norm, gross, tf.reduce_sum(lengths[0] * lengths[1])

    found = _one_by_one(batch, one, [[]] * 3, tf.float64)
    norm, gross, magnitude = (tf.ensure_shape(v, left.shape[:1]) for v in found)
    # |computed matrix - true matrix| in norm, and what it does to a square.
    error = (_GRAM + _GRAM_PER_TERM * (left.shape[1] or 64)) * magnitude
    error += tf.cast(tf.shape(left)[1], tf.float64) * math.sqrt(p * r) * UNDERFLOW
    extra = 2.0 * tf.sqrt(tf.maximum(norm, 0.0)) * error + tf.square(error)
    # `gross` is what was summed before rows and matrix could cancel.
    return norm, extra + SUMMED * tf.square(magnitude) + gross * POSITIVE + p * r * UNDERFLOW


def _one_by_one(number, one, shapes, dtype):
    """Stacks what `one(i)` returns for i < number, a list of tensors of these shapes."""

    def step(i, *arrays):
        return i + 1, *(a.write(i, v) for a, v in zip(arrays, one(i), strict=True))

    arrays = [tf.TensorArray(dtype, number, element_shape=shape) for shape in shapes]
    _, *arrays = tf.while_loop(
        lambda i, *_: i < number,
        step,
        (0, *arrays),
        parallel_iterations=1,
        maximum_iterations=number,
    )
    return [a.stack() for a in arrays]
