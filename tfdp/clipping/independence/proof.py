"""The verdict on a step: each loss is proved to be one example's own, or the step is refused."""

from tfdp.clipping.independence.values import Joined, Rows
from tfdp.clipping.plan.refusals import WAY_OUT
from tfdp.errors import PrivacyError


def examine(walk, graph, given, losses, where, units=(), start=0):
    """Proves that each loss is a function of its own example, and of what is public.

    Args:
        walk: a `Walk`.
        graph: the graph of forward pass and losses.
        given: dict of the names of tensors to what they hold.
        losses: (B,) the losses.
        where: function of an operation of the graph to who made it, for messages.
        units: `Unit`s that may be searched by values where they are not proved.
        start: place of the first operation of the forward pass.

    Returns:
        Names of the operations and units whose values were searched.

    Raises:
        PrivacyError: if examples mix, or if that can be neither proved nor searched.
    """
    body = walk.outermost(graph, given, units, start)
    value = body.value(losses)
    if isinstance(value, Joined):
        raise PrivacyError(_message(value, lambda op: where(walk.outer(op))))
    if isinstance(value, Rows) and value != Rows(0):
        raise PrivacyError(
            f"{where(losses.op)} mixes the examples of a batch: the losses are not in the order "
            f"of the examples. {WAY_OUT}"
        )
    return tuple(walk.searched)


def _message(value, where):
    op, met = value.op, value.met
    who, what = where(op), f"operation {op.name!r} ({op.type}) {value.what}"
    if met not in (None, op):
        what += f", and operation {met.name!r} ({met.type}) passes the result to each example"
    if value.known:
        return f"{who} mixes the examples of a batch: {what}. {WAY_OUT}"
    return (
        f"{who} may mix the examples of a batch: {what}, and tests on random values could not "
        "show that it keeps them apart. Compute it for each example by itself, before sampling, or "
        "build it from other operations. If you know that it treats each example separately, "
        "train with `make_private(model, validate=False)`; the statement lists that as assumed."
    )
