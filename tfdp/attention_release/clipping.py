"""Clipping the rows or columns of an input, so that the sensitivity holds by construction."""

import tensorflow as tf

# Keeps the rounding of float64 from carrying a norm past the bound.
_INSIDE = 1.0 - 1e-12


def clip_norms(x, max_norm, axis):
    """Projects vectors along an axis onto the l2 ball of radius max_norm.

    Formal guarantees: every vector of the result is finite and has norm at most `max_norm`.
    Between finite inputs the distance of two vectors does not grow (a projection onto a convex
    set), so neighbours at distance beta stay at distance at most beta.

    | vector | result |
    |---|---|
    | zero | zero |
    | finite, of any size | scaled by min(1, max_norm / norm) |
    | holds infinity or NaN | zero |

    Args:
        x: float64 tensor.
        max_norm: positive float.
        axis: -1 for rows, -2 for columns; the vectors run along it.

    Returns:
        A float64 tensor of the same shape.
    """
    size = tf.reduce_max(tf.abs(x), axis=axis, keepdims=True)
    finite = tf.reduce_all(tf.math.is_finite(x), axis=axis, keepdims=True)
    usable = finite & (size > 0)
    size = tf.where(usable, size, tf.ones_like(size))
    unit = tf.where(usable, x, tf.zeros_like(x)) / size  # squares neither over- nor underflow
    norm = tf.sqrt(tf.reduce_sum(tf.square(unit), axis=axis, keepdims=True))
    limit = tf.constant(max_norm * _INSIDE, tf.float64)
    # size * norm may overflow to infinity, which is not below the limit.
    scale = tf.where(size * norm <= limit, size, limit / tf.maximum(norm, 1.0))
    return unit * scale
