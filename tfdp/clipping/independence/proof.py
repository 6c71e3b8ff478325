"""The verdict on a step: each loss is proved to be one example's own, or the step is refused."""

from tfdp.clipping.independence.values import Joined, Rows
from tfdp.clipping.independence.walk import Walk
from tfdp.clipping.refusals import WAY_OUT
from tfdp.errors import PrivacyError


def examine(graph, inputs, losses, batch_size, where, units=()):
    """Proves that each loss is a function of its own example, and of what is public.

    Args:
        graph: the graph of forward pass and losses.
        inputs: its tensors of examples, each of which stands on their first axis.
        losses: (B,) the losses.
        batch_size: B.
        where: function of an operation of the graph to who made it, for messages.
        units: `Unit`s that may be searched by values where they are not proved.

    Returns:
        Names of the operations and units whose values were searched.

    Raises:
        PrivacyError: if examples mix, or if that can be neither proved nor searched.
    """
    walk = Walk(batch_size)
    body = walk.outermost(graph, {t.name: Rows(0) for t in inputs}, units)
    value = body.value(losses)
    if isinstance(value, Joined):
        raise PrivacyError(_message(value, lambda op: where(walk.outer(op))))
    if isinstance(value, Rows) and value != Rows(0):
        raise PrivacyError(
            f"{where(losses.op)} mixes the examples of a batch: the losses are not in the order of "
            f"the examples. {WAY_OUT}"
        )
    return tuple(walk.searched)


def _message(value, where):
    op, met = value.op, value.met
    who, what = where(op), f"operation {op.name!r} ({op.type}) {value.what}"
    if met not in (None, op):
        what += f", and operation {met.name!r} ({met.type}) brings that to each example"
    if value.known:
        return f"{who} mixes the examples of a batch: {what}. {WAY_OUT}"
    return (
        f"{who} may mix the examples of a batch: {what}, and running it on random values could not "
        "show that it keeps them apart. Compute it in the data before they are sampled, or build "
        "it of other operations. If you know that each example is treated by itself, "
        "`make_private(model, validate=False)` trains, and the statement lists that as assumed."
    )
