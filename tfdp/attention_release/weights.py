"""From logits to attention weights, without overflow: D^-1 f(logits) under a mask."""

import math

import numpy as np
import tensorflow as tf

ACTIVATIONS = ("exp", "cosh")


def attention_weights(logits, activation, mask=None):
    """Normalises f(logits) over the last axis.

    Args:
        logits: float64 tensor (..., n, n), finite, of any magnitude.
        activation: f, "exp" or "cosh".
        mask: bool tensor broadcastable to `logits`, True where a query may attend to a key; `None`
            allows everything.

    Returns:
        A float64 tensor of the same shape. Rows sum to 1, masked entries are exactly 0, and a row
        in which everything is masked is all 0.
    """
    if activation == "cosh":
        size = tf.abs(logits)
        logits = size + tf.math.log1p(tf.exp(-2 * size)) - math.log(2.0)  # ln cosh
    if mask is None:
        return tf.nn.softmax(logits, axis=-1)
    mask = tf.broadcast_to(tf.cast(mask, tf.bool), tf.shape(logits))
    lowest = tf.constant(tf.float64.min, tf.float64)
    top = tf.reduce_max(tf.where(mask, logits, lowest), axis=-1, keepdims=True)
    weights = tf.where(mask, tf.exp(tf.where(mask, logits - top, lowest)), tf.zeros_like(logits))
    total = tf.reduce_sum(weights, axis=-1, keepdims=True)
    return tf.where(total > 0, weights / tf.where(total > 0, total, tf.ones_like(total)), weights)


def combined_mask(attention_mask, causal, multi_head, length):
    """The mask of all heads.

    Args:
        attention_mask: `None`, or of shape (length, length), (batch, length, length) or, for
            several heads, (batch, heads, length, length).
        causal: whether to mask later positions, too.
        multi_head: whether the caller's input has an axis of heads.
        length: n.

    Returns:
        A bool tensor broadcastable to (batch, heads, length, length), or `None`.

    Raises:
        ValueError: if the mask has another rank.
    """
    allowed = None
    if attention_mask is not None:
        allowed = tf.cast(attention_mask, tf.bool)
        rank = len(allowed.shape)
        if rank not in ((2, 3, 4) if multi_head else (2, 3)):
            raise ValueError(
                "Argument `attention_mask` must have shape (length, length) or (batch, length, "
                "length), or (batch, heads, length, length) with heads. Received: shape "
                f"{allowed.shape}"
            )
        if rank == 3:
            allowed = allowed[:, tf.newaxis]
    if causal:
        lower = tf.constant(np.tril(np.ones([length, length], bool)))
        allowed = lower if allowed is None else allowed & lower
    return allowed
