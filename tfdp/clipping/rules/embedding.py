"""Embedding look-ups, and the table that serves as look-up and output head (phantom clipping)."""

import keras
import tensorflow as tf

from tfdp.clipping.rules.registry import Rule, register_rule
from tfdp.clipping.sums.contributions import OuterProduct, Rows, flatten_time


def rows_of(layer, ids, s):
    """The look-up's contribution to its table."""
    ids = _rows_read(layer, ids)
    batch = s.shape[0] if s.shape[0] is not None else tf.shape(s)[0]
    if len(ids.shape) < len(s.shape) - 1 or (ids.shape[0] == 1 and s.shape[0] != 1):
        ids = tf.broadcast_to(ids, tf.shape(s)[:-1])  # ids shared by the whole batch
    return Rows(tf.reshape(ids, [batch, -1]), flatten_time(s, 1))


def _rows_read(layer, ids):
    """The rows that ids mean, as keras.ops.take reads them.

    Negative ids count from the end, and where the device accepts ids that are out of range (XLA
    does), they mean the nearest row.
    """
    ids = tf.cast(ids, tf.int64 if ids.dtype == tf.int64 else tf.int32)
    return tf.clip_by_value(tf.where(ids < 0, ids + layer.input_dim, ids), 0, layer.input_dim - 1)


@register_rule(keras.layers.Embedding)
class EmbeddingRule(Rule):
    broadcasts_shared_outputs = True

    def accepts(self, layer, args, kwargs):
        return isinstance(args[0], tf.Tensor) and isinstance(layer.embeddings, keras.Variable)

    def variables(self, layer, args, kwargs):
        return [layer.embeddings]

    def contributions(self, layer, args, kwargs, gradients):
        (s,) = gradients
        return [(layer.embeddings, rows_of(layer, args[0], s))]

    def takes_positions(self, layer, args, kwargs):
        return True

    def accepts_shared(self, layer, args, kwargs):
        return len(args[0].shape) == 1

    def takes_gates(self, layer, args, kwargs):
        return True

    def shared_contributions(self, layer, args, kwargs, gradient):
        return [(layer.embeddings, gradient.at_rows(_rows_read(layer, args[0])))]


@register_rule(keras.layers.ReversibleEmbedding)
class ReversibleEmbeddingRule(EmbeddingRule):
    """`layer(ids)` looks up; `layer(hidden, reverse=True)` is the head, tied or not."""

    def accepts(self, layer, args, kwargs):
        if _is_reverse(args, kwargs):
            return layer.logit_soft_cap is None
        return super().accepts(layer, args, kwargs)

    def takes_positions(self, layer, args, kwargs):
        return not _is_reverse(args, kwargs)

    def accepts_shared(self, layer, args, kwargs):
        return not _is_reverse(args, kwargs) and super().accepts_shared(layer, args, kwargs)

    def variables(self, layer, args, kwargs):
        if _is_reverse(args, kwargs) and not layer.tie_weights:
            return [layer.reverse_embeddings]
        return [layer.embeddings]

    def contributions(self, layer, args, kwargs, gradients):
        if not _is_reverse(args, kwargs):
            return super().contributions(layer, args, kwargs, gradients)
        (z,) = gradients
        hidden, z = flatten_time(args[0], 1), flatten_time(z, 1)
        if layer.tie_weights:
            return [(layer.embeddings, OuterProduct(z, hidden))]
        return [(layer.reverse_embeddings, OuterProduct(hidden, z))]


def _is_reverse(args, kwargs):
    return bool(kwargs.get("reverse", args[1] if len(args) > 1 else False))
