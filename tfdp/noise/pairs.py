"""Values two by two: a draw of noise makes two at once."""

import tensorflow as tf

from tfdp.runtime.xla import is_compiling, platform


def by_pairs(draw, values, dtype, public, *arguments):
    """What `draw` makes of values (..., n), each pair of which it gets and returns as one number.

    A loop that makes both values at once then writes one number in each turn. Two float32 are one
    of 64 bits, in the same memory; two float64 are a complex one.

    Args:
        draw: function of pairs (..., ⌈n/2⌉), `public` and `arguments`, compiled by itself; it takes
            them by `apart` and returns them by `together`.
        dtype: of the result, float32 or float64.
        public: of a grid.
    """
    size = values.shape[-1]
    if size % 2:
        values = tf.pad(values, [[0, 0]] * (values.shape.rank - 1) + [[0, 1]])
    if values.dtype == dtype == tf.float32:
        pairs = tf.bitcast(tf.reshape(values, [*values.shape[:-1], -1, 2]), tf.uint64)
        pairs = _drawn(draw, pairs, public, *arguments)
        found = tf.reshape(tf.bitcast(pairs, tf.float32), values.shape)
    else:
        pairs = _drawn(draw, tf.complex(*apart(tf.cast(values, tf.float64))), public, *arguments)
        found = tf.cast(together(*apart(pairs), values), dtype)
    return found[..., :size]


def _drawn(draw, pairs, public, *arguments):
    if not is_compiling() or platform() != "CPU":
        return draw(pairs, public, *arguments)
    # In a step that XLA compiles as a whole it would draw again wherever the noise is used, and
    # each value of a pair by itself. It takes a branch as it is; the other one is for no σ.
    nan = 0x7FC000007FC00000 if pairs.dtype == tf.uint64 else complex("nan+nanj")
    return tf.cond(
        public[0] < 0.0,
        lambda: tf.fill(pairs.shape, tf.constant(nan, pairs.dtype)),
        lambda: draw(pairs, public, *arguments),
    )


def apart(values):
    """The first and the second value of each pair.

    Args:
        values: (..., n), an odd n is filled up; or pairs of `by_pairs`.
    """
    if values.dtype == tf.complex128:
        return [tf.math.real(values), tf.math.imag(values)]
    if values.dtype == tf.uint64:
        upper = tf.bitwise.right_shift(values, _uint64(32))
        return [tf.bitcast(tf.cast(half, tf.uint32), tf.float32) for half in (values, upper)]
    if values.shape[-1] is None or values.shape[-1] % 2:
        beside = [[0, 0]] * (values.shape.rank - 1)
        values = tf.pad(values, [*beside, [0, tf.shape(values)[-1] % 2]])
    return [values[..., ::2], values[..., 1::2]]


def together(first, second, like):
    """One tensor of both, of the shape of `like`; pairs of `by_pairs` if `like` is those."""
    if like.dtype == tf.complex128:
        return tf.complex(*(tf.cast(part, tf.float64) for part in (first, second)))
    if like.dtype == tf.uint64:
        first, second = (tf.cast(tf.bitcast(v, tf.uint32), tf.uint64) for v in (first, second))
        return tf.bitwise.bitwise_or(first, tf.bitwise.left_shift(second, _uint64(32)))
    size = tf.shape(like)
    both = tf.reshape(tf.stack([first, second], -1), tf.concat([size[:-1], [-1]], 0))
    return tf.ensure_shape(both[..., : size[-1]], like.shape)


def _uint64(value):
    return tf.constant(value, tf.uint64)
