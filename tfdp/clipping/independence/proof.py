"""The verdict on a step: each loss is proved to be one example's own, or the step is refused."""

from tfdp.clipping.independence.values import PUBLIC, Joined, Rows, is_of_examples
from tfdp.clipping.plan.refusals import WAY_OUT
from tfdp.errors import PrivacyError


def examine(walk, graph, given, losses, where, units=(), start=0, probes=()):
    """Proves that each loss is a function of its own example, and of what is public.

    At a probe that holds nothing of the examples it proves more: that row i changes loss i alone.
    There the gradient of a row is taken for that of its example, whoever looks at the row.

    Args:
        walk: a `Walk`.
        graph: the graph of forward pass and losses.
        given: dict of the names of tensors to what they hold.
        losses: (B,) the losses.
        where: function of an operation of the graph to who made it, for messages.
        units: `Unit`s that may be searched by values where they are not proved.
        start: place of the first operation of the forward pass.
        probes: tensors (B, ...) at which gradients of single examples are taken.

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
    for probe in probes:
        _refuse_other_axes(body.value(probe), probe, where)
    public = [probe for probe in probes if body.value(probe) is PUBLIC]
    if public:
        given = given | {probe.name: Rows(0) for probe in public}
        value = walk.outermost(graph, given, units, start).value(losses)
        if value != Rows(0):
            raise PrivacyError(_message_of_rows(public, value, lambda op: where(walk.outer(op))))
    return tuple(walk.searched)


def _refuse_other_axes(value, probe, where):
    if is_of_examples(value) and value != Rows(0):
        raise PrivacyError(
            f"{where(probe.op)} does not have the examples of the batch along its first axis, "
            "though that axis is as long as the batch: its rows would be taken for examples. "
            "Transpose its inputs, so that the examples come first."
        )


def _message_of_rows(public, value, where):
    layers = ", ".join(dict.fromkeys(where(probe.op) for probe in public))
    what = ""
    if isinstance(value, Joined):
        what = f" (in operation {value.op.name!r}, {value.op.type}, which {value.what})"
    return (
        f"{layers} was called on a tensor that is the same whatever the examples are and has as "
        f"many rows as the batch, and an example uses rows of other examples{what}. A row's "
        "gradient would be taken for its example's, and clipping would not bound what one example "
        "changes. Make the tensor without the batch axis, for example of a fixed number of rows; "
        "for negatives there is `tfdp.layers.SharedNegatives`."
    )


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
