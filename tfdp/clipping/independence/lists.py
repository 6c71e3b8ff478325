"""Rules of operations with lists of tensors, whose axes are those of the tensors stacked."""

from tfdp.clipping.independence.operations import joined_of, unknown
from tfdp.clipping.independence.registry import rule, source
from tfdp.clipping.independence.values import PLACES, PUBLIC, TAKES, One, Rows


@rule("TensorListFromTensor")
def _from_tensor(call):
    return call.values[0]


@rule("TensorListStack")
def _stack(call):
    return call.values[0]


@rule("TensorListLength", "TensorListElementShape")
def _length(call):
    return PUBLIC


@rule("TensorListResize")
def _resize(call):
    rows = call.values[0]
    return rows if rows.axis else unknown(call)


@rule("TensorListGetItem")
def _get(call):
    rows = call.values[0]
    if call.rows() != [(0, rows)]:
        return unknown(call)
    if rows.axis:
        return Rows(rows.axis - 1, rows.inner)
    if rows.inner != 1:
        return call.joined(TAKES)
    return One(call.body.key(call.op.inputs[1]))


@rule("TensorListPopBack")
def _pop(call):
    rows = call.values[0]
    if not rows.axis:
        return call.joined("takes only the last example")
    return [rows, Rows(rows.axis - 1, rows.inner)]


@rule("TensorListSetItem", "TensorListPushBack", thorough=True)
def _set(call):
    before, item = call.values[0], call.values[-1]
    if item is PUBLIC and isinstance(before, Rows) and before.axis:
        different = call.unlike(len(call.values) - 1, Rows(before.axis - 1, before.inner))
        return different or before
    after = None
    if isinstance(item, Rows):
        after = Rows(item.axis + 1, item.inner)
    elif isinstance(item, One) and call.op.type == "TensorListSetItem":
        index = call.op.inputs[1]
        if item.index == call.body.key(index):
            if not call.body.visits_each(index):
                return call.joined(PLACES)
            after = Rows(0)
    if after is not None and before in (PUBLIC, after):
        return (call.unlike(0, after) if before is PUBLIC else None) or after
    return joined_of(call)


@rule("IdentityN", thorough=True)
def _identities(call):
    return list(call.values)


@source("TensorListFromTensor", "TensorListStack")
def _as_stacked(body, op, rows):
    return body.unlike(op.inputs[0], rows)


@source("TensorListGetItem")
def _as_in_list(body, op, rows):
    return body.unlike(op.inputs[0], Rows(rows.axis + 1, rows.inner))


@source("TensorListSetItem", "TensorListPushBack")
def _as_before_and_item(body, op, rows):
    if not rows.axis:
        return PLACES
    item = Rows(rows.axis - 1, rows.inner)
    return body.unlike(op.inputs[0], rows) or body.unlike(op.inputs[-1], item)
