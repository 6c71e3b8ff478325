"""Learned positions that are added to a batch of sequences (keras-hub's PositionEmbedding).

keras-hub is optional and slow to import, so the rule is registered by name, on first use.
"""

import sys

import tensorflow as tf

from tfdp.clipping.rules.registry import Rule, register_rule
from tfdp.clipping.sums.contributions import PerExampleGradients


class PositionRule(Rule):
    """Position t of every example meets row t of the table."""

    def accepts(self, layer, args, kwargs):
        given = [*args[1:], *kwargs.values()]  # where to begin, or positions; tensors, perhaps
        plain = all(v is None or (isinstance(v, int) and v == 0) for v in given)
        return plain and len(args[0].shape) == 3

    def variables(self, layer, args, kwargs):
        return [layer.position_embeddings]

    def contributions(self, layer, args, kwargs, gradients):
        (s,) = gradients
        rest = layer.position_embeddings.shape[0] - s.shape[1]
        values = tf.cast(s, tf.float32)
        if rest:
            values = tf.pad(values, [[0, 0], [0, rest], [0, 0]])
        return [(layer.position_embeddings, PerExampleGradients(values))]


def register_keras_hub():
    """Registers the rule for keras-hub's layer if the user has imported keras-hub."""
    hub = sys.modules.get("keras_hub")
    layer_class = getattr(getattr(hub, "layers", None), "PositionEmbedding", None)
    if layer_class is not None:
        register_rule(layer_class)(PositionRule)
