"""Recurrent cells that are called by themselves: dense layers over one step."""

import keras
import tensorflow as tf

from tfdp.clipping.registry import Rule, inherited, register_rule
from tfdp.clipping.rules.cells import CELLS
from tfdp.clipping.rules.recurrent import is_covered


@register_rule(keras.layers.SimpleRNNCell, keras.layers.LSTMCell, keras.layers.GRUCell)
class CellRule(Rule):
    """As `RecurrentRule`, for one step: decoders that call a cell in a loop of Python.

    Cells with dropout take the fallback: Keras keeps their masks from one call to the next.
    """

    def accepts(self, layer, args, kwargs):
        inputs, states = _arguments(args, kwargs)
        tensors = [inputs, *_listed(states)]
        return (
            is_covered(layer, layer)
            and layer.dropout == layer.recurrent_dropout == 0
            and all(isinstance(t, tf.Tensor) and len(t.shape) == 2 for t in tensors)
            and all(t.shape[0] == inputs.shape[0] for t in tensors)
            and inputs.dtype == layer.compute_dtype
        )

    def variables(self, layer, args, kwargs):
        return [v for v in (layer.kernel, layer.recurrent_kernel, layer.bias) if v is not None]

    def call(self, layer, run, args, kwargs, probe):
        inputs, given = _arguments(args, kwargs)
        states = [tf.cast(s, layer.compute_dtype) for s in _listed(given)]
        inputs = inputs[:, tf.newaxis]
        cell = inherited(layer, CELLS)(layer, inputs, states, training=False)
        z, weights = probe(cell.project(inputs)), cell.weights()
        m = cell.recur(states[0], weights)
        gates = (tf.split(t, t.shape[-1] // layer.units, -1) for t in (z[:, 0], m))
        new = [probe(state) for state in cell.update(*gates, states, weights)]
        probe.keep((cell, inputs, z, m[:, tf.newaxis], states[0][:, tf.newaxis]))
        return new[0], new if isinstance(given, (list, tuple)) else new[0]

    def contributions_from(self, layer, args, kwargs, gradients, kept):
        ((cell, *values),) = kept
        return cell.contributions(*values, gradients[0])


def _arguments(args, kwargs):
    given = dict(zip(("inputs", "states", "training"), args, strict=False)) | kwargs
    return given["inputs"], given["states"]


def _listed(states):
    return list(states) if isinstance(states, (list, tuple)) else [states]
