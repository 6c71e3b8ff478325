"""Recurrent layers, and cells called by themselves: cells as dense layers over time."""

import keras
import tensorflow as tf

from tfdp.clipping.recording import is_patched
from tfdp.clipping.rules.cells import CELLS
from tfdp.clipping.rules.recurrence import recurrence
from tfdp.clipping.rules.registry import Rule, inherited, register_rule

_ARGUMENTS = ("sequences", "initial_state", "mask", "training")


@register_rule(
    keras.layers.RNN,
    keras.layers.SimpleRNN,
    keras.layers.LSTM,
    keras.layers.GRU,
    keras.layers.ConvLSTM1D,
    keras.layers.ConvLSTM2D,
    keras.layers.ConvLSTM3D,
)
class RecurrentRule(Rule):
    """The inputs' part in the gates is computed, and probed, for all steps at once.

    The recurrent kernel's gradient comes from the same probe; the probes at the outputs are there
    because the outputs depend on that kernel, too. Several cells run one after another, each over
    all steps: what a step that is masked hands on to the next cell changes nothing.
    """

    def accepts(self, layer, args, kwargs):
        cells, given = _cells(layer), _arguments(args, kwargs)
        x, mask = given["sequences"], given["mask"]
        return (
            not layer.stateful
            and getattr(layer, "use_cudnn", None) is not True
            and isinstance(x, tf.Tensor)
            and x.dtype == layer.compute_dtype
            and (mask is None or (isinstance(mask, tf.Tensor) and len(mask.shape) == 2))
            and isinstance(given["training"], bool)
            and all(is_covered(layer, cell) for cell in cells)
            and _fits(layer, cells, given["initial_state"], x)
            and (mask is None or mask.shape[0] == x.shape[0])
        )

    def variables(self, layer, args, kwargs):
        weights = [(c.kernel, c.recurrent_kernel, c.bias) for c in _cells(layer)]
        return [v for of_cell in weights for v in of_cell if v is not None]

    def call(self, layer, run, args, kwargs, probe):
        given = _arguments(args, kwargs)
        x, mask, initial = given["sequences"], given["mask"], given["initial_state"]
        mask = None if mask is None else tf.cast(mask, tf.bool)
        if layer.go_backwards:
            x = tf.reverse(x, [1])
            mask = None if mask is None else tf.reverse(mask, [1])
        states = initial
        if initial is None:
            states = layer.get_initial_state(batch_size=keras.ops.shape(x)[0])
        states = _listed(states)
        last = []
        for cell, of_cell in zip(_cells(layer), _by_cell(layer, states), strict=True):
            x, found = _run_cell(cell, x, mask, of_cell, given["training"], probe)
            last += found
        outputs = probe(_outputs(layer, x, mask, initial is not None))
        if not layer.return_state:
            return outputs
        return outputs, *tf.nest.pack_sequence_as(states, [probe(s) for s in last])

    def contributions_from(self, layer, args, kwargs, gradients, kept):
        return [
            pair
            for (described, *values), s in zip(kept, gradients, strict=False)
            for pair in described.contributions(*values, s)
        ]


@register_rule(keras.layers.SimpleRNNCell, keras.layers.LSTMCell, keras.layers.GRUCell)
class CellRule(Rule):
    """As `RecurrentRule`, for one step: decoders that call a cell in a loop of Python.

    Cells with dropout take the fallback: Keras keeps their masks from one call to the next.
    """

    def accepts(self, layer, args, kwargs):
        inputs, states = _arguments_of_cell(args, kwargs)
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
        inputs, given = _arguments_of_cell(args, kwargs)
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


def _run_cell(cell, x, mask, states, training, probe):
    """(the first state after every step, all states after the last)."""
    states = [tf.cast(s, cell.compute_dtype) for s in states]
    described = inherited(cell, CELLS)(cell, x, states, training)
    z = probe(described.project(x))
    after, last, m = recurrence(described, z, mask, states, described.weights())
    before = tf.concat([states[0][:, tf.newaxis], after[:, :-1]], 1)
    probe.keep((described, x, z, m, before))
    return after, last


def _outputs(layer, after, mask, has_initial_state):
    """What the layer returns, from the first state after every step."""
    if mask is not None and (layer.zero_output_for_mask or has_initial_state):
        seen = mask
        if not layer.zero_output_for_mask:  # before the first step that counts, outputs are zero
            seen = tf.cumsum(tf.cast(mask, tf.int32), axis=1) > 0
        seen = tf.reshape(seen, [*tf.unstack(tf.shape(seen)), *[1] * (len(after.shape) - 2)])
        after = tf.where(seen, after, tf.zeros([], after.dtype))
    return after if layer.return_sequences else after[:, -1]


def _arguments(args, kwargs):
    given = {"initial_state": None, "mask": None, "training": False}
    return given | dict(zip(_ARGUMENTS, args, strict=False)) | kwargs


def _cells(layer):
    stacked = inherited(layer.cell, {keras.layers.StackedRNNCells: True})
    return list(layer.cell.cells) if stacked else [layer.cell]


def _listed(states):
    return list(states) if isinstance(states, (list, tuple)) else [states]


def _by_cell(layer, states):
    """For each cell the list of its states."""
    return [states] if layer.cell in _cells(layer) else [_listed(s) for s in states]


def is_covered(layer, cell):
    """Whether a cell of a layer, or one that is called by itself, is what `CELLS` describes."""
    described = inherited(cell, CELLS)
    if described is None or is_patched(cell) or is_patched(getattr(layer, "cell", layer)):
        return False
    weights = [w for w in (cell.kernel, cell.recurrent_kernel, cell.bias) if w is not None]
    functions = [cell.activation, getattr(cell, "recurrent_activation", None)]
    return (
        all(isinstance(w, keras.Variable) for w in weights)
        and cell.compute_dtype == layer.compute_dtype
        and described.covers(cell)
        and all(f is None or _is_closed(f, cell) for f in functions)
    )


def _is_closed(function, cell):
    """Whether an activation depends on its argument alone: other tensors would get no gradient."""
    if function is getattr(keras.activations, getattr(function, "__name__", ""), None):
        return True
    spec = tf.TensorSpec([None, getattr(cell, "units", 1)], cell.compute_dtype)
    graph = tf.function(function, autograph=False).get_concrete_function(spec).graph
    return not graph.captures and not any(
        op.op_def.is_stateful for op in graph.get_operations() if op.op_def is not None
    )


def _fits(layer, cells, states, x):
    """Whether initial states are those of a batch, as the layer wants them."""
    if states is None:
        return True
    if not isinstance(states, (list, tuple)) and len(cells) > 1:
        return False
    by_cell = _by_cell(layer, _listed(states))
    if len(by_cell) != len(cells):
        return False
    return all(
        len(given) == len(cell.get_initial_state(batch_size=1))
        and all(isinstance(s, tf.Tensor) and s.shape[0] == x.shape[0] for s in given)
        for given, cell in zip(by_cell, cells, strict=True)
    )


def _arguments_of_cell(args, kwargs):
    given = dict(zip(("inputs", "states", "training"), args, strict=False)) | kwargs
    return given["inputs"], given["states"]
