"""Rules of look-ups and of scattered updates, whose indices may lead each example to itself."""

import numpy as np
import tensorflow as tf

from tfdp.clipping.independence import search
from tfdp.clipping.independence.operations import joined_of, unknown
from tfdp.clipping.independence.registry import rule
from tfdp.clipping.independence.values import PUBLIC, TAKES, One, Rows


def one_of(call, index):
    """One example, by an index that is public: the counter of a loop."""
    if index is None or call.values[0].inner != 1:
        return call.joined(TAKES)
    body, tensor = index
    return One(body.key(tensor))


_WIDE = {tf.int32, tf.int64}


@rule("GatherV2", "ResourceGather")
def _gather(call):
    is_v2 = call.op.type == "GatherV2"
    axis = call.constant(2) if is_v2 else 0
    batch = call.attribute("batch_dims")
    ranks = [_rank_of_parameters(call), call.rank(1)]
    if axis is None or None in ranks:
        return unknown(call)
    axis = int(axis) % ranks[0]
    batch = batch % ranks[1] if batch < 0 else batch
    values = [v if isinstance(v, Rows) else None for v in call.values[:2]]
    places = set()
    for i, rows in enumerate(values):
        if rows is None:
            continue
        if rows.axis < batch:
            different = call.unlike(1 - i, rows) if values[1 - i] is None else None
            if different is not None:
                return different
            places.add((rows.axis, rows.inner))
        elif i == 1:
            places.add((axis + rows.axis - batch, rows.inner))
        elif rows.axis < axis:
            places.add((rows.axis, rows.inner))
        elif rows.axis > axis:
            places.add((rows.axis - 1 + ranks[1] - batch, rows.inner))
        elif ranks[1] == 0 and call.values[1] is PUBLIC:
            return one_of(call, (call.body, call.op.inputs[1]))
        else:
            return call.joined(TAKES)
    shared = [v is not None and v.axis < batch for v in values]
    if len(places) > 1 or (None not in values and not all(shared)):
        return call.joined("combines examples with other examples")
    return Rows(*places.pop())


def _rank_of_parameters(call):
    if call.op.type == "ResourceGather":
        return 1 + call.op.outputs[0].shape.rank - call.rank(1)
    return call.rank(0)


@rule("GatherNd", thorough=True)
def _gather_nd(call):
    given, indices = call.values
    depth, rank = call.shape(1)[-1], call.rank(1)
    if depth is None or rank is None or call.rank(0) is None:
        return unknown(call)
    if given is PUBLIC and isinstance(indices, Rows):
        return indices if indices.axis < rank - 1 else unknown(call)
    if not isinstance(given, Rows):
        return joined_of(call)
    if given.axis >= depth:
        if indices is PUBLIC:
            return Rows(rank - 1 + given.axis - depth, given.inner)
        return joined_of(call)
    return _by_own_places(call, 1, given, call.shape(0)) or call.joined(TAKES)


def _by_own_places(call, i, rows, shape):
    """Where the examples are in an array of indices, (..., K), that lead each example to itself.

    Args:
        i: which input holds the indices.
        rows: where the examples are in what is indexed.
        shape: its shape.

    Returns:
        A `Rows`, or None.
    """
    body, indices = call.body.root(call.op.inputs[i])
    while indices.op.type == "Cast" and {indices.dtype, indices.op.inputs[0].dtype} <= _WIDE:
        body, indices = body.root(indices.op.inputs[0])
    last, op = indices.shape.rank - 1, indices.op
    if op.type not in ("Pack", "ConcatV2"):
        return None
    parts = list(op.inputs)
    if op.type == "Pack":
        if op.get_attr("axis") % indices.shape.rank != last:
            return None
    elif body.constant(parts.pop()) not in (-1, last) or any(t.shape[-1] != 1 for t in parts):
        return None
    for axis in range(last):
        own = Rows(axis, rows.inner)
        fits = [
            body.value(t) == own or (body.value(t) is PUBLIC and not body.unlike(t, own))
            for t in parts
        ]
        fits[rows.axis] = body.value(parts[rows.axis]) is PUBLIC and (
            body.is_place(parts[rows.axis], axis))  # fmt: skip
        if all(fits) and indices.shape[axis] == shape[rows.axis]:
            return own
    return None


@rule("ScatterNd", thorough=True)
def _scatter_nd(call):
    """Updates that each example makes in its own place of zeros."""
    shape = call.op.outputs[0].shape
    inner = call.values[1].inner if isinstance(call.values[1], Rows) else 1
    found = _by_own_places(call, 0, Rows(0, inner), shape) if shape.rank else None
    if found is None or call.values[1] not in (PUBLIC, found):
        return joined_of(call)
    different = call.unlike(1, found) if call.values[1] is PUBLIC else None
    return different or Rows(0, inner)


@rule("TensorScatterUpdate", "TensorScatterAdd", "ScatterNdNonAliasingAdd", thorough=True)
def _tensor_scatter(call):
    given, indices, updates = call.values
    depth = call.shape(1)[-1]
    if depth is None or not isinstance(given, (Rows, type(PUBLIC))):
        return joined_of(call)
    inner = updates.inner if isinstance(updates, Rows) else 1
    rows = given if isinstance(given, Rows) else Rows(0, inner)
    own = None
    if rows.axis >= depth and indices is PUBLIC:
        own = Rows(call.rank(1) - 1 + rows.axis - depth, rows.inner)
    elif rows.axis < depth:
        own = _by_own_places(call, 1, rows, call.shape(0))
    if own is None or updates not in (PUBLIC, own):
        return joined_of(call)
    for i, value, where in ((0, given, rows), (2, updates, own)):
        different = call.unlike(i, where) if value is PUBLIC else None
        if different is not None:
            return different
    return rows


@rule("UnsortedSegmentSum", "UnsortedSegmentMax", "UnsortedSegmentMin", "UnsortedSegmentProd")
def _segments(call):
    """Segments that are always the same, each of one example."""
    rows, ids = call.values[0], call.constant(1)
    if ids is None or call.rows() != [(0, rows)]:
        return unknown(call)
    if rows.axis >= ids.ndim:
        return Rows(rows.axis - ids.ndim + 1, rows.inner)
    count = call.op.outputs[0].shape[0]
    if ids.ndim != 1 or not count or count % call.batch_size:
        return unknown(call)
    found = Rows(0, count // call.batch_size)
    owner = search.owners(len(ids), rows, call.batch_size)
    if ids.min() < 0 or ids.max() >= count:
        return unknown(call)
    own = np.array_equal(owner, search.owners(count, found, call.batch_size)[ids])
    patterns = {tuple(ids[owner == i] - i * found.inner) for i in range(call.batch_size)}
    if own and len(patterns) == 1:
        return found
    return call.joined("sums over the examples of the batch")
