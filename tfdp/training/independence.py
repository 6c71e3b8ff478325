"""Whether each example's gradient is its own, found by numbers (MATH.md section 2).

A few rows of a batch run through the model as a step would run them, eagerly, and three times more
with all but some of them replaced. What a step is made of, for the rows that stayed, must be the
same each time: inputs and outputs of every recorded call, losses, gradients at the outputs. The
random generators start from the same state, so that random layers draw the same. Beside that the
gradient of one example's loss at the rows of the others must be exactly zero, at the inputs, at
the outputs of every call and at the outputs of the model.

It costs four forward passes and seven backward passes, none of them to a weight, on `ROWS`
examples, whatever the size of the batch and of the tables, once for each `compile`.
"""

import dataclasses

import keras
import numpy as np
import tensorflow as tf

from tfdp.clipping import WAY_OUT, presence
from tfdp.clipping.execution import Execution, run_recorded
from tfdp.errors import PrivacyError
from tfdp.training.preflight import batch_size_of
from tfdp.training.step import check_losses

#: Examples of a check. No power of two: layers that shift rows by one would end where they began.
ROWS = 7
_KEPT = 3
_TOLERANCE = 1e-4
#: What the statement lists where the check was not made, or could not see everything.
NOT_CHECKED = (
    "the examples of a batch do not depend on each other, in the model and in its loss: this was "
    "not checked"
)
NOT_REPEATABLE = (
    "layers that draw random numbers of their own treat each example by itself: their results "
    "could not be compared"
)


def check_independence(model, x, y, sample_weight):
    """Refuses a model or a loss by which the examples of a batch change each other's gradients.

    Args:
        model: a compiled `DPModel`.
        x, y, sample_weight: eager tensors of at least two examples, of which the first `ROWS` are
            watched and the rest take their places. Padding, if any, comes last.

    Returns:
        Whether all results could be compared; not where a layer draws random numbers otherwise
        than from a `keras.random.SeedGenerator`.

    Raises:
        PrivacyError: if there is one.
    """
    generator = np.random.default_rng()
    count = int(batch_size_of(x))
    base = np.arange(ROWS) % count
    plan = model.plan(_rows(x, base))
    order = generator.permutation(ROWS)
    # Others of all kinds, copies of one, and padding if there is some.
    fills = [generator.integers(min(ROWS, count - 1), count, ROWS), 0, count - 1]
    data = (x, y, sample_weight)
    first = _observe(model, plan, *(_rows(t, base) for t in data), generator.permutation(ROWS))
    unrepeatable = set()
    for fill, kept in zip(fills, (order[:3], order[3:6], order[[6, 0, 3]]), strict=True):
        chosen = np.where(np.isin(np.arange(ROWS), kept), base, fill)
        other = _observe(model, plan, *(_rows(t, chosen) for t in data), [])
        changed = _changed(first, other, kept, unrepeatable)
        if changed and not unrepeatable:
            again = _observe(model, plan, *(_rows(t, base) for t in data), [])
            unrepeatable = {key for key, _ in _differences(first, again, np.arange(ROWS))}
            changed = _changed(first, other, kept, unrepeatable)
        if changed:
            raise PrivacyError(f"{_where(model, first, changed)} {WAY_OUT}")
    _refuse_foreign_gradients(model, first)
    return not unrepeatable


@dataclasses.dataclass
class _Event:
    """A tensor that a step is made of, with the examples on its first axis."""

    what: str  # "input", "output", "loss" or "gradient"
    place: object
    call: object  # CallRecord, or None
    value: tf.Tensor

    @property
    def key(self):
        return self.what, self.place


@dataclasses.dataclass
class _Observation:
    events: dict  # by their keys, in order
    gradients: list  # (where, [(row i, gradient of its loss there)])


class _Watching(Execution):
    """Watches the outputs of every call, not only those where the step needs gradients."""

    def run(self, record, run):
        outputs = super().run(record, run)
        for tensor in _floats(outputs):
            self.tape.watch(tensor)
        return outputs


def _observe(model, plan, x, y, sample_weight, rows):
    """Runs a few examples as a step would; keeps the gradients of the losses of some `rows`."""
    # Keras looks for the values of variables with regularizers in the scope alone.
    regularized = [(v, v.value) for v in model.trainable_variables if v.regularizer is not None]
    there = presence(sample_weight, ROWS)
    inputs = _floats(x)
    with tf.GradientTape(persistent=True, watch_accessed_variables=False) as tape:
        for tensor in inputs:
            tape.watch(tensor)
        execution = _Watching(model, plan, tape, ROWS)
        with keras.StatelessScope([]):  # random generators start anew each time
            outputs = run_recorded(execution, x)
        with tape.stop_recording():
            check_losses(model, x, y, sample_weight, outputs)
        with keras.StatelessScope(regularized):  # metrics of the losses are not counted
            losses = model.compute_loss(x, y, outputs, sample_weight, training=True)
        total = tf.reduce_sum(tf.where(there, losses, tf.zeros_like(losses)))
        each = {i: losses[i] for i in [int(i) for i in rows if there[int(i)]][:_KEPT]}
    events = _events_of_calls(execution.root, plan)
    watched = [("the inputs", t) for t in inputs]
    watched += [
        (f"the outputs of layer {e.call.layer.name!r}", e.value)
        for e in events
        if e.what == "output" and e.value.dtype.is_floating
    ]
    events.append(_Event("loss", (), None, losses))
    probes = [(u, t) for u in execution.recorded for t in u.probes]
    calls = {call.key: call for call in execution.root.subtree()}
    gradients = tape.gradient(total, [t for _, t in probes])
    for n, ((unit, _), gradient) in enumerate(zip(probes, gradients, strict=True)):
        if gradient is not None:
            gradient = tf.convert_to_tensor(gradient)
            events.append(_Event("gradient", n, calls[unit.unit.key], gradient))
    watched += [(f"the outputs of layer {u.unit.layer.name!r}", t) for u, t in probes]
    watched += [("the outputs of the model", t) for t in _floats(outputs)]
    found = {i: tape.gradient(loss, [t for _, t in watched]) for i, loss in each.items()}
    foreign = [
        (what, [(i, g[k]) for i, g in found.items() if g[k] is not None])
        for k, (what, _) in enumerate(watched)
    ]
    return _Observation({event.key: event for event in events}, foreign)


def _events_of_calls(call, plan):
    """Inputs and outputs that have the batch axis, in the order in which they came about."""
    if call.key not in plan.aligned:
        return []
    inputs, outputs = plan.aligned[call.key]
    found = _aligned(call, "input", (call.args, call.kwargs), inputs)
    for child in call.children:
        found += _events_of_calls(child, plan)
    return found + _aligned(call, "output", call.outputs, outputs)


def _aligned(call, what, structure, aligned):
    tensors = [t for t in tf.nest.flatten(structure) if isinstance(t, tf.Tensor)]
    if len(tensors) != len(aligned):
        return []
    return [
        _Event(what, (call.key, n), call, t)
        for n, (t, has_axis) in enumerate(zip(tensors, aligned, strict=True))
        if has_axis and t.shape.rank and t.shape[0] == ROWS
    ]


def _changed(first, other, kept, unrepeatable):
    """The first event that differs in rows that were kept, and by how much; None if none does."""
    for key, by in _differences(first, other, kept):
        if key not in unrepeatable:
            return key, by
    return None


def _differences(first, other, kept):
    for key, event in first.events.items():
        by = _difference(event.value, other.events[key].value, kept) if key in other.events else 0
        if by:
            yield key, by


def _difference(a, b, kept):
    """0 if the rows are equal but for rounding, else by how much they differ."""
    a, b = (t.numpy()[kept] if t.dtype != tf.bfloat16 else tf.cast(t, tf.float32).numpy()[kept]
            for t in (a, b))  # fmt: skip
    if a.shape != b.shape:  # as long as the longest row: what both have must be equal
        common = tuple(slice(min(sizes)) for sizes in zip(a.shape, b.shape, strict=True))
        a, b = a[common], b[common]
    if not np.issubdtype(a.dtype, np.floating):
        return float(np.mean(a != b))
    scale = np.max(np.abs(a), initial=1e-6, where=np.isfinite(a))
    if np.allclose(a, b, rtol=_TOLERANCE, atol=_TOLERANCE * scale, equal_nan=True):
        return 0.0
    by = np.abs(a - b)
    return float(np.max(by, initial=0.0, where=np.isfinite(by))) or np.inf


def _where(model, first, changed):
    key, by = changed
    event = first.events[key]
    found = f"of an example changed by {by:.3g} when only other examples were replaced."
    if event.what == "loss":
        return f"The loss of model {model.name!r} mixes the examples of a batch: that {found}"
    name = f"layer {event.call.layer.name!r} ({type(event.call.layer).__name__})"
    if event.what == "output":
        return f"L{name[1:]} mixes the examples of a batch: the output {found}"
    what = "input" if event.what == "input" else "gradient"
    preposition = "before" if event.what == "input" else "after"
    return (
        f"Model {model.name!r} or its loss mixes the examples of a batch, {preposition} {name}: "
        f"the {what} there {found}"
    )


def _refuse_foreign_gradients(model, observation):
    # The last place is the nearest to what mixes.
    for what, gradients in reversed(observation.gradients):
        for i, gradient in gradients:
            values = tf.cast(tf.convert_to_tensor(gradient), tf.float32).numpy()
            foreign = np.nan_to_num(np.delete(values, i, axis=0))
            if values.shape[0] == ROWS and np.any(foreign):
                who = "The loss of model" if what == "the outputs of the model" else "Model"
                raise PrivacyError(
                    f"{who} {model.name!r} mixes the examples of a batch: the gradient of one "
                    f"example's loss at {what} of other examples is {np.max(np.abs(foreign)):.3g} "
                    f"and must be 0. {WAY_OUT}"
                )


def _rows(structure, chosen):
    return tf.nest.map_structure(lambda t: None if t is None else tf.gather(t, chosen), structure)


def _floats(structure):
    return [
        t for t in tf.nest.flatten(structure) if isinstance(t, tf.Tensor) and t.dtype.is_floating
    ]
