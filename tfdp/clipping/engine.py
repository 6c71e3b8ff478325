"""One forward pass, one backward pass to the layer outputs, norms, factors, clipped sums."""

import dataclasses
from collections.abc import Callable

import tensorflow as tf

from tfdp.clipping import fallback
from tfdp.clipping.execution import record_forward
from tfdp.clipping.factors import clip_factors, shares_of_layers
from tfdp.clipping.gradients import clipped_sums_of, variable_gradient
from tfdp.clipping.recording import trained_variables
from tfdp.clipping.refusals import warn_of_still_variables
from tfdp.clipping.rule_results import contributions_of
from tfdp.clipping.surviving_rows import table_name
from tfdp.clipping.units import of_units, unit_mask
from tfdp.runtime.strategies import compiled_by_xla


@dataclasses.dataclass
class Backward:
    """What one pass over a batch leaves: everything needed for norms and clipped sums.

    Attributes:
        outputs: the model's outputs.
        losses: (B,) losses of the examples.
        example_mask: (B,) bool.
        unit_mask: (U,) bool, which units are there: examples, or persons of several.
        gradients: for each trainable variable that is used, (index, gradient object, layer); the
            gradients are those of the units. Variables of one layer are a group.
    """

    outputs: object
    losses: tf.Tensor
    example_mask: tf.Tensor
    unit_mask: tf.Tensor
    gradients: list


def backward(model, plan, x, losses_of: Callable, example_mask, rows_per_unit=None):
    """Runs the model once and differentiates the examples' losses at the layer outputs.

    Args:
        model: the Keras model.
        plan: its `ClippingPlan`.
        x: inputs.
        losses_of: function of the outputs that gives (B,) losses, each from its own example.
        example_mask: (B,) bool; padding is False.
        rows_per_unit: k, if k rows after each other are one unit of privacy, whose gradient is the
            sum of theirs; None if each row is one.

    Returns:
        A `Backward`.
    """
    units = unit_mask(example_mask, rows_per_unit)
    batch_size = (
        example_mask.shape[0] if example_mask.shape[0] is not None else tf.shape(example_mask)[0]
    )
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        outputs, recorded = record_forward(model, plan, tape, x, batch_size)
        losses = losses_of(outputs)
        losses.shape.assert_is_compatible_with([example_mask.shape[0]])
        total = tf.reduce_sum(tf.where(example_mask, losses, tf.zeros_like(losses)))
    probes = [probe for call in recorded for probe in call.probes]
    with tf.name_scope("backward"):
        found = tape.gradient(total, probes)
    _warn_of_unconnected(recorded, iter(found))
    gradients = iter(
        tf.zeros_like(probe) if gradient is None else gradient
        for probe, gradient in zip(probes, found, strict=True)
    )
    by_variable, groups = {}, {}
    for call in recorded:
        s = [next(gradients) for _ in call.probes]
        if call.planned.rule is None:
            pairs = fallback.contributions(call, s, compiled_by_xla(model))
        else:
            pairs = contributions_of(call, s)
        for variable, contribution in pairs:
            is_table = table_name(variable) is not None
            together = of_units(contribution, example_mask, rows_per_unit, marks_padding=is_table)
            by_variable.setdefault(id(variable), []).append(together)
            groups.setdefault(id(variable), call.planned.layer)
    combined = [
        (i, variable_gradient(v, by_variable[id(v)]), groups[id(v)])
        for i, v in enumerate(trained_variables(model))
        if id(v) in by_variable
    ]
    return Backward(outputs, losses, example_mask, units, combined)


def _warn_of_unconnected(recorded, gradients):
    calls = [(call.planned.variables, [next(gradients) for _ in call.probes]) for call in recorded]
    reached = {
        id(v) for variables, found in calls for v in variables
        if any(gradient is not None for gradient in found)
    }  # fmt: skip
    warn_of_still_variables(
        [v for variables, _ in calls for v in variables if id(v) not in reached],
        "every example, since the losses do not depend on them by anything that has a derivative",
    )


def squared_norms(result):
    """For each group of variables, (U,) float64 squared norms and bounds of their error."""
    norms, bounds = {}, {}
    for _, gradient, group in result.gradients:
        norm, bound = gradient.squared_norm()
        norms.setdefault(group, []).append(norm)
        bounds.setdefault(group, []).append(bound)
    order = list(norms)
    return [tf.add_n(norms[g]) for g in order], [tf.add_n(bounds[g]) for g in order], order


def clipped_sums(model, result, clip_norm, clipping, layer_shares=None):
    """The sum over units of c_i·g_i for each trainable variable (MATH.md section 1).

    Formal guarantees: adding or removing one unit (an example, or a person) changes the sum of the
    clipped gradients, seen as one vector, by at most clip_norm·(1 + 1e-6) in l2 norm. The norms are
    raised by their rounding bound before the factors are taken, so that float32 cancellation cannot
    break this. The sum itself is made in float32: how its rounding follows one of B units adds up
    to B·2⁻²³ of clip_norm, for which `noise.grid.sum_rounding` raises the noise (docs/noise.md,
    "What does not hold").

    Args:
        model: the Keras model.
        result: from `backward`.
        clip_norm: C.
        clipping: see `clip_factors`.
        layer_shares: see `shares_of_layers`.

    Returns:
        One tensor, tf.IndexedSlices or None (unused) for each trainable variable.
    """
    with tf.name_scope("norms"):
        norms, bounds, order = squared_norms(result)
        raised = [tf.maximum(n, 0.0) + b for n, b in zip(norms, bounds, strict=True)]
        shares = shares_of_layers([layer.name for layer in order], layer_shares)
        factors, finite = clip_factors(raised, result.unit_mask, clip_norm, clipping, shares)
        factor_of = dict(zip(order, factors, strict=True))
    sums = [None] * len(trained_variables(model))
    with tf.name_scope("clipped_sums"):
        gradients = [gradient for _, gradient, _ in result.gradients]
        factors = [factor_of[group] for _, _, group in result.gradients]
        found = clipped_sums_of(gradients, factors, finite)
        for (i, _, _), total in zip(result.gradients, found, strict=True):
            sums[i] = total
    return sums
