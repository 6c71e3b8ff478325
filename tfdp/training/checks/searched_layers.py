"""Parts of a step that may be searched by values as a whole: layers and losses of Keras' own."""

import inspect

import keras
import tensorflow as tf

from tfdp._compat.keras import all_layers
from tfdp.clipping import penalties
from tfdp.clipping.independence.walk import Unit
from tfdp.layers import DPForwardNoise, TransitionPrior
from tfdp.layers.text_tokenizer import TextTokenizer

#: Layers that keep examples apart, as their tests show: noise with a counter for each place, rows
#: of any length that are looked up, words of one text after another.
_APART = (DPForwardNoise, TextTokenizer, TransitionPrior)
_KERAS = ("keras", "keras_hub", "keras_rs", "tfdp")


def units_of_calls(forward):
    """`Unit`s of the layers of a `ForwardPass`, inner ones first."""
    calls = [c for c in forward.root.subtree() if c.graph is forward.graph]
    calls = [c for c in calls if _is_apart(c.layer) or _is_of_keras(c.layer)]
    return [_unit_of_layer(call) for call in reversed(calls) if not _holds_composites(call)]


def units_of_losses(step):
    """`Unit`s of the losses of a `tfdp.training.checks.independence.Step`."""
    losses = tf.nest.flatten(getattr(step.model, "_compile_arguments", {}).get("loss"))
    if any(isinstance(loss, keras.losses.CTC) or loss == "ctc" for loss in losses):
        if all(isinstance(loss, str) or _root_of(loss) == "keras" for loss in losses):
            return [_unit_of_losses(step)]
    return []


def _unit_of_losses(step):
    """Of CTC, whose loop is as long as the longest labels, and leaves other losses alone."""
    _, y, sample_weight = step.data
    given = (y, step.root.outputs, sample_weight)

    def run(values):
        y, outputs, sample_weight = tf.nest.pack_sequence_as(given, _with_none(given, values))
        with penalties.apart():
            return [step.model.compute_loss(None, y, outputs, sample_weight, training=True)]

    inputs = [t for t in tf.nest.flatten(given) if t is not None]
    return Unit("the losses (CTC)", step.places, inputs, [step.losses], run, True)


def _unit_of_layer(call):
    structure = (call.args, call.kwargs)
    inputs, outputs = _tensors(structure), _tensors(call.outputs)
    if _is_apart(call.layer):
        return Unit(call.layer.name, call.operations, inputs, outputs, None, True)
    flat = tf.nest.flatten(structure)
    symbolic = [isinstance(t, tf.Tensor) for t in flat]

    def run(values):
        values = iter(values)
        filled = [next(values) if s else t for t, s in zip(flat, symbolic, strict=True)]
        args, kwargs = tf.nest.pack_sequence_as(structure, filled)
        return _tensors(call.layer(*args, **kwargs))

    name = f"layer {call.layer.name} ({type(call.layer).__name__})"
    return Unit(name, call.operations, inputs, outputs, run)


def _holds_composites(call):
    """Whether ragged or sparse tensors are among arguments or outputs."""
    values = tf.nest.flatten((call.args, call.kwargs, call.outputs))
    return any(tf.is_tensor(t) and not isinstance(t, tf.Tensor) for t in values)


def _tensors(structure):
    return [t for t in tf.nest.flatten(structure) if isinstance(t, tf.Tensor)]


def _with_none(structure, values):
    values = iter(values)
    return [None if t is None else next(values) for t in tf.nest.flatten(structure)]


def _is_of_keras(layer):
    """Whether nothing of a layer without weights is the user's own code."""
    layers = all_layers(layer)
    return (
        not layer.trainable_variables
        and not any(isinstance(one, (keras.Model, keras.layers.Lambda)) for one in layers)
        and all(_root_of(one) in _KERAS for one in layers)
        and not _holds_own_functions(layers)
    )


def _is_apart(layer):
    return type(layer) in _APART and not _holds_own_functions([layer])


def _holds_own_functions(layers):
    """Whether the user put functions into layers, in place of `call`, perhaps."""
    functions = [f for one in layers for f in vars(one).values() if inspect.isfunction(f)]
    return not all(_root_of(one) in _KERAS for one in functions)


def _root_of(one):
    made_by = one if hasattr(one, "__qualname__") else type(one)
    return made_by.__module__.split(".")[0]
