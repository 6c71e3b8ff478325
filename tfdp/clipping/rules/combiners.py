"""Looked-up rows, weighted and combined: the values of one feature (MATH.md section 2)."""

import tensorflow as tf

from tfdp.clipping.sums.contributions import Rows, flatten_time


def coefficients(weights, combiner):
    """The factor of each looked-up row in the output.

    Args:
        weights: (..., T) float32, 0 for padding.
        combiner: with w the weights, "sum" gives w, "mean" w / Σ w, "sqrtn" w / √(Σ w²); None,
            which keeps the rows apart, gives w.

    Returns:
        The shape of the weights; 0 where the divisor is 0.
    """
    if combiner in (None, "sum"):
        return weights
    size = weights if combiner == "mean" else tf.square(weights)
    total = tf.reduce_sum(size, axis=-1, keepdims=True)
    return tf.math.divide_no_nan(weights, total if combiner == "mean" else tf.sqrt(total))


def weighted_rows(ids, factors, s):
    """The contribution to its table of a look-up whose output is Σ_t factors_t·E[ids_t].

    Args:
        ids: (B, ...) integers, negative for padding.
        factors: float32, of the same shape.
        s: gradient at the output, (*ids.shape, d), or without the ids' last axis if the look-up
            sums over it.

    Returns:
        `Rows`, with factors·s in the row of each id.
    """
    s = tf.cast(s, tf.float32)
    if len(s.shape) == len(ids.shape):
        s = s[..., tf.newaxis, :]
    values = factors[..., tf.newaxis] * s
    values = flatten_time(values, 1)
    batch = tf.shape(ids)[0] if ids.shape[0] is None else ids.shape[0]
    positions = -1 if values.shape[1] is None else values.shape[1]
    return Rows(tf.reshape(ids, [batch, positions]), values)
