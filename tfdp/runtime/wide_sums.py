"""Float32 sums over many examples, whose rounding does not grow with the order of addition.

A float32 that holds the sum so far rounds each number that is added to it. One record more, and
those after it are rounded otherwise: with 65,536 examples one moved such a sum by 65 of its own
norm. In float64 that is below 10⁻⁶ of it, so that only the last rounding, to float32, counts.
"""

import tensorflow as tf

from tfdp.runtime.xla import is_compiling, platform

# So many numbers are cast at once: of large gradients no copy in float64 is made.
_AT_ONCE = 1 << 20
# From so many rows on, those of a product that XLA computes are added up in parts.
_MANY_ROWS = 256


def wide(x):
    """A float32 tensor in float64, in which it is to be added up; TPUs know no such sums."""
    return x if platform() == "TPU" else tf.cast(x, tf.float64)


def sums_of_segments(values, segments, count):
    """As `tf.math.unsorted_segment_sum`, of float32."""
    rows, all_of_them = values.shape[0], tf.get_static_value(count)
    if is_compiling() or None in (rows, all_of_them) or 2 * rows > all_of_them:
        return tf.cast(tf.math.unsorted_segment_sum(wide(values), segments, count), values.dtype)
    # Few rows of a large table: equal ones are added up in the last of them, the others are then
    # zeros, so that no float64 copy of the table is made.
    last = tf.math.unsorted_segment_max(tf.range(rows), segments, count)
    places = tf.where(segments < 0, -1, tf.gather(last, tf.maximum(segments, 0)))
    sums = tf.math.unsorted_segment_sum(wide(values), places, rows)
    return tf.math.unsorted_segment_sum(tf.cast(sums, values.dtype), segments, count)


def dense(tensor):
    """A tensor, or the rows of tf.IndexedSlices added up in one."""
    if not isinstance(tensor, tf.IndexedSlices):
        return tf.convert_to_tensor(tensor)
    return sums_of_segments(tensor.values, tensor.indices, tensor.dense_shape[0])


def weighted_sum(rows, weights):
    """Σ_i weights[i]·rows[i], of (n, d) and (n,) float32 that are no part of a compiled step."""
    width = rows.shape[1]
    size = max(1, _AT_ONCE // max(width, 1))
    if rows.shape[0] is not None and rows.shape[0] <= size:
        return _weighted(rows, weights, rows.dtype)
    count = tf.shape(rows)[0]

    def part(start, total):
        end = start + size
        return end, total + _weighted(rows[start:end], weights[start:end], total.dtype)

    _, total = tf.while_loop(
        lambda start, _: start < count, part, (0, wide(tf.zeros([width], rows.dtype))),
        parallel_iterations=1,
    )  # fmt: skip
    return tf.cast(total, rows.dtype)


def _weighted(rows, weights, dtype):
    return tf.cast(tf.linalg.matvec(wide(rows), wide(weights), transpose_a=True), dtype)


def sum_of_rows(x):
    """(n, d) to (d,), of products that XLA has not computed yet."""
    (n, d), dtype = x.shape, x.dtype
    x = wide(x)
    # XLA for CPUs adds up 32 terms where it makes them; of more it writes all to memory first.
    if platform() == "CPU" and n is not None and n > _MANY_ROWS:
        blocks = -(-n // 32)
        x = tf.pad(x, [[0, blocks * 32 - n], [0, 0]])
        x = tf.reduce_sum(tf.reshape(x, [blocks, 32, d]), axis=1)
    return tf.cast(tf.reduce_sum(x, axis=0), dtype)
