"""Products of two factors among gradients that were formed for each example.

A layer without a rule mostly reads its weights in products of matrices. `tf.vectorized_map` then
ends in one product for each example, leftᵀ right, of which the graph holds the factors. Norms and
clipped sums of the factors are cheaper than those of the products, and need no copy of the weight
for each example: what is not read is not computed.
"""

import math

import numpy as np
import tensorflow as tf

from tfdp.clipping.sums.contributions import Layout, OuterProduct, PerExampleGradients

# Operations that keep the values and their order if they keep their number for each example.
_SAME_VALUES = ("Identity", "Reshape", "Squeeze", "ExpandDims", "Sum")


def contributions_in(gradient):
    """The cheapest contributions whose sum is a tensor of per-example gradients.

    Args:
        gradient: (B, *shape) of any float type, from `vectorized_map`.

    Returns:
        List of `OuterProduct` if it is a sum of products, else of one `PerExampleGradients`.
    """
    factored = None
    if tf.is_symbolic_tensor(gradient) and gradient.dtype == tf.float32:
        factored = _factors(gradient)
    if factored is not None:
        shape = gradient.shape[1:]
        layouts = [_layout(shape, left.shape[2], right.shape[2]) for left, right in factored]
        if None not in layouts:
            pairs = zip(factored, layouts, strict=True)
            return [OuterProduct(left, right, layout) for (left, right), layout in pairs]
    return [PerExampleGradients(tf.cast(gradient, tf.float32))]


def _factors(t):
    """Pairs (B, T, p), (B, T, r) whose products leftᵀ right add up to t (B, ...), or None."""
    op = t.op
    if op.type in _SAME_VALUES and _same_size(op.inputs[0], t):
        return _factors(op.inputs[0])
    if op.type in ("AddN", "AddV2") and all(_same_shape(term, t) for term in op.inputs):
        found = [_factors(term) for term in op.inputs]
        return None if None in found else [pair for pairs in found for pair in pairs]
    if op.type == "Transpose" and t.shape.rank == 3:
        return _swapped(*op.inputs)
    if op.type == "BatchMatMulV2":
        return _of_product(t, *op.inputs)
    return None


def _of_product(t, x, y):
    shapes = [x.shape, y.shape, t.shape]
    if any(s.rank != t.shape.rank or s[0] != t.shape[0] for s in shapes) or t.shape.rank < 3:
        return None
    if any(size != 1 for s in shapes for size in s[1:-2]):
        return None
    left = _matrices(x, transposed=not t.op.get_attr("adj_x"))
    right = _matrices(y, transposed=t.op.get_attr("adj_y"))
    return None if None in (left.shape[2], right.shape[2]) else [(left, right)]


def _matrices(x, transposed):
    """(B, 1, ..., 1, m, n) to (B, m, n), or its matrices transposed."""
    x = tf.squeeze(x, axis=list(range(1, x.shape.rank - 2))) if x.shape.rank > 3 else x
    return tf.linalg.matrix_transpose(x) if transposed else x


def _swapped(t, order):
    """The factors of t (B, p, r) with its matrices transposed."""
    order, found = _value(order), _factors(t)
    if order is None or list(order) != [0, 2, 1] or found is None:
        return None
    # Factors of what was reshaped before are factors of other matrices.
    if any((left.shape[2], right.shape[2]) != tuple(t.shape[1:]) for left, right in found):
        return None
    return [(right, left) for left, right in found]


def _value(t):
    """The value of a constant, or of the order that a transposition inside the loop became."""
    of_inputs = {
        "AddV2": np.add,
        "ConcatV2": lambda *parts: np.concatenate(parts[:-1], axis=int(parts[-1])),
        "InvertPermutation": np.argsort,
    }.get(t.op.type)
    if of_inputs is None:
        return tf.get_static_value(t)
    values = [_value(part) for part in t.op.inputs]
    return None if any(value is None for value in values) else of_inputs(*values)


def _same_shape(x, t):
    return x.shape.rank is not None and x.shape.as_list() == t.shape.as_list()


def _same_size(x, t):
    """Whether both are known to have as many numbers for each example, in the same batch."""
    if not x.shape.rank or not t.shape.rank or x.shape[0] != t.shape[0]:
        return False
    mine, theirs = x.shape[1:], t.shape[1:]
    known = mine.is_fully_defined() and theirs.is_fully_defined()
    return known and math.prod(mine) == math.prod(theirs)


def _layout(shape, rows, columns):
    """How matrices (rows, columns) lie in a variable of this shape, or None if not by axes."""
    for split in (*range(1, len(shape)), 0, len(shape)):
        if math.prod(shape[:split]) == rows and math.prod(shape[split:]) == columns:
            return Layout(tuple(range(split)), tuple(range(split, len(shape))))
    return None
