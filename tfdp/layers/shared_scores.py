"""Rows that all examples share: their scores, and rows at which gradients are noised."""

import keras
import tensorflow as tf

from tfdp.clipping.recording import is_seed_state, read_as_rows
from tfdp.clipping.rules.registry import Rule, ScoresRule, register_rule
from tfdp.clipping.sums.contributions import Rows
from tfdp.runtime.external_table import VectorTable


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


class NoisedVectors(keras.layers.Layer):
    """Vectors of items, at which a private step clips and noises gradients (MATH.md section 14).

    Under a `DPOptimizer` they are rows of a table. What a step has noised there goes on to the
    weights of their tower by Keras' own gradient, which then reads no example.

    Args:
        vectors_of: function of int64 ids (R,) to vectors (R, d).
        tower: the layer whose weights make them.
        takes_all: whether the examples' own items are looked up here, too, among all rows.

    Call arguments:
        ids: (R,) int64 that all examples share, or (B,).

    Returns:
        (R, d), or (B, d).
    """

    def __init__(self, vectors_of, tower, takes_all, **kwargs):
        super().__init__(**kwargs)
        self.vectors_of, self.tower, self.takes_all = vectors_of, tower, takes_all
        self._table = None

    def make_table(self, name, shape):
        """Called once the shape (M, d) of all vectors is known."""
        drawn = sorted({v.path for v in self.tower.variables if is_seed_state(v)})
        if drawn:
            raise ValueError(
                'Argument `noise_at="vectors"` needs an item tower without random numbers: a '
                "separate pass trains its weights and would draw different numbers. Remove its "
                f"dropout. Received: a tower with {drawn}"
            )
        self._table = VectorTable(name, shape, self.vectors_of, self.tower, self.takes_all)

    @property
    def external_table(self):
        """The `VectorTable`, or None if nothing in the tower is trained."""
        return self._table if self.tower.trainable_variables else None

    def call(self, ids):
        if self.external_table is None:
            return self.vectors_of(ids)
        return read_as_rows(self.external_table, lambda: self.vectors_of(ids))


@register_rule(NoisedVectors)
class NoisedVectorsRule(Rule):
    """The gradient at a vector is that by its row."""

    def accepts(self, layer, args, kwargs):
        return layer.external_table is not None

    def variables(self, layer, args, kwargs):
        return [layer.external_table]

    def contributions(self, layer, args, kwargs, gradients):
        (s,) = gradients
        values = tf.cast(s, tf.float32)[:, tf.newaxis]
        return [(layer.external_table, Rows(args[0][:, tf.newaxis], values))]

    def accepts_shared(self, layer, args, kwargs):
        return len(args[0].shape) == 1

    def shared_contributions(self, layer, args, kwargs, gradient):
        return [(layer.external_table, gradient.at_rows(args[0]))]
