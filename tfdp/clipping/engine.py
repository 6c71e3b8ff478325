"""One forward pass, one backward pass to the layer outputs, norms, factors, clipped sums."""

import dataclasses
from collections.abc import Callable

import tensorflow as tf

from tfdp.clipping.in_parts import GradientsInParts
from tfdp.clipping.plan.counts import advances_of
from tfdp.clipping.plan.planning import PlannedCall
from tfdp.clipping.plan.refusals import CALLS_DIFFER, warn_of_still_variables
from tfdp.clipping.probes import Probe, copy_of, with_probes
from tfdp.clipping.recording import (
    Recorder,
    call_model,
    current_graph,
    is_seed_state,
    trained_variables,
)
from tfdp.clipping.rules import fallback
from tfdp.clipping.shared import SharedFactors
from tfdp.clipping.sums.factors import clip_factors, shares_of_layers
from tfdp.clipping.sums.gradients import clipped_sums_of, variable_gradient
from tfdp.clipping.sums.rule_results import contributions_of
from tfdp.clipping.sums.surviving_rows import table_name
from tfdp.clipping.sums.units import of_units, unit_mask
from tfdp.errors import PrivacyError
from tfdp.runtime.strategies import compiled_by_xla


@dataclasses.dataclass(eq=False)
class RecordedCall:
    """A planned call, as it ran: its inputs, where gradients are needed, and what its rule kept."""

    planned: PlannedCall
    args: tuple
    kwargs: dict
    probes: list
    kept: list = dataclasses.field(default_factory=list)
    seeds: list = dataclasses.field(default_factory=list)
    counts: list = dataclasses.field(default_factory=list)  # variables, and what they were
    drawn_at_once: bool = False
    training: bool | None = None


class Execution(Recorder):
    """A forward pass that keeps what planned calls need: `recorded`, beside the calls."""

    def __init__(self, model, plan, tape, batch_size):
        super().__init__(model)
        self.plan = plan
        self.tape = tape
        self.batch_size = batch_size
        self.recorded = []
        self._opaque = False

    def by_example(self):
        """Recorded calls whose gradients are those of single examples."""
        return [c for c in self.recorded if not (c.planned.uses or c.planned.scores)]

    def probes(self):
        """Where these gradients are taken: row i is to be that of example i."""
        return [probe for call in self.by_example() for probe in call.probes]

    def run(self, call, run):
        planned = None if self._opaque else self.plan.calls.get(call.key)
        if planned is None:
            return run(*call.args, **call.kwargs)
        recorded = RecordedCall(planned, call.args, call.kwargs, [], training=call.training)
        self.recorded.append(recorded)

        def mark(tensor):
            if planned.broadcast:
                shape = [self.batch_size, *tensor.shape[-2:]]
                tensor = tf.broadcast_to(tensor, shape)
            tensor = copy_of(tensor)
            self.tape.watch(tensor)
            recorded.probes.append(tensor)
            return tensor

        if planned.rule is not None:
            probe = Probe(mark)
            recorded.kept = probe.kept
            return planned.rule.call(call.layer, run, call.args, call.kwargs, probe)
        recorded.counts = [
            (v, tf.convert_to_tensor(v.value)) for v in self.plan.advances if not is_seed_state(v)
        ]
        self._opaque = True
        try:
            outputs = fallback.run(recorded, run, self.batch_size, compiled_by_xla(self.model))
        finally:
            self._opaque = False
        return with_probes(outputs, mark)


def record_forward(model, plan, tape, x, batch_size):
    """Runs the training-mode forward pass once, recording what the plan needs.

    The states of random generators and counts advance as in any forward pass; no other state
    changes.

    Args:
        plan: from `make_clipping_plan`.
        tape: a `tf.GradientTape(watch_accessed_variables=False)` that is recording.
        x: inputs.
        batch_size: number of examples, static or scalar tensor.

    Returns:
        (outputs of the model, the `Execution`).
    """
    execution = Execution(model, plan, tape, batch_size)
    return run_recorded(execution, x), execution


def run_recorded(execution, x):
    """The outputs of the model that an `Execution` is made for; see `record_forward`."""
    model = execution.model
    with execution.recording() as scope:
        outputs = call_model(model, x)
    recorded = {id(one.planned) for one in execution.recorded}
    if recorded != {id(planned) for planned in execution.plan.calls.values()}:
        raise PrivacyError(f"Model {model.name!r} {CALLS_DIFFER}")
    advances = {id(v) for v in advances_of(model, scope)}
    for variable, value in scope.updates.values():
        if id(variable) in advances:
            _refuse_inner(variable, value)
            variable.assign(value)
    return outputs


def _refuse_inner(variable, value):
    """Refuses the state of a generator that was made in a loop or a branch, out of reach here."""
    if tf.is_symbolic_tensor(value) and value.graph is not current_graph():
        raise PrivacyError(
            f"The random generator {variable.path!r} draws inside a loop or a branch of a layer "
            "that has no weights there, so tfdp cannot advance it. Draw all numbers at once "
            "before the loop. Or use the layer's weights inside the loop: tfdp then runs the "
            "layer for each example separately."
        )


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


def backward(model, plan, x, losses_of: Callable, example_mask, rows_per_unit=None, check=None):
    """Runs the model once and differentiates the examples' losses at the layer outputs.

    Args:
        plan: its `ClippingPlan`.
        x: inputs.
        losses_of: function of the outputs that gives (B,) losses, each from its own example.
        example_mask: (B,) bool; padding is False.
        rows_per_unit: k, if k rows after each other are one unit of privacy, whose gradient is the
            sum of theirs; None if each row is one.
        check: function of the `Execution` and the losses, called before gradients are taken.

    Returns:
        A `Backward`.
    """
    units = unit_mask(example_mask, rows_per_unit)
    batch_size = (
        example_mask.shape[0] if example_mask.shape[0] is not None else tf.shape(example_mask)[0]
    )
    deep = any(planned.scores for planned in plan.calls.values())
    with tf.GradientTape(persistent=deep, watch_accessed_variables=False) as tape:
        outputs, execution = record_forward(model, plan, tape, x, batch_size)
        losses = losses_of(outputs)
        if check is not None:
            check(execution, losses)
        losses.shape.assert_is_compatible_with([example_mask.shape[0]])
        total = tf.reduce_sum(tf.where(example_mask, losses, tf.zeros_like(losses)))
    everything = execution.recorded
    recorded, probes = execution.by_example(), execution.probes()
    with tf.name_scope("backward"):
        found = tape.gradient(total, probes)
    _warn_of_unconnected(recorded, iter(found))
    gradients = iter(
        tf.zeros_like(probe) if gradient is None else gradient
        for probe, gradient in zip(probes, found, strict=True)
    )
    found = {id(call): [next(gradients) for _ in call.probes] for call in recorded}
    shared = SharedFactors(everything, found)

    def together(contribution, variable=None):
        is_table = variable is not None and table_name(variable) is not None
        return of_units(contribution, example_mask, rows_per_unit, marks_padding=is_table)

    in_parts = GradientsInParts(tape, everything, shared, together) if deep else None
    by_variable, groups = {}, {}
    for call in everything:
        for variable in call.planned.variables if call.planned.scores else ():
            by_variable.setdefault(id(variable), [])
            groups.setdefault(id(variable), call.planned.layer)
        if call.planned.scores:
            continue
        if call.planned.uses:
            pairs = shared.contributions(call)
        elif call.planned.rule is None:
            pairs = fallback.contributions(call, found[id(call)], compiled_by_xla(model))
        else:
            pairs = contributions_of(call, found[id(call)])
        for variable, contribution in pairs:
            by_variable.setdefault(id(variable), []).append(together(contribution, variable))
            groups.setdefault(id(variable), call.planned.layer)

    def combine(variable, contributions):
        if deep and in_parts.covers(variable):
            return in_parts.gradient(variable, contributions)
        return variable_gradient(variable, contributions)

    combined = [
        (i, combine(v, by_variable[id(v)]), groups[id(v)])
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
        "every example, because the losses have no derivative with respect to them",
    )


def squared_norms(result, scales=None):
    """For each group of variables, (U,) float64 squared norms and bounds of their error.

    Args:
        result: from `backward`.
        scales: factor of the gradient of each trainable variable, float32 numbers; None for 1.
    """
    norms, bounds = {}, {}
    for i, gradient, group in result.gradients:
        norm, bound = gradient.squared_norm()
        if scales is not None:
            square = tf.square(tf.cast(scales[i], tf.float64))
            norm, bound = norm * square, bound * square
        norms.setdefault(group, []).append(norm)
        bounds.setdefault(group, []).append(bound)
    order = list(norms)
    return [tf.add_n(norms[g]) for g in order], [tf.add_n(bounds[g]) for g in order], order


def _scaled(factors, scales):
    """Clip factors times scales: one tensor for equal ones, as what is made of it is kept by it."""
    found = {}
    for factor, scale in zip(factors, scales, strict=True):
        key = id(factor), scale
        if key not in found:
            found[key] = factor if scale == 1.0 else factor * scale
    return [found[id(factor), scale] for factor, scale in zip(factors, scales, strict=True)]


def clipped_sums(model, result, clip_norm, clipping, layer_shares=None, scales=None):
    """The sum over units of c_i·s·g_i for each trainable variable (MATH.md section 1).

    Formal guarantees: adding or removing one unit (an example, or a person) changes the sum of the
    clipped gradients, seen as one vector, by at most clip_norm·(1 + 1e-6) in l2 norm. The norms are
    raised by their rounding bound before the factors are taken, so that float32 cancellation cannot
    break this. The sum itself is rounded to float32: how that follows one of B units adds up to
    B·2⁻²³ of clip_norm, for which `noise.grid.sum_rounding` raises the noise (docs/noise.md,
    "Limits"). Parts of a gradient that cancel are rounded there one by one: norms are raised by
    what keeps each of them below 1,300·clip_norm.

    Args:
        result: from `backward`.
        clip_norm: C.
        clipping: see `clip_factors`.
        layer_shares: see `shares_of_layers`.
        scales: s, as for `squared_norms`: what is clipped, and summed, are the scaled gradients.

    Returns:
        One tensor, tf.IndexedSlices or None (unused) for each trainable variable.
    """
    with tf.name_scope("norms"):
        norms, bounds, order = squared_norms(result, scales)
        raised = [tf.maximum(n, 0.0) + b for n, b in zip(norms, bounds, strict=True)]
        shares = shares_of_layers([layer.name for layer in order], layer_shares)
        factors, finite = clip_factors(raised, result.unit_mask, clip_norm, clipping, shares)
        factor_of = dict(zip(order, factors, strict=True))
    sums = [None] * len(trained_variables(model))
    with tf.name_scope("clipped_sums"):
        gradients = [gradient for _, gradient, _ in result.gradients]
        factors = [factor_of[group] for _, _, group in result.gradients]
        if scales is not None:
            places = [i for i, _, _ in result.gradients]
            factors = _scaled(factors, [scales[i] for i in places])
        found = clipped_sums_of(gradients, factors, finite)
        for (i, _, _), total in zip(result.gradients, found, strict=True):
            sums[i] = total
    return sums
