"""What a rule returns, checked for its form when a step is traced."""

import math

from tfdp.clipping.sums.contributions import (
    GatedRows,
    OuterProduct,
    PerExampleGradients,
    Rows,
    SharedRows,
)
from tfdp.errors import PrivacyError

_KINDS = (OuterProduct, Rows, PerExampleGradients)


def contributions_of(recorded, gradients):
    """The (variable, contribution) pairs of a call by its rule, for what the rule covers.

    Args:
        recorded: a `RecordedCall` with a rule.
        gradients: of the summed losses at its probes.

    Raises:
        PrivacyError: for anything but one or more contributions of the right shapes to each of the
            variables that the rule says it covers.
    """
    rule, layer = recorded.planned.rule, recorded.planned.layer
    pairs = rule.contributions_from(layer, recorded.args, recorded.kwargs, gradients, recorded.kept)
    return _checked(recorded.planned, pairs, _KINDS)


def shared_contributions_of(recorded, gradient):
    """As `contributions_of`, of a call on what all examples share, for a `SharedGradient`."""
    rule, layer = recorded.planned.rule, recorded.planned.layer
    pairs = rule.shared_contributions(layer, recorded.args, recorded.kwargs, gradient)
    return _checked(recorded.planned, pairs, (*_KINDS, SharedRows, GatedRows))


def _checked(planned, pairs, kinds):
    where = f"Rule {type(planned.rule).__name__} of layer {planned.layer.name!r}"
    if not isinstance(pairs, (list, tuple)) or not all(
        isinstance(pair, (list, tuple)) and len(pair) == 2 and isinstance(pair[1], kinds)
        for pair in pairs
    ):
        raise PrivacyError(
            f"{where} must return a list of pairs (variable, contribution), each contribution an "
            f"OuterProduct, Rows or PerExampleGradients. Received: {pairs}"
        )
    wanted = {id(v) for v in planned.variables}
    found = [(v, contribution) for v, contribution in pairs if id(v) in wanted]
    missing = wanted - {id(v) for v, _ in found}
    if missing:
        raise PrivacyError(
            f"{where} lists {[v.path for v in planned.variables if id(v) in missing]} in "
            "`variables`, but returned no contribution for it. Return one for each variable, or "
            "remove it from `variables`: the layer then uses the exact fallback."
        )
    for variable, contribution in found:
        _check_shapes(where, variable, contribution)
    return found


def _check_shapes(where, variable, contribution):
    if isinstance(contribution, OuterProduct):
        axes = contribution.layout.rows + contribution.layout.columns
        if sorted(axes) != list(range(len(variable.shape))):
            raise PrivacyError(
                f"{where} returned an OuterProduct for variable {variable.path!r} of shape "
                f"{tuple(variable.shape)}, which is not a matrix with layout "
                f"{contribution.layout}. Give a `layout` that names each axis once, or return "
                "PerExampleGradients."
            )
    for name, wanted in _shapes(variable, contribution).items():
        shape = getattr(contribution, name).shape
        if not shape.is_compatible_with([None, *wanted]):
            sizes = ", ".join("positions" if size is None else str(size) for size in wanted)
            advice = " Without positions use 1." if None in wanted else ""
            raise PrivacyError(
                f"{where} must return {type(contribution).__name__} for variable "
                f"{variable.path!r} with `{name}` of shape (batch, {sizes}).{advice} Received: "
                f"{shape}"
            )


def _shapes(variable, contribution):
    """Dict of attribute to its shape without the batch axis; None is a number of positions."""
    shape = tuple(variable.shape)
    if isinstance(contribution, PerExampleGradients):
        return {"values": shape}
    if isinstance(contribution, Rows):
        return {"ids": (None,), "values": (None, *shape[1:])}
    if isinstance(contribution, GatedRows):
        return {"left": (None, contribution.ids.shape[0]),
                "right": (None, contribution.gate.shape[1])}  # fmt: skip
    if isinstance(contribution, SharedRows):
        return {"left": (None, contribution.ids.shape[0]), "right": (None, *shape[1:])}
    axes = {"left": contribution.layout.rows, "right": contribution.layout.columns}
    return {name: (None, math.prod(shape[a] for a in own)) for name, own in axes.items()}
