"""What the `PrivateAttention` layers of an exported model release in one request."""

import math

import dp_accounting
import tensorflow as tf

from tfdp._compat.keras import export_signature
from tfdp.accounting.release_series import release_epsilon
from tfdp.serving.noise_reads import reads_in

_REQUESTS = (
    "Requests about one input add up, and each makes all of its calls. `epsilon_by_calls` of a "
    "layer counts calls, not requests."
)
_UNITS = "The layers protect different units, so the costs of the layers have no total."
_LOOP = (
    "Called in a loop, once per iteration, and not counted: {}. The cost of one request has no "
    "total; multiply by the number of iterations yourself."
)


def inference_releases(layers, model, endpoint):
    """The fields of an export's statement that say what its requests cost their askers.

    Args:
        layers: the built `PrivateAttention` layers of the model.
        model: the model that `keras.Model.export` writes.
        endpoint: the `tfdp.models.endpoint.Endpoint` that is written instead of it, or None.

    Returns:
        A dict of plain values: "releases_at_inference", the `ReleaseStatement` of each layer with
        "calls_in_one_request" (None: in a loop, not known), and "release_of_one_request", which
        holds the epsilon of one request where all layers protect the same unit.
    """
    function = _traced(model, endpoint)
    # Every call draws its noise once.
    calls = [reads_in(function, layer.noise_resource) for layer in layers]
    entries = [
        {
            **layer.privacy_statement().to_dict(),
            "layer": layer.name,
            "calls_in_one_request": None if count == math.inf else count,
        }
        for layer, count in zip(layers, calls, strict=True)
    ]
    return {
        "releases_at_inference": entries,
        "release_of_one_request": _one_request(layers, entries),
    }


def _one_request(layers, entries):
    pairs = zip(layers, entries, strict=True)
    called = [(layer, entry) for layer, entry in pairs if entry["calls_in_one_request"] != 0]
    looped = [entry["layer"] for _, entry in called if entry["calls_in_one_request"] is None]
    units = {entry["unit"] for _, entry in called}
    remarks = [_LOOP.format(", ".join(looped))] if looped else []
    if len(units) > 1:
        remarks.append(_UNITS)
    if remarks or not called:
        return {"remarks": [*remarks, _REQUESTS]}
    deltas = [layer.budget.delta for layer, _ in called]
    # Any delta is a true one to state; the sum is what adding up the layers by hand would give.
    delta = math.fsum(deltas) if math.fsum(deltas) < 1 else max(deltas)
    event = dp_accounting.ComposedDpEvent(
        [
            dp_accounting.SelfComposedDpEvent(layer.event(), entry["calls_in_one_request"])
            for layer, entry in called
        ]
    )
    return {
        "epsilon": release_epsilon(event, delta),
        "delta": delta,
        "unit": units.pop(),
        "remarks": [_REQUESTS],
    }


def _traced(model, endpoint):
    """The function that answers a request, as a concrete function."""
    if endpoint is None:
        function, signature = model.__call__, export_signature(model)
    else:
        function, signature = endpoint.function, endpoint.signature
    return tf.function(function, input_signature=signature, autograph=False).get_concrete_function()
