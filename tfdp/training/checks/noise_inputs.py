"""Whether what forward noise is added to is a representation of one example alone.

That is proved from the graph, as it is for gradients (`ForwardPass`). Where it is not, because an
operation has no rule or the proof is left out, a few records are looked at, too.
"""

import numpy as np
import tensorflow as tf

from tfdp.clipping.independence.draws import operations_of
from tfdp.clipping.plan.refusals import WAY_OUT_OF_NOISE
from tfdp.clipping.plan.side_effects import refuse_results_of_metrics, refuse_side_effects
from tfdp.clipping.plan.tracing import variables_of_metrics
from tfdp.clipping.recording import Recorder, call_model
from tfdp.errors import PrivacyError
from tfdp.layers import DPForwardNoise
from tfdp.training.checks.forward_passes import ForwardPass
from tfdp.training.checks.independence import REPRESENTATIONS, notes_of

_TOLERANCE = 1e-4


def notes_of_noise(model, passes, x):
    """What the statement says of the representations that forward noise clips.

    Args:
        model: a model that holds `DPForwardNoise` layers.
        passes: the `NoisedPass`es of its training steps.
        x: a few of its inputs, eager tensors.

    Raises:
        PrivacyError: if an example's representation depends on the others.
    """
    found = [_searched(model, one) for one in passes]
    if any(found) or None in found:
        validate_noise_inputs(model, x)
    return notes_of(found, REPRESENTATIONS)


def _searched(model, forward):
    """Names of what was searched by values; None if not all of it was looked at."""
    calls, graph = forward.calls, forward.graph
    # All that a call gets: a mask may mix examples, too.
    given = [t for call in calls for t in tf.nest.flatten((call.args, call.kwargs))]
    given = [t for t in given if tf.is_symbolic_tensor(t)]
    inside = [one.graph for one in (*calls, *given) if one.graph is not graph]  # of loops, branches
    if inside or not model.validate_independence:
        return None
    shown = variables_of_metrics(model)
    refuse_results_of_metrics(graph, given, shown, "The input of a DPForwardNoise layer")
    # What was noised may be mixed.
    only = operations_of(given, {id(call.outputs) for call in calls})
    return forward.prove(given, gradients=False, only=only, way_out=WAY_OUT_OF_NOISE)


def proved_function(model, function, spec):
    """A function of a batch, traced, and what the statement says of the rows of its result.

    Args:
        model: the model whose layers it calls.
        function: of a tensor of B examples to a tensor (B, ...).
        spec: `tf.TensorSpec` of the examples, B at least 2.

    Returns:
        The traced function, and `Notes`.

    Raises:
        PrivacyError: if a row depends on other examples than its own, of earlier batches, too.
    """
    recorder, found = Recorder(model), []

    def traced(inputs):
        forward = ForwardPass(model, [inputs])
        with recorder.recording():
            result = recorder.on_call(model, function, (inputs,), {})
        forward.root = recorder.root
        found[:] = [forward, result]
        return result

    concrete = tf.function(traced, autograph=False).get_concrete_function(spec)
    forward, result = found
    where = f"The encoder of model {model.name!r}"
    refuse_side_effects(forward.graph, where)
    refuse_results_of_metrics(forward.graph, [result], variables_of_metrics(model), where)
    searched = None
    if model.validate_independence:
        searched = forward.prove([result], gradients=False, way_out=WAY_OUT_OF_NOISE)
    return concrete, notes_of([searched], REPRESENTATIONS)


def validate_noise_inputs(model, x):
    """Replaces all examples but one by others, and watches what that one's noise meets.

    Each example in turn: a sum along the batch, say, leaves the first one alone.

    Args:
        model: a model that holds `DPForwardNoise` layers.
        x: a batch of its inputs.

    Raises:
        PrivacyError: if an example's representation depends on the others.
    """
    count = tf.nest.flatten(x)[0].shape[0]
    if count < 2:
        return
    first = _noise_inputs(model, x)
    for place in range(count):
        # This example stays; every other one becomes a copy of the last, then of the first.
        for fill in (count - 1, 0):
            chosen = tf.constant([place if i == place else fill for i in range(count)])
            others = [tf.gather(t, chosen) for t in tf.nest.flatten(x)]
            _compare(first, _noise_inputs(model, tf.nest.pack_sequence_as(x, others)), place)


def _noise_inputs(model, x):
    recorder = Recorder(model)
    with recorder.recording():
        call_model(model, x)
    return [
        call.args[0] for call in recorder.root.subtree() if isinstance(call.layer, DPForwardNoise)
    ]


def _compare(inputs, others, place):
    if len(inputs) != len(others):
        raise PrivacyError(
            "The number of calls of the model's DPForwardNoise layers depends on the examples: "
            f"{len(inputs)} for some, {len(others)} for others. Call them outside `tf.cond` and "
            "loops, so that every example costs the same."
        )
    for a, b in zip(inputs, others, strict=True):
        a, b = (np.asarray(tf.cast(t[place], tf.float32)) for t in (a, b))
        scale = max(np.max(np.abs(a), initial=0.0), 1e-6)
        if not np.allclose(a, b, rtol=_TOLERANCE, atol=_TOLERANCE * scale, equal_nan=True):
            raise PrivacyError(
                "The input of forward noise mixes the examples of a batch: the input for an "
                f"example changed by {np.nanmax(np.abs(a - b)):.3g} when only other examples were "
                f"replaced. {WAY_OUT_OF_NOISE}"
            )
