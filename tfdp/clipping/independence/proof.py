"""The verdict on a step: its results are proved to be single examples' own, or it is refused."""

from tfdp.clipping.independence.draws import DRAWS, of_one_key
from tfdp.clipping.independence.values import PUBLIC, Joined, Rows, is_of_examples
from tfdp.clipping.plan.refusals import WAY_OUT
from tfdp.errors import PrivacyError


class NotProved(PrivacyError):
    """Examples may mix: an operation has no rule, and no search could tell."""


def examine(
    walk, graph, given, results, where, units=(), start=0, probes=(), only=None, way_out=WAY_OUT
):
    """Proves that row i of each result is a function of example i, and of what is public.

    At a probe that holds nothing of the examples it proves more: that row i changes row i alone.
    There the gradient of a row is taken for that of its example, whoever looks at the row. It
    proves the same of random numbers that each example has its own of: they are its own only if
    nothing else looks at them.

    Args:
        walk: a `Walk`.
        graph: the graph that computes the results.
        given: dict of the names of tensors to what they hold.
        results: tensors (B, ...): the losses, or representations.
        where: function of an operation of the graph to who made it, for messages.
        units: `Unit`s that may be searched by values where they are not proved.
        start: place of the first operation of the forward pass.
        probes: tensors (B, ...) at which gradients of single examples are taken.
        only: names of the operations that are looked at; None for all.
        way_out: what to do in place of mixing, for messages.

    Returns:
        Names of the operations and units whose values were searched.

    Raises:
        PrivacyError: if examples mix, or if that can be neither proved nor searched.
    """
    body = walk.outermost(graph, given, units, start, only)
    for result, value in ((result, body.value(result)) for result in results):
        if isinstance(value, Joined):
            error = PrivacyError if value.known else NotProved
            raise error(_message(value, lambda op: where(walk.outer(op)), way_out))
        if is_of_examples(value) and value != Rows(0):
            raise PrivacyError(
                f"{where(result.op)} mixes the examples of a batch: the first axis of its result "
                f"does not hold the examples in their order. {way_out}"
            )
    for probe in probes:
        _refuse_other_axes(body.value(probe), probe, where)
    public = [probe for probe in probes if body.value(probe) is PUBLIC]
    draws = of_one_key(walk, walk.alike.draws(DRAWS), graph, results)

    def wrong(own, drawn):
        """What a result holds if probes and random numbers are taken for single examples' own."""
        walk.drawn = drawn
        body = walk.outermost(graph, given | own, units, start, only)
        return next((v for v in map(body.value, results) if v not in (PUBLIC, Rows(0))), None)

    own = {probe.name: Rows(0) for probe in public}
    value = wrong(own, draws) if own or draws else None
    if value is not None:
        of_probes = wrong(own, {})
        outer = lambda op: where(walk.outer(op))  # noqa: E731
        if of_probes is None:
            raise PrivacyError(_message_of_draws(value, outer))
        raise PrivacyError(_message_of_rows(public, of_probes, outer))
    return tuple(walk.searched)


def _refuse_other_axes(value, probe, where):
    if is_of_examples(value) and value != Rows(0):
        raise PrivacyError(
            f"{where(probe.op)} does not have the examples of the batch along its first axis, "
            "though that axis is as long as the batch. tfdp would take its rows for examples. "
            "Transpose its inputs so that the examples come first."
        )


def _message_of_rows(public, value, where):
    layers = ", ".join(dict.fromkeys(where(probe.op) for probe in public))
    what = ""
    if isinstance(value, Joined):
        what = f" (in operation {value.op.name!r}, {value.op.type}, which {value.what})"
    return (
        f"{layers} was called on a tensor that does not depend on the examples but has as many "
        "rows as the batch. tfdp treats row i as the row of example i, but other examples use it, "
        f"too{what}. Clipping the gradient of each row would not bound what one example changes. "
        "Make the tensor without a batch axis, for example with a fixed number of rows. For "
        "negatives, use `tfdp.layers.SharedNegatives`."
    )


def _message_of_draws(value, where):
    who, what = "The model", ""
    if isinstance(value, Joined):
        who, what = where(value.op), f" ({_operation(value.op)} {value.what})"
    return (
        f"{who} uses random numbers of one draw in two ways: each example has numbers of its own, "
        f"and other examples use them too{what}. Examples would then depend on their positions in "
        "the batch. Use two draws: one for the numbers of each example, and one for the numbers "
        "that all examples share."
    )


def _operation(op):
    return f"operation {op.name!r} ({op.type})"


def _message(value, where, way_out):
    op, met = value.op, value.met
    who, what = where(op), f"operation {op.name!r} ({op.type}) {value.what}"
    if met not in (None, op):
        what += f", and operation {met.name!r} ({met.type}) passes the result to each example"
    if value.known:
        return f"{who} mixes the examples of a batch: {what}. {way_out}"
    return (
        f"{who} may mix the examples of a batch: {what}, and tests on random values could not "
        "show that it keeps them apart. Compute it for each example by itself, before sampling, or "
        "build it from other operations. If you know that it treats each example separately, "
        "train with `make_private(model, validate=False)`; the statement lists that as assumed."
    )
