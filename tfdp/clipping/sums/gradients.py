"""Norms and clipped sums of one variable, from the contributions of every call that used it.

Contributions of several calls, or of layers of different kinds that share the variable, add up
before the norm is taken, cross terms included (MATH.md section 2).
"""

import tensorflow as tf

from tfdp.clipping.sums.contributions import (
    MATRIX,
    GatedRows,
    OuterProduct,
    PerExampleGradients,
    Rows,
    SharedRows,
)
from tfdp.clipping.sums.forms import Outer, PerExampleForm, RowGradients, Tied, only_finite
from tfdp.clipping.sums.gated_rows import GatedRowGradients
from tfdp.clipping.sums.shared_rows import SharedRowGradients
from tfdp.runtime.xla import is_compiling, platform


def variable_gradient(variable, contributions):
    """Combines contributions to one variable into its `Gradient`."""
    rows = [c for c in contributions if isinstance(c, Rows)]
    shared = [c for c in contributions if isinstance(c, SharedRows)]
    outers = [c for c in contributions if isinstance(c, OuterProduct)]
    gradients_by_example = [c for c in contributions if isinstance(c, PerExampleGradients)]
    layouts = {c.layout for c in outers}
    merged_rows = RowGradients(variable, rows) if rows else None
    gated = [c for c in contributions if isinstance(c, GatedRows)]
    if shared or gated:
        if gated:
            (one,) = gated + shared  # which the plan has seen to
            table = GatedRowGradients(variable, one, merged_rows)
        else:
            table = SharedRowGradients(variable, shared, merged_rows)
        if not outers and not gradients_by_example:
            return table
        gradients_by_example.append(PerExampleGradients(table.per_example()))
        rows = []  # they are in it
    one_layout = len(layouts) == 1 and not gradients_by_example
    if rows and not outers and not gradients_by_example:
        return merged_rows
    if one_layout and not rows:
        outer = Outer(variable, outers)
        return outer.per_example() if outer.strategy == "per_example" else outer
    if one_layout and layouts == {MATRIX}:
        return Tied(merged_rows, Outer(variable, outers))
    forms = [Outer(variable, [c]).per_example().values for c in outers]
    forms += [c.values for c in gradients_by_example]
    if rows:
        forms.append(merged_rows.per_example())
    return PerExampleForm(variable, tf.add_n(forms) if len(forms) > 1 else forms[0])


def clipped_sums_of(gradients, factors, finite):
    """`clipped_sum` of each of several gradients; only one look at what is finite for all of them.

    Args:
        gradients: list of `Gradient`.
        factors: list of (B,) factors, one for each gradient.
        finite: (B,) bool.
    """
    pairs = list(zip(gradients, factors, strict=True))
    if not is_compiling() or platform() != "CPU":
        return _sums(pairs, finite)
    # What goes into a product is selected in memory of its own: in a branch that hardly ever runs.
    products = [pair for pair in pairs if pair[0].is_product]
    in_branch = products and tf.cond(
        tf.reduce_all(finite), lambda: _sums(products, None), lambda: _sums(products, finite)
    )
    others = _sums([pair for pair in pairs if not pair[0].is_product], finite)
    in_branch, others = iter(in_branch), iter(others)
    return [next(in_branch if g.is_product else others) for g in gradients]


def _sums(pairs, finite):
    """Clipped sums of (gradient, factors); with `finite` None, all examples are known to be."""
    gradients = [gradient for gradient, _ in pairs]
    if finite is None:
        parts = iter([part for gradient in gradients for part in gradient.parts])
    else:
        parts = iter(only_finite(finite, gradients))
    return [g.sum_of([next(parts) for _ in g.parts], factors) for g, factors in pairs]
