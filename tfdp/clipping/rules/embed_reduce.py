"""keras_rs' `EmbedReduce`, which is what `DistributedEmbedding` is made of without a SparseCore.

keras_rs is optional, so the rule is registered by name, on first use. The layer's own look-up reads
the whole table; the one of a private step gathers rows.
"""

import sys

import keras
import tensorflow as tf

from tfdp._compat.keras import all_layers
from tfdp.clipping.rules import combiners
from tfdp.clipping.rules.fallback import Calls
from tfdp.clipping.rules.registry import Rule, register_rule
from tfdp.clipping.sums.surviving_rows import mark_sparse_table


class EmbedReduceRule(Rule):
    """g_i has coefficient·s in the row of each of example i's ids, and none for a weight of 0.

    As the layer does it: id 0 is a row as any other, with `mask_zero` too; negative ids count from
    the end; one-dimensional ids are looked up, with their weight for "sum" only. Padding is what
    has the weight 0.
    """

    def accepts(self, layer, args, kwargs):
        given = [t for t in _ids_and_weights(args, kwargs) if t is not None]
        dense = all(isinstance(t, (tf.Tensor, tf.RaggedTensor)) for t in given)
        return dense and isinstance(layer.embeddings, keras.Variable)  # LoRA computes it

    def variables(self, layer, args, kwargs):
        return [layer.embeddings]

    def call(self, layer, run, args, kwargs, probe):
        ids, factors, dtype = _look_up(layer, *_ids_and_weights(args, kwargs))
        # Not under autocasting, which would copy the table.
        rows = Calls()(lambda: tf.gather(layer.embeddings.value, ids))
        values = tf.cast(rows, dtype) * tf.cast(factors, dtype)[..., tf.newaxis]
        return probe(tf.reduce_sum(values, axis=-2) if len(ids.shape) > 1 else values)

    def contributions(self, layer, args, kwargs, gradients):
        (s,) = gradients
        ids, factors, _ = _look_up(layer, *_ids_and_weights(args, kwargs))
        # Where the device accepts ids that are out of range (XLA does), they mean the nearest row.
        ids = tf.clip_by_value(ids, 0, layer.input_dim - 1)
        ids = tf.where(factors != 0, ids, tf.constant(-1, tf.int64))
        return [(layer.embeddings, combiners.weighted_rows(ids, factors, s))]


def _ids_and_weights(args, kwargs):
    return args[0], args[1] if len(args) > 1 else kwargs.get("weights")


def _look_up(layer, ids, weights):
    """How the layer looks up these ids, as dense tensors of their shape.

    Returns:
        (int64 ids, float32 factor of each row in the output, dtype of the output).
    """
    dtype = layer.compute_dtype
    if weights is not None:
        dtype = keras.backend.result_type(dtype, weights.dtype)
    if weights is None or (ids.shape.rank == 1 and layer.combiner != "sum"):
        weights = tf.ones_like(ids, tf.float32)
    valid = tf.ones_like(ids, tf.bool)
    if isinstance(ids, tf.RaggedTensor):
        ids, valid = ids.to_tensor(0), valid.to_tensor(False)
    if isinstance(weights, tf.RaggedTensor):
        weights = weights.to_tensor(0.0)
    weights = tf.cast(weights, tf.float32)
    if len(weights.shape) < len(ids.shape):
        weights = weights[..., tf.newaxis]  # one for all values, by which the layer divides once
    factors = combiners.coefficients(weights, layer.combiner if len(ids.shape) > 1 else None)
    factors = tf.where(valid, factors, 0.0)
    ids = tf.cast(ids, ids.dtype if ids.dtype in (tf.int32, tf.int64) else tf.int32)
    ids = tf.cast(ids, tf.int64)
    return tf.where(ids < 0, ids + layer.input_dim, ids), factors, dtype


def _embed_reduce():
    """The class, or None if the user has not imported keras_rs."""
    layers = getattr(sys.modules.get("keras_rs"), "layers", None)
    return getattr(layers, "EmbedReduce", None)


def is_embed_reduce(layer):
    """Whether this is keras_rs' layer, or one derived from it."""
    layer_class = _embed_reduce()
    return layer_class is not None and isinstance(layer, layer_class)


def register_keras_rs(model):
    """Registers the rule, and names the model's tables as sparse ones.

    `SparseEmbedding` names its own when it is built.

    Args:
        model: a model. Layers that are not built yet are left for a later call.
    """
    layer_class = _embed_reduce()
    if layer_class is None:
        return
    register_rule(layer_class)(EmbedReduceRule)
    for layer in all_layers(model):
        if isinstance(layer, layer_class) and layer.built:
            table = layer.embeddings
            if isinstance(table, keras.Variable):  # LoRA computes it from other variables
                mark_sparse_table(table, layer.name)
