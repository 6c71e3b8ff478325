"""Scores of every example for rows that all examples share."""

import keras
import tensorflow as tf

from tfdp.clipping.rules.registry import ScoresRule, register_rule


def precise(tensor):
    """A tensor of at least float32: softmax over many items is no matter for half the bits."""
    is_half = tensor.dtype in (tf.float16, tf.bfloat16)
    return tf.cast(tensor, tf.float32) if is_half else tensor


@keras.saving.register_keras_serializable(package="tfdp")
class SharedScores(keras.layers.Layer):
    """Products of each example's vector with vectors that all examples share.

    Under a `DPOptimizer` the layers that made the shared vectors are clipped by two factors for
    each example (MATH.md section 14): nothing of size B × N × d is made.

    Call arguments:
        users: (B, d).
        vectors: (N, d), without a batch axis; N known.

    Returns:
        (B, N) of at least float32.
    """

    def build(self, users_shape, vectors_shape):
        if len(users_shape) != 2 or len(vectors_shape) != 2 or users_shape[1] != vectors_shape[1]:
            raise ValueError(
                f"Layer {self.name!r} takes users (B, d) and vectors (N, d). Received: shapes "
                f"{tuple(users_shape)} and {tuple(vectors_shape)}"
            )

    def call(self, users, vectors):
        return tf.matmul(precise(users), precise(vectors), transpose_b=True)

    def compute_output_shape(self, users_shape, vectors_shape):
        return (users_shape[0], vectors_shape[0])


@register_rule(SharedScores)
class SharedScoresRule(ScoresRule):
    """∂/∂v_n of example i is its gradient at the score times its own vector: N numbers and d."""

    def accepts(self, layer, args, kwargs):
        return len(args) == 2

    def shared_argument(self, args, kwargs):
        return args[1]

    def factors(self, layer, args, kwargs, gradient):
        return gradient[:, tf.newaxis, :], tf.cast(args[0], tf.float32)[:, tf.newaxis, :]
