"""What the `PrivateAttention` layers of an exported model release in one request."""

import math

import dp_accounting
import tensorflow as tf

from tfdp.accounting.release_series import release_epsilon
from tfdp.errors import PrivacyError
from tfdp.serving.noise_reads import reads_in

_SIZES = (3, 5)

_REQUESTS = (
    "Requests about one input add up, and each makes all of its calls. `epsilon_by_calls` of a "
    "layer counts calls, not requests."
)
_UNITS = "The layers protect different units, so the costs of the layers have no total."
_LOOP = (
    "Called in a loop, once per iteration, and not counted: {}. The cost of one request has no "
    "total; multiply by the number of iterations yourself."
)


def inference_releases(layers, endpoint):
    """The fields of an export's statement that say what its requests cost their askers.

    A call on several windows of an input, which are rows of its batch, is several releases about
    that input: as many as the batch of the call has rows for each input of the request. With
    several signatures, a layer counts with the one that calls it most.

    Args:
        layers: the built `PrivateAttention` layers of the model.
        endpoint: the `tfdp.models.endpoint.Endpoint` that is written.

    Returns:
        A dict of plain values: "releases_at_inference", the `ReleaseStatement` of each layer with
        "calls_in_one_request" (None: in a loop, not known), and "release_of_one_request", which
        holds the epsilon of one request where all layers protect the same unit.

    Raises:
        PrivacyError: if it cannot be told how often one input of a request is released.
    """
    signatures = [(endpoint.function, endpoint.signature), *endpoint.others.values()]
    traced = [_traced(function, signature) for function, signature in signatures]
    entries = [
        {
            **layer.privacy_statement().to_dict(),
            "layer": layer.name,
            "calls_in_one_request": _calls_in_one_request(layer, traced),
        }
        for layer in layers
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


def _calls_in_one_request(layer, traced):
    """Releases of a layer about one input of a request, or None where they are made in a loop.

    Args:
        layer: a built `PrivateAttention`.
        traced: what `_traced` gives of each signature.
    """
    # A call draws once, the same quantity of random numbers for each row of its batch.
    one = reads_in(_traced_alone(layer), layer.noise_resource)
    if one.draws != 1:
        raise PrivacyError(
            f"tfdp cannot count what one request releases: a call of layer {layer.name!r} "
            f"({type(layer).__name__}) must draw its noise once. To release an input several "
            "times, call a PrivateAttention several times instead of overriding its `call`. "
            f"Received: {one.draws:g} draws"
        )
    calls = [_calls_in(layer, one.numbers, *each) for each in traced]
    return None if None in calls else max(calls)


def _calls_in(layer, one, function, sized):
    """The same for requests of one signature.

    Args:
        layer: a built `PrivateAttention`.
        one: random numbers of a call on one input.
        function: the function that answers requests.
        sized: dict of some sizes of a batch to the same function for requests of that size.
    """
    reads = reads_in(function, layer.noise_resource)
    if reads.draws in (0, math.inf):
        return None if reads.draws else 0
    found = {size: reads_in(one, layer.noise_resource) for size, one in sized.items()}
    calls = {reads.numbers / (size * one) for size, reads in found.items()}
    count = calls.pop()
    as_traced = all(each.draws == reads.draws for each in found.values())
    if calls or not as_traced or count == math.inf or count != int(count):
        rows = ", ".join(f"{_rows(each, one)} for {size}" for size, each in found.items())
        raise PrivacyError(
            f"tfdp cannot count what one request releases. Layer {layer.name!r} (PrivateAttention) "
            "must be called on the same number of rows for each input of the request: one row, or "
            "several (such as windows of the input). The graph must show this number. Give the "
            "layer a batch whose size is a fixed multiple of the size of the request. "
            f"Received (rows of the layer for each size of the request): {rows}"
        )
    return int(count)


def _rows(reads, one):
    return "an unknown number" if reads.numbers == math.inf else f"{reads.numbers / one:g}"


def _traced(function, signature):
    """A function that answers a request, and a dict of it for batches of certain sizes.

    Returns:
        A concrete function; and a dict of the size of a batch to a concrete function.
    """
    batches = [spec.shape[0] for spec in tf.nest.flatten(signature) if spec.shape.rank]
    sizes = _SIZES if None in batches else batches[:1]
    sized = {size: _concrete(function, _of_size(signature, size)) for size in sizes}
    return _concrete(function, signature), sized


def _traced_alone(layer):
    """A call of a layer on one input."""
    query = tf.TensorSpec((1, *layer.built_shape), tf.float32)
    keys = () if layer.release_plan.setting.symmetric else (query,)
    return _concrete(layer.__call__, [query, *keys])


def _of_size(signature, size):
    """A signature with a certain size of the batch, where it was open."""

    def sized(spec):
        if not spec.shape.rank or spec.shape[0] is not None:
            return spec
        return tf.TensorSpec((size, *spec.shape[1:]), spec.dtype, spec.name)

    return tf.nest.map_structure(sized, signature)


def _concrete(function, signature):
    return tf.function(function, input_signature=signature, autograph=False).get_concrete_function()
