"""Rules of operations that move numbers: shapes and slices."""

import numpy as np

from tfdp.clipping.independence.look_ups import one_of
from tfdp.clipping.independence.operations import aligned, broadcast, unknown
from tfdp.clipping.independence.registry import rule
from tfdp.clipping.independence.values import RESHAPES, TAKES, Rows, axis_after_reshape


@rule(*RESHAPES)
def _reshape(call):
    rows, out = call.values[0], call.op.outputs[0].shape
    if call.rows() != [(0, rows)] or call.rank(0) is None or out.rank is None:
        return unknown(call)
    found = axis_after_reshape(call.shape(0), out, rows, call.batch_size)
    if found is None and None in (*call.shape(0), *out):
        return unknown(call)
    return found or call.joined("merges the axis of the examples with another axis")


@rule("Transpose")
def _transpose(call):
    order, rows = call.constant(1), call.values[0]
    if order is None or call.rows() != [(0, rows)]:
        return unknown(call)
    return Rows([int(a) for a in order].index(rows.axis), rows.inner)


@rule("BroadcastTo")
def _broadcast_to(call):
    rows = call.values[0]
    if call.rows() != [(0, rows)]:
        return unknown(call)
    return Rows(rows.axis + call.op.outputs[0].shape.rank - call.rank(0), rows.inner)


@rule("Tile")
def _tile(call):
    """Copies of an axis after each other leave each place its example."""
    return call.values[0] if call.rows() == [(0, call.values[0])] else unknown(call)


@rule("Pad", "PadV2", "MirrorPad")
def _pad(call):
    widths, rows = call.constant(1), call.values[0]
    if widths is None or call.rows() != [(0, rows)]:
        return unknown(call)
    return rows if not np.any(widths[rows.axis]) else call.joined(TAKES)


@rule("ReverseV2", "Roll", "Cumsum", "Cumprod", "CumulativeLogsumexp")
def _along_axis(call):
    rows, rank = call.values[0], call.rank(0)
    axes = call.constant(2 if call.op.type == "Roll" else 1)
    if axes is None or call.rows() != [(0, rows)]:
        return unknown(call)
    moved = rows.axis in {int(a) % rank for a in np.ravel(axes)}
    return call.joined("moves or adds up values along the examples") if moved else rows


@rule("OneHot")
def _one_hot(call):
    rows = call.values[0]
    if call.rows() != [(0, rows)]:
        return unknown(call)
    axis = call.attribute("axis")
    return Rows(rows.axis + (0 <= axis <= rows.axis), rows.inner)


@rule("ConcatV2")
def _concatenated(call):
    places = range(len(call.op.inputs) - 1)
    axis = call.constant(len(places))
    found = aligned(call, {i: call.rank(i) for i in places})
    if axis is None:
        return unknown(call)
    if not isinstance(found, tuple):
        return found
    rank = call.rank(0)
    rows = Rows(rank - found[0], found[1])
    if int(axis) % rank == rows.axis:
        return call.joined("concatenates along the axis of the examples")
    return rows


@rule("Pack")
def _pack(call):
    found = broadcast(call)
    if not isinstance(found, Rows):
        return found
    axis = call.attribute("axis") % call.op.outputs[0].shape.rank
    return Rows(found.axis + (axis <= found.axis), found.inner)


@rule("Unpack")
def _unpack(call):
    rows = call.values[0]
    axis = call.attribute("axis") % call.rank(0)
    if axis == rows.axis:
        return call.joined(TAKES)
    return Rows(rows.axis - (axis < rows.axis), rows.inner)


@rule("Split", "SplitV")
def _split(call):
    where, given = (0, 1) if call.op.type == "Split" else (2, 0)
    axis, rows = call.constant(where), call.values[given]
    if axis is None or call.rows() != [(given, rows)]:
        return unknown(call)
    return rows if int(axis) % call.rank(given) != rows.axis else call.joined(TAKES)


@rule("Slice")
def _slice(call):
    rows, out = call.values[0], call.op.outputs[0].shape
    if call.rows() != [(0, rows)]:
        return unknown(call)
    size = call.shape(0)[rows.axis]
    return rows if size is not None and out[rows.axis] == size else call.joined(TAKES)


@rule("StridedSlice")
def _strided_slice(call):
    rows = call.values[0]
    if call.rows() != [(0, rows)]:
        return unknown(call)
    masks = {m: call.attribute(f"{m}_mask") for m in
             ("begin", "end", "ellipsis", "new_axis", "shrink_axis")}  # fmt: skip
    count, rank = call.shape(1)[0], call.rank(0)
    before, after = 0, 0  # axes of the input and of the output
    for i in range(count):
        bit = 1 << i
        if masks["ellipsis"] & bit:
            left = rank - before - sum(
                not masks["new_axis"] >> j & 1 for j in range(i + 1, count))  # fmt: skip
            if before <= rows.axis < before + left:
                return Rows(after + rows.axis - before, rows.inner)
            before, after = before + left, after + left
        elif masks["new_axis"] & bit:
            after += 1
        elif before == rows.axis:
            return _slice_of_examples(call, i, after, masks)
        else:
            before += 1
            after += not masks["shrink_axis"] & bit
    return Rows(after + rows.axis - before, rows.inner)


def _slice_of_examples(call, i, axis, masks):
    rows, bit = call.values[0], 1 << i
    begin, end, strides = (call.constant(k) for k in (1, 2, 3))
    size = call.shape(0)[rows.axis]
    if masks["shrink_axis"] & bit:
        return one_of(call, call.body.element(call.op.inputs[1], i))
    first = None if masks["begin"] & bit else begin
    last = None if masks["end"] & bit else end
    if strides is None or (not masks["begin"] & bit and begin is None) or (
        not masks["end"] & bit and end is None):  # fmt: skip
        return call.joined(TAKES)
    taken = slice(first if first is None else int(first[i]), last if last is None else int(last[i]),
                  int(strides[i]))  # fmt: skip
    places = range(size)[taken] if size is not None else ()
    if strides[i] == 1 and len(places) == size:
        return Rows(axis, rows.inner)
    return call.joined(TAKES)


@rule("SpaceToBatchND", "BatchToSpaceND")
def _blocks(call):
    """The blocks of an image become images: the first of each, then the second of each."""
    rows = call.values[0]
    if call.rows() != [(0, rows)]:
        return unknown(call)
    # Of blocks that are put together, each must hold all examples, or some would meet others.
    whole = call.op.outputs[0].shape[0] or 0
    fits = whole and whole % (call.batch_size * rows.inner) == 0
    return rows if rows.axis == 0 and fits else call.joined("joins the examples of the batch")
