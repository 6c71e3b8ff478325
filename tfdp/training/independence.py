"""Whether each example's gradient is its own, found by numbers (MATH.md section 2).

A few rows of a batch run through the model as a step would run them, and once more with about half
of them replaced. What a step is made of, for the rows that stayed, must be the same both times:
inputs and outputs of every recorded call, losses, and gradients at the inputs, at the outputs of
every call and at the outputs of the model. The random generators start from the same state, so
that random layers draw the same; where there are none, the rows that stay come to stand in other
places of the batch, as they would without one of the others. Beside that only some of the rows that
stayed enter the sum that is differentiated, more in the second run than in the first: at all
other rows its gradient must be exactly zero. Once more variables that are zero before training hold
other values, or they would hide what they multiply.

It costs four forward and four backward passes, six where there are such variables, none of them to
a weight, on `ROWS` examples, whatever the size of the batch and of the tables, once for each run.
They run eagerly, which is less work than to trace them, or traced where a loop has many steps.
"""

import dataclasses

import keras
import numpy as np
import tensorflow as tf

from tfdp._compat.keras import all_layers
from tfdp.clipping import fallback
from tfdp.clipping.dataflow import handles_of
from tfdp.clipping.execution import Execution, run_recorded
from tfdp.clipping.losses import example_mask_of
from tfdp.clipping.refusals import WAY_OUT, warn_of_still_variables
from tfdp.clipping.tracing import variables_of_metrics
from tfdp.errors import PrivacyError
from tfdp.training import opened_gates
from tfdp.training.compared_runs import compare, difference, numbers, without_rounding
from tfdp.training.preflight import batch_size_of
from tfdp.training.replaced_rows import ROWS
from tfdp.training.step import check_losses

# Steps of a loop from which on to trace two runs takes less time than to make them eagerly.
_EAGER_STEPS = 40
_VALUES_AT_ONCE = 2**22
#: What the statement lists where the check was not made, or could not see everything.
NOT_CHECKED = (
    "the examples of a batch do not depend on each other, in the model and in its loss: this was "
    "not checked"
)
NOT_REPEATABLE = (
    "layers that draw random numbers of their own treat each example by itself: their results "
    "could not be compared"
)

NOT_OPENED = (
    "what variables that are zero before training let through later treats each example by itself: "
    "with other values of theirs the model or its loss failed, so that this was not checked"
)


def check_independence(model, x, y, sample_weight):
    """Refuses a model or a loss by which the examples of a batch change each other's gradients.

    Args:
        model: a compiled `DPModel`.
        x, y, sample_weight: eager tensors of at least two examples, of which the first `ROWS` are
            watched and the rest take their places. Padding, if any, comes last.

    Returns:
        Sentences of what could not be compared: `NOT_REPEATABLE` where a layer draws random numbers
        otherwise than from a `keras.random.SeedGenerator`, or `NOT_OPENED`.

    Raises:
        PrivacyError: if there is one.
    """
    count = int(batch_size_of(x))
    plan = model.clipping_plan(_rows(x, np.arange(ROWS) % count))
    observe = _observer(model, plan)

    def run(chosen, differentiated):
        return observe(*(_rows(t, chosen) for t in (x, y, sample_weight)), differentiated)

    # What is drawn for a row belongs to its place; and bfloat16 rounds a product by its blocks.
    halves = any(layer.compute_dtype == "bfloat16" for layer in all_layers(model))
    may_move = not (plan.draws or halves)
    compared = _refuse_mixing(model, run, count, may_move)
    found = () if not compared.unrepeatable else (NOT_REPEATABLE,)
    _warn_of_zero_gradients(model, [*compared.first.values(), *compared.second.values()])
    return tuple(dict.fromkeys(found + _refuse_hidden_mixing(model, run, count, may_move, plan)))


def _refuse_hidden_mixing(model, run, count, may_move, plan):
    """As `_refuse_mixing`, of what variables hide that are zero; sentences of what is assumed."""
    read_by_losses = [v for read in model.checked_losses.values() for v in read]
    counted = {id(h) for v in variables_of_metrics(model) for h in handles_of(v)}
    read = [v for v in (*plan.reads, *read_by_losses) if id(v.handle) not in counted]
    zeros = opened_gates.closed(read)
    if not zeros:
        return ()
    try:
        with opened_gates.opened(zeros):
            compared = _refuse_mixing(model, run, count, may_move, draws=1)
    except PrivacyError as error:
        raise PrivacyError(
            f"{error} (Variables that are zero held other values: training may change them.)"
        ) from error
    except Exception:  # an assertion about such a variable, or anything else of the user's
        return (NOT_OPENED,)
    return () if not compared.unrepeatable else (NOT_REPEATABLE,)


def _refuse_mixing(model, run, count, may_move, draws=2):
    """Refuses what changes between two runs and should not; the `Compared` of those."""
    compared = compare(run, count, may_move)
    for _ in range(draws - 1):
        if not compared.changed:
            # What others change a little is, in one draw of 500, the same by chance.
            compared = compare(run, count, may_move)
    if compared.changed and compared.has_moved:
        compared = without_rounding(run, count, compared)
    if compared.changed:
        raise PrivacyError(f"{_where(model, compared.first, compared.changed)} {WAY_OUT}")
    _refuse_foreign_gradients(model, compared.first, compared.rows.first_differentiated)
    _refuse_foreign_gradients(model, compared.second, compared.rows.second_differentiated)
    _refuse_other_computations(compared.first)
    return compared


@dataclasses.dataclass
class _Event:
    """A tensor that a step is made of, with the examples on its first axis."""

    what: str  # "input", "output", "loss", "gradient" or, of one example, "again"
    place: object  # of a gradient: what it is taken at, for messages, and which of those
    call: object  # LayerCall; PlannedCall where gradients are needed; None at other places
    value: object

    @property
    def key(self):
        return self.what, self.place


class _Watching(Execution):
    """Watches the outputs of every call, not only those where the step needs gradients."""

    def run(self, call, run):
        outputs = super().run(call, run)
        if call.key in self.plan.aligned:
            for tensor in _floats(outputs):
                self.tape.watch(tensor)
        return outputs


def _observer(model, plan):
    """A function of (x, y, sample_weight, rows to differentiate) to a dict of events by key."""
    if plan.loop_steps <= _EAGER_STEPS and not plan.needs_graph:
        return lambda *args: {e.key: e for e in _observe(model, plan, *args)}
    traced = []

    def observe(*args):
        traced[:] = _observe(model, plan, *args)
        return [event.value for event in traced]

    function = tf.function(observe, autograph=False)

    def run(*data):
        values = function(*data[:-1], tf.constant(data[-1]))
        return {e.key: dataclasses.replace(e, value=v) for e, v in zip(traced, values, strict=True)}

    return run


def _observe(model, plan, x, y, sample_weight, differentiated):
    """Runs a few examples as a step would, and differentiates the losses of some; all events."""
    # Keras looks for the values of variables with regularizers in the scope alone.
    regularized = [(v, v.value) for v in model.trainable_variables if v.regularizer is not None]
    inputs = _floats(x)
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        for tensor in inputs:
            tape.watch(tensor)
        execution = _Watching(model, plan, tape, ROWS)
        with keras.StatelessScope([]):  # random generators start anew each time
            outputs = run_recorded(execution, x)
        with tape.stop_recording():
            check_losses(model, x, y, sample_weight, outputs)
        with keras.StatelessScope(regularized):  # metrics of the losses are not counted
            losses = model.compute_loss(x, y, outputs, sample_weight, training=True)
        example_mask = example_mask_of(sample_weight, ROWS) & differentiated
        total = tf.reduce_sum(tf.where(example_mask, losses, tf.zeros_like(losses)))
    events = _events_of_calls(execution.root, plan)
    places = [("the inputs", t, None) for t in inputs]
    places += [
        (_place_of(e.call.layer), e.value, None)
        for e in events
        if e.what == "output" and e.value.dtype.is_floating
    ]
    places += [
        (_place_of(u.planned.layer), t, u.planned) for u in execution.recorded for t in u.probes
    ]
    places += [("the outputs of the model", t, None) for t in _floats(outputs)]
    gradients = tape.gradient(total, [t for _, t, _ in places])
    events.append(_Event("loss", (), None, losses))
    # The last place is the nearest to what mixes.
    taken = enumerate(zip(places, gradients, strict=True))
    for n, ((where, tensor, planned), gradient) in reversed(list(taken)):
        if gradient is not None and tensor.shape.rank and tensor.shape[0] == ROWS:
            gradient = tf.convert_to_tensor(gradient)
            events.append(_Event("gradient", (where, n), planned, gradient))
    for call in execution.recorded:
        if call.planned.rule is None:
            for n, pair in enumerate(fallback.run_again(call, 0)):
                events.append(_Event("again", (call.planned.key, n), call.planned, tf.stack(pair)))
    return events


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


def _where(model, first, changed):
    key, by = changed
    event = first[key]
    found = (
        f"of an example changed by {by:.3g} when only the other examples, and its place among "
        "them, changed."
    )
    if event.what == "loss":
        return f"The loss of model {model.name!r} mixes the examples of a batch: that {found}"
    if event.what == "gradient":
        return (
            f"Model {model.name!r} or its loss mixes the examples of a batch: the gradient at "
            f"{event.place[0]} {found}"
        )
    name = f"layer {event.call.layer.name!r} ({type(event.call.layer).__name__})"
    if event.what == "output":
        return f"L{name[1:]} mixes the examples of a batch: the output {found}"
    return (
        f"Model {model.name!r} mixes the examples of a batch, before {name}: the input there "
        f"{found}"
    )


def _refuse_foreign_gradients(model, events, differentiated):
    for event in events.values():
        if event.what != "gradient":
            continue
        foreign = numbers(event.value)[~differentiated]
        foreign = np.nan_to_num(foreign)
        if np.any(foreign):
            where, _ = event.place
            who = "The loss of model" if where == "the outputs of the model" else "Model"
            raise PrivacyError(
                f"{who} {model.name!r} mixes the examples of a batch: the gradient of the losses "
                f"of some examples at {where} of others is {np.max(np.abs(foreign)):.3g} and must "
                f"be 0. {WAY_OUT}"
            )


def _refuse_other_computations(events):
    """Refuses calls without a rule that compute something else when they are run again."""
    for event in events.values():
        if event.what != "again" or event.value.dtype.size < 4:  # bfloat16 rounds by the batch
            continue
        by = difference(event.value[0], event.value[1], [0], [0])
        if by:
            layer = event.call.layer
            raise PrivacyError(
                f"Layer {layer.name!r} ({type(layer).__name__}) has no clipping rule, so it is run "
                "again for each example, and then its outputs were others: they changed by "
                f"{by:.3g}. They must depend on nothing but its arguments, its weights, and "
                "`keras.random.SeedGenerator`s of its own. Give it what the model sets on it "
                "between its calls as an argument of `call`."
            )


def _warn_of_zero_gradients(model, events):
    """Warns of layers at which every gradient of either run was zero.

    Not where a matrix or a factor of the model is zero throughout: behind one that training has yet
    to move (LoRA's second) all gradients are zero at first.
    """
    at_probes = [e for e in events if e.what == "gradient" and e.call is not None]
    moved = {id(v) for e in at_probes if np.any(numbers(e.value)) for v in e.call.variables}
    still = {id(v): v for e in at_probes for v in e.call.variables if id(v) not in moved}
    if not still or any(_is_zero(v) for v in model.trainable_variables if len(v.shape) != 1):
        return
    warn_of_still_variables(
        list(still.values()), f"all of the {ROWS} examples that were watched before training"
    )


def _is_zero(variable):
    """Whether all values are zero; part by part: memory may have no room for a table's copy."""
    values = tf.reshape(variable.value, [-1])
    parts = range(0, values.shape[0], _VALUES_AT_ONCE)
    return not any(np.any(numbers(values[i : i + _VALUES_AT_ONCE])) for i in parts)


def _place_of(layer):
    return f"the outputs of layer {layer.name!r}"


def _rows(structure, chosen):
    return tf.nest.map_structure(lambda t: None if t is None else tf.gather(t, chosen), structure)


def _floats(structure):
    return [
        t for t in tf.nest.flatten(structure) if isinstance(t, tf.Tensor) and t.dtype.is_floating
    ]
