"""Rules of products of matrices: an axis that is summed over joins what stands on it."""

from tfdp.clipping.independence.operations import unknown
from tfdp.clipping.independence.registry import rule
from tfdp.clipping.independence.values import PUBLIC, Rows

_MEET = "multiplies examples with other examples"


@rule("MatMul", "BatchMatMulV2", "BatchMatMulV3")
def _matmul(call):
    is_matmul = call.op.type == "MatMul"
    transposed = ("transpose_a", "transpose_b") if is_matmul else ("adj_x", "adj_y")
    left, right = (call.attribute(name) for name in transposed)
    ranks = call.rank(0), call.rank(1)
    if None in ranks:
        return unknown(call)
    outer = [f"batch {i}" for i in range(max(ranks) - 2, 0, -1)]
    first = outer[len(outer) - (ranks[0] - 2) :] + (["sum", "row"] if left else ["row", "sum"])
    second = outer[len(outer) - (ranks[1] - 2) :] + (
        ["column", "sum"] if right else ["sum", "column"])  # fmt: skip
    return _by_labels(call, (first, second), [*outer, "row", "column"])


@rule("Einsum")
def _einsum(call):
    given, result = call.attribute("equation").decode().split("->")
    given = given.split(",")
    ranks = [call.rank(i) for i in range(len(given))]
    if None in ranks:
        return unknown(call)

    def labels(text, rank):
        if "..." not in text:
            return list(text)
        before, after = text.split("...")
        count = rank - len(before) - len(after)
        return [*before, *(f"batch {i}" for i in range(count, 0, -1)), *after]

    inputs = [labels(text, rank) for text, rank in zip(given, ranks, strict=True)]
    return _by_labels(call, inputs, labels(result, call.op.outputs[0].shape.rank))


def _by_labels(call, inputs, result):
    """The axis of the result that has the label of the examples' axis in every input."""
    label = {inputs[i][v.axis] for i, v in call.rows()}
    inner = {v.inner for _, v in call.rows()}
    if len(label) > 1 or len(inner) > 1:
        return call.joined(_MEET)
    (label,), (inner,) = label, inner
    if label not in result or any(axes.count(label) > 1 for axes in (*inputs, result)):
        return call.joined("sums over the examples of the batch")
    for i, axes in enumerate(inputs):
        if call.values[i] is PUBLIC and label in axes:
            different = call.unlike(i, Rows(axes.index(label), inner))
            if different is not None:
                return different
    return Rows(result.index(label), inner)
