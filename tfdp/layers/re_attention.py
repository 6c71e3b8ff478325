"""Attention whose weights are corrected for the noise of private training."""

import math

import keras
import tensorflow as tf

from tfdp._validate import count


@keras.saving.register_keras_serializable(package="tfdp")
class ReAttention(keras.layers.Layer):
    """Multi-head attention with the Re-Attention correction (DPFormer section 5.2).

    A key known only up to noise of variance v raises its expected weight by exp(‖q‖²·v/2). The
    correction subtracts ‖q_t‖²·v_j/(2·d_k) from logit (t, j) before the softmax (MATH.md section
    4). It is part of the inner product: ‖q‖² is appended to the query and −v/(2·√d_k) to the key,
    and the scale stays 1/√key_dim. Gradients flow through neither ‖q‖² nor v.

    With a variance of zero, or none, this is `keras.layers.MultiHeadAttention`.

    Args:
        num_heads: number of heads.
        key_dim: d_k, size of each head's queries and keys; also of its values.
        dropout: rate of dropout on the attention weights.
        use_bias: whether the projections have biases.
        kernel_initializer: of the projections.

    Call arguments:
        query: (B, T, d).
        value: (B, S, d).
        key: (B, S, d); `value` if omitted.
        variance: variance of the *projected* keys, (B, S) or (B, num_heads, S); each number
            stands for every feature of the key.
        attention_mask: bool, broadcastable to (B, T, S); True where attention is allowed.
        use_causal_mask: also mask later positions.
        return_attention_scores: also return the weights (B, num_heads, T, S).

    Returns:
        (B, T, d), and the weights if asked for.
    """

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        dropout: float = 0.0,
        use_bias: bool = True,
        kernel_initializer: str | keras.Initializer = "glorot_uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.num_heads = count("num_heads", num_heads)
        self.key_dim = count("key_dim", key_dim)
        self.dropout = dropout
        self.use_bias = use_bias
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.supports_masking = True

    def build(self, query_shape, value_shape=None, key_shape=None):
        value_shape = value_shape or query_shape
        key_shape = key_shape or value_shape
        self.query_dense = self._projection("query", query_shape)
        self.key_dense = self._projection("key", key_shape)
        self.value_dense = self._projection("value", value_shape)
        self.output_dense = keras.layers.EinsumDense(
            "abcd,cde->abe",
            output_shape=(None, query_shape[-1]),
            bias_axes="e" if self.use_bias else None,
            kernel_initializer=self.kernel_initializer.clone(),
            dtype=self.dtype_policy,
            name="attention_output",
        )
        self.output_dense.build((None, None, self.num_heads, self.key_dim))
        self.dropout_layer = keras.layers.Dropout(self.dropout, dtype=self.dtype_policy)

    def _projection(self, name, shape):
        layer = keras.layers.EinsumDense(
            "abc,cde->abde",
            output_shape=(None, self.num_heads, self.key_dim),
            bias_axes="de" if self.use_bias else None,
            kernel_initializer=self.kernel_initializer.clone(),
            dtype=self.dtype_policy,
            name=name,
        )
        layer.build((None, None, shape[-1]))
        return layer

    def call(
        self,
        query,
        value,
        key=None,
        variance=None,
        attention_mask=None,
        use_causal_mask=False,
        return_attention_scores=False,
        training=None,
    ):
        key = value if key is None else key
        q = tf.transpose(self.query_dense(query), [0, 2, 1, 3])  # (B, heads, T, d_k)
        k = tf.transpose(self.key_dense(key), [0, 2, 1, 3])
        v = tf.transpose(self.value_dense(value), [0, 2, 1, 3])
        scale = 1.0 / math.sqrt(self.key_dim)
        if variance is not None:
            q, k = _append_correction(q, k, tf.convert_to_tensor(variance), scale)
        logits = tf.matmul(q * tf.cast(scale, q.dtype), k, transpose_b=True)
        mask = _mask(attention_mask, use_causal_mask, tf.shape(q)[2], tf.shape(k)[2])
        if mask is not None:
            logits = tf.where(mask, logits, tf.cast(-3e4, logits.dtype))
        scores = tf.nn.softmax(tf.cast(logits, tf.float32), axis=-1)
        dropped = self.dropout_layer(tf.cast(scores, v.dtype), training=training)
        context = tf.transpose(tf.matmul(dropped, v), [0, 2, 1, 3])
        output = self.output_dense(context)
        return (output, scores) if return_attention_scores else output

    def compute_output_shape(self, query_shape, *args, **kwargs):
        return query_shape

    def get_config(self):
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "key_dim": self.key_dim,
            "dropout": self.dropout,
            "use_bias": self.use_bias,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
        }


def _append_correction(q, k, variance, scale):
    """Makes the inner product of the last axes include −‖q‖²·v/(2·√d_k)."""
    if len(variance.shape) == 2:
        variance = tf.broadcast_to(variance[:, tf.newaxis], tf.shape(k)[:3])
    square = tf.reduce_sum(tf.square(tf.cast(q, tf.float32)), axis=-1, keepdims=True)
    correction = -0.5 * scale * tf.cast(variance, tf.float32)[..., tf.newaxis]
    q = tf.concat([q, tf.cast(tf.stop_gradient(square), q.dtype)], axis=-1)
    k = tf.concat([k, tf.cast(tf.stop_gradient(correction), k.dtype)], axis=-1)
    return q, k


def _mask(attention_mask, causal, rows, columns):
    mask = None
    if attention_mask is not None:
        mask = tf.cast(attention_mask, tf.bool)
        mask = mask[:, tf.newaxis] if len(mask.shape) == 3 else mask
    if causal:
        allowed = tf.range(rows)[:, tf.newaxis] >= tf.range(columns)[tf.newaxis]
        mask = allowed if mask is None else mask & allowed
    return mask
