"""A transformer block that carries, beside its activations, the variance of their noise."""

import keras
import tensorflow as tf

from tfdp.clipping.recording import constant
from tfdp.layers import error_propagation as propagate
from tfdp.layers.accounted_weights import EffectiveError
from tfdp.layers.re_attention import ReAttention


@keras.saving.register_keras_serializable(package="tfdp")
class ReAttentionBlock(EffectiveError):
    """Self-attention and a feed-forward network, each after a layer normalisation.

    Carries (x, variance): the variance enters the attention's correction and is propagated
    through every operation of the block (MATH.md section 4). A block whose variance is `None` is
    an ordinary transformer block.

    Args:
        num_heads: number of attention heads; divides the width of the input.
        hidden_dim: units of the feed-forward network.
        dropout: rate of dropout on the attention weights and on both branches.
        kernel_initializer: of all projections.
        error_scale: multiplies the effective error.

    Call arguments:
        x: (B, T, d).
        variance: (B, T), or None for no correction.
        attention_mask: bool, broadcastable to (B, T, T).

    Returns:
        (x, variance) of the same shapes.
    """

    def __init__(
        self,
        num_heads: int,
        hidden_dim: int,
        dropout: float = 0.0,
        kernel_initializer: str | keras.Initializer = "glorot_uniform",
        error_scale: float = 1.0,
        **kwargs,
    ):
        super().__init__(error_scale=error_scale, **kwargs)
        self.num_heads = num_heads
        self.hidden_dim = hidden_dim
        self.dropout = dropout
        self.kernel_initializer = keras.initializers.get(kernel_initializer)

    def build(self, x_shape, variance_shape=None, **kwargs):
        width = x_shape[-1]
        if width % self.num_heads:
            raise ValueError(
                "Argument `num_heads` must divide the width of the input. "
                f"Received: num_heads={self.num_heads}, width {width}"
            )
        policy = self.dtype_policy
        self.attention_norm = keras.layers.LayerNormalization(epsilon=1e-6, dtype=policy)
        self.attention = ReAttention(
            self.num_heads,
            width // self.num_heads,
            dropout=self.dropout,
            kernel_initializer=self.kernel_initializer.clone(),
            dtype=policy,
        )
        self.hidden_norm = keras.layers.LayerNormalization(epsilon=1e-6, dtype=policy)
        self.hidden = keras.layers.Dense(
            self.hidden_dim, kernel_initializer=self.kernel_initializer.clone(), dtype=policy
        )
        self.projection = keras.layers.Dense(
            width, kernel_initializer=self.kernel_initializer.clone(), dtype=policy
        )
        self.attention_dropout = keras.layers.Dropout(self.dropout, dtype=policy)
        self.hidden_dropout = keras.layers.Dropout(self.dropout, dtype=policy)
        self.attention_norm.build(x_shape)
        self.attention.build(x_shape)
        self.hidden_norm.build(x_shape)
        self.hidden.build(x_shape)
        self.projection.build((*x_shape[:-1], self.hidden_dim))

    def call(self, x, variance=None, attention_mask=None, training=None):
        normed = self.attention_norm(x)
        key_variance = None
        if variance is not None:
            normed_variance = self._after_norm(variance, x, self.attention_norm)
            key_variance = self._after_heads(normed_variance, normed, self.attention.key_dense)
        attended, scores = self.attention(
            normed,
            normed,
            variance=key_variance,
            attention_mask=attention_mask,
            return_attention_scores=True,
            training=training,
        )
        if variance is not None:
            variance += self._after_attention(normed_variance, normed, scores, training)
        x += self.attention_dropout(attended, training=training)

        normed = self.hidden_norm(x)
        before_activation = self.hidden(normed)
        active = tf.nn.relu(before_activation)
        if variance is not None:
            branch = self._after_norm(variance, x, self.hidden_norm)
            branch = self._after_dense(branch, normed, self.hidden)
            branch = propagate.relu(branch, _constant(before_activation))
            branch = self._after_dense(branch, active, self.projection)
            variance += propagate.dropout(branch, self.dropout, training)
        x += self.hidden_dropout(self.projection(active), training=training)
        return x, variance

    def _after_norm(self, variance, x, norm):
        return propagate.layer_norm(
            variance, _constant(x), constant(norm.gamma), self.error, norm.epsilon
        )

    def _after_dense(self, variance, x, layer):
        return propagate.dense(variance, _square(x), constant(layer.kernel), self.error)

    def _after_heads(self, variance, x, layer):
        """(B, heads, T): each head's own share of a projection."""
        kernel = constant(layer.kernel)  # (d, heads, d_k)
        return tf.stack(
            [
                propagate.dense(variance, _square(x), kernel[:, head], self.error)
                for head in range(self.num_heads)
            ],
            axis=1,
        )

    def _after_attention(self, variance, x, scores, training):
        values = self._after_heads(variance, x, self.attention.value_dense)
        heads = propagate.attention(values, tf.stop_gradient(scores))
        mixed = tf.reduce_mean(heads, axis=1)
        # The context enters the output projection: ‖x‖² there is that of the attended values.
        kernel = constant(self.attention.output_dense.kernel)
        kernel = tf.reshape(kernel, [-1, kernel.shape[-1]])
        after = propagate.dense(mixed, self._context_square(x, scores), kernel, self.error)
        return propagate.dropout(after, self.dropout, training)

    def _context_square(self, x, scores):
        """(B, T) squared norm of the attended values, from the block's own projection."""
        layer = self.attention.value_dense
        values = tf.einsum("btd,dhk->bhtk", _constant(x), constant(layer.kernel))
        if layer.bias is not None:
            values += constant(layer.bias)[:, tf.newaxis]
        context = tf.matmul(tf.stop_gradient(scores), values)
        return tf.reduce_sum(tf.square(context), axis=[1, 3])

    def compute_output_shape(self, x_shape, variance_shape=None, **kwargs):
        return x_shape, variance_shape

    def get_config(self):
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "hidden_dim": self.hidden_dim,
            "dropout": self.dropout,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
        }


def _square(x):
    return tf.reduce_sum(tf.square(_constant(x)), axis=-1)


def _constant(x):
    return tf.stop_gradient(tf.cast(x, tf.float32))
