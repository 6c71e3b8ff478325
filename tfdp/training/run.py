"""The begin and the end of a run of training: what is checked before, and what is charged."""

import dataclasses
import secrets

import numpy as np
import tensorflow as tf

from tfdp import accounting
from tfdp._compat.keras import is_tracked
from tfdp.accounting.charges.notes import Notes
from tfdp.clipping.recording import trained_variables
from tfdp.data.provenance import dataset_tags
from tfdp.data.provenance.origins import Origin
from tfdp.data.samplers import drawn_batches
from tfdp.data.sampling import kept_order
from tfdp.data.sources.in_memory import origin_of_weights
from tfdp.data.sources.missing_values import warn_of_nan
from tfdp.distribution import checks, host_selection
from tfdp.errors import PrivacyError
from tfdp.experimental.tpu import resident_models
from tfdp.optimizers import DPOptimizer
from tfdp.optimizers.from_data import steps_of
from tfdp.runtime.external_table import is_external
from tfdp.training import claims, plain_training
from tfdp.training.budget_stop import BudgetStop, with_callbacks
from tfdp.training.building import build_ahead
from tfdp.training.checks import advice, caveats, independence, own_steps, preflight
from tfdp.training.checks.first_rows import is_dataset
from tfdp.training.claims import run_of
from tfdp.training.row_selection import trace_again_if_chosen_anew
from tfdp.training.weights import other_reads
from tfdp.training.whole_passes import refuse_longer_epochs, whole_passes

_NOTHING = Notes()
_LOOP = Notes(
    assumptions=(
        "the loop around `training_batches` does not give the model other weights that learned "
        "from these records",
    )
)


def refuse_uncompiled(model):
    """Refuses to train a model of which it is not known how.

    Raises:
        ValueError: if `compile` was not called.
    """
    if not model.compiled:
        raise ValueError(
            f"Model {model.name!r} is not compiled, so it has no optimizer. Call "
            "`model.compile(tfdp.optimizers.DPOptimizer(...), loss=...)` first."
        )


def begin(model, x, y, callbacks, kwargs, notes=_NOTHING):
    """Checks data and model, and begins the run that `claims.claim` has made room for.

    Args:
        model: the `DPModel`.
        x, y, callbacks, kwargs: as given to `fit`; kwargs may be changed.
        notes: `Notes` of whoever takes the steps.

    Returns:
        The data and the callbacks to train with.

    Raises:
        PrivacyError, BudgetError: as `DPModel.fit`.
    """
    refuse_uncompiled(model)
    own_steps.charge_own_step(model)
    own_steps.refuse_other_optimizer(model)
    other_reads.refuse_charged(model)
    private = isinstance(model.optimizer, DPOptimizer)
    begin_run = _begin_private_run if private else _begin_plain_run
    preflight.check_class_weight(kwargs.get("class_weight"))
    notes |= caveats.of_callbacks(callbacks)
    notes |= caveats.of_class_weight(kwargs.get("class_weight"))
    return begin_run(model, x, y, callbacks, kwargs, notes)


def _begin_private_run(model, x, y, callbacks, kwargs, notes):
    optimizer, strategy = model.optimizer, model.distribute_strategy
    # Python state may have changed since the last run, and a step may be traced anew.
    model._plans.clear()
    model.examined_eagerly.clear()
    sampling = preflight.sampling_of_fit(optimizer, x, y, kwargs)
    drawn_batches.refuse_used_draw(sampling, model.charge_history)
    epochs = (kwargs.get("epochs") or 1) - (kwargs.get("initial_epoch") or 0)
    drawn_batches.refuse_second_pass(sampling, epochs, kwargs.get("steps_per_epoch"))
    kept_order.refuse_more_passes(sampling, epochs, kwargs.get("steps_per_epoch"))
    kept_order.refuse_other_order(sampling, x)
    refuse_longer_epochs(sampling, kwargs.get("steps_per_epoch"))
    refuse_unknown_variables(model)
    checks.check_strategy(strategy, optimizer)
    checks.check_data(strategy, x, sampling)
    if not is_dataset(x):  # else the sampler has looked
        warn_of_nan((x, y, kwargs.get("sample_weight")))
    steps = kwargs.get("steps_per_epoch") or sampling.steps_per_epoch
    checks.check_executions(strategy, model.steps_per_execution, steps)
    has_rows = host_selection.check_selected(x, model)
    notes = Notes(not_covered=(caveats.TRAINING_METRICS,)) | notes
    notes |= preflight.notes_of_data(model, x)
    notes |= caveats.of_held_out(sampling, kwargs)
    origin = _origin_of(x, y, kwargs)
    notes |= Notes(assumptions=origin.assumptions)
    x = preflight.apply_class_weight(x, kwargs)
    notes |= preflight.check_rules(model, x, y, kwargs.get("sample_weight"))
    notes |= independence.notes_of(model.examined.values())  # of steps that are traced already
    notes |= caveats.of_model(model) | caveats.of_optimizer(optimizer)  # now it is built
    plain_training.refuse_noise_alone(model, x, y, kwargs)
    x = checks.padded(x, strategy.num_replicas_in_sync, optimizer.rows_per_unit)
    x = resident_models.prepare(model, x, callbacks, kwargs)
    _charge_releases(model, origin)
    notes |= Notes(assumptions=model.weight_origin.assumption())
    optimizer.charging.begin(sampling, strategy, notes)
    model.weight_origin.begin()
    model.bind_layers()
    trace_again_if_chosen_anew(model)
    optimizer.refresh_entropy(strategy)
    run_of(model).rows_are_checked = has_rows
    build_ahead(model, x, y)
    drawn_batches.mark_as_trained(sampling)
    steps = optimizer.steps or steps_of(
        sampling, kwargs.get("epochs"), kwargs.get("steps_per_epoch")
    )
    advice.warn_before_training(model, steps)
    watch = [] if optimizer.selection is None else [advice.SelectionWatch()]
    own = [*watch, BudgetStop(optimizer), *whole_passes(sampling)]
    return x, with_callbacks(callbacks, own)


def _origin_of(x, y, kwargs):
    """The `Origin` of all that a run is given: what the data and their weights were made with."""
    given = [y, *map(kwargs.get, ("sample_weight", "class_weight"))]
    weights = origin_of_weights(kwargs.get("sample_weight"))
    return Origin.all_of([dataset_tags.origin_of(x), Origin.of(given), weights])


def _charge_releases(model, origin):
    """Charges what was released before the run; `origin` is that of its data."""
    model.join_histories()
    other_reads.refuse_charged_data(model, origin)
    model.charge_releases(origin.releases)


def _begin_plain_run(model, x, y, callbacks, kwargs, notes):
    resident_models.refuse_training_otherwise(model)
    origin = _origin_of(x, y, kwargs)
    notes |= Notes(assumptions=origin.assumptions)
    x = preflight.apply_class_weight(x, kwargs)
    _charge_releases(model, origin)
    mechanism = plain_training.mechanism_of_fit(model, x, y, notes, kwargs)
    model.join_histories()  # again: the checks have built the model
    model.plain_charging.begin(mechanism)
    plain_training.refuse_beyond_budget(model, mechanism, kwargs)
    x = checks.padded(x, model.distribute_strategy.num_replicas_in_sync)
    build_ahead(model, x, y)
    model.weight_origin.begin()
    if isinstance(mechanism, accounting.charges.mechanisms.ForwardNoise):
        run_of(model).trained = _ids(trained_variables(model))
        callbacks = with_callbacks(callbacks, whole_passes(mechanism.sampling))
    return x, callbacks


def end(model):
    """Ends a run, or what was left of it when it was refused; nobody knows what batches follow."""
    run = claims.release(model)
    model.join_histories()  # variables may have been made by the run
    model.weight_origin.end()
    if run.charging is not None:
        run.charging.end()  # not with the other workers: one may be gone
    else:
        model.plain_charging.begin(plain_training.mechanism_outside_fit(model))


def refuse_unknown_variables(model):
    """Refuses to train variables that the optimizer was not built with.

    Raises:
        ValueError: if layers were unfrozen since `compile`, and their variables are in no state.
    """
    optimizer, variables = model.optimizer, trained_variables(model)
    new = [v for v in variables if not (is_external(v) or is_tracked(optimizer, v))]
    if optimizer.built and new:
        raise ValueError(
            "Layers were unfrozen after the optimizer was built, so it would not train them. "
            "After every change of `trainable`, call `compile` again, with a new DPOptimizer. "
            f"Received: {[v.path for v in new]}"
        )


def refuse_other_variables(model):
    """Refuses a step that trains other variables than those whose gradients were looked at.

    Raises:
        PrivacyError: if layers were frozen or unfrozen since a run with forward noise began.
    """
    run = run_of(model)
    if run is not None and run.trained not in (None, _ids(trained_variables(model))):
        raise PrivacyError(
            "Layers were frozen or unfrozen during `fit`, but the forward noise was checked and "
            "charged for the variables that were trainable when `fit` began. End `fit`, change "
            "`trainable`, compile again and call `fit` again."
        )


def _ids(variables):
    return {id(v) for v in variables}


def single_batches(model, batches):
    """What `DPModel.training_batches` gives."""
    if not isinstance(batches, tf.data.Dataset):
        raise PrivacyError(
            "Argument `batches` must be a tf.data.Dataset made by tfdp.data, or one that "
            f"`tfdp.data.declare_sampling` describes. Received: {type(batches)}"
        )
    private = isinstance(model.optimizer, DPOptimizer)
    refuse_uncompiled(model)
    run, steps = claims.claim(model), None
    try:
        batches, _ = begin(model, batches, None, None, {"epochs": None}, _LOOP)
        run.is_fit = False
        for batch in batches:
            _refuse_other_steps(model, run, steps)
            if run_of(model) is not run:
                raise PrivacyError(
                    "Another run of this model has begun, so tfdp can no longer charge steps to "
                    "this run. Finish one `training_batches` before you begin the next."
                )
            if private and model.optimizer.charging.allowed <= 0:
                return
            if private:
                model.optimizer.charging.look_again()
                # A step that raised has not taken the batch either, wherever it did.
                if not run.batch_is_trained:
                    kept_order.refuse_left_out(model.charging.mechanism.sampling)
            run.batch, run.batch_is_trained = batch, False
            steps = model.charging.steps_of_run
            yield batch
    finally:
        if run_of(model) is run:  # and not what began since
            try:
                _refuse_other_steps(model, run, steps)
            finally:
                end(model)


def _refuse_other_steps(model, run, steps):
    """Refuses to go on after steps that did not come by `train_on_batch`, and charges them.

    Args:
        model: the model.
        run: its `Run`.
        steps: how many steps the run had when it gave its last batch; None before the first one.

    Raises:
        PrivacyError: if there were some: they are charged as steps on data of which nobody knows
            how they were drawn.
    """
    if steps is None:
        return
    others = model.charging.steps_of_run - steps - (run.batch is None)
    if others <= 0:
        return
    mechanism = model.charging.mechanism
    entries = [accounting.charges.mechanisms.not_private()]
    if getattr(mechanism, "sampling", None) is not None:
        lost = {"sampling", "correlation"} & vars(mechanism).keys()
        unknown = dataclasses.replace(mechanism, **dict.fromkeys(lost))
        entries = unknown.entries(others, secrets.token_hex(8))
    for entry in entries:
        model.charge_history.charge(entry)
    raise PrivacyError(
        f"{others} steps were taken without `train_on_batch` since the last batch of "
        "`training_batches`. The accounting assumes at most one step on each batch, and none on "
        "other data. tfdp charges these steps as steps on data of unknown origin. Pass each batch "
        "to `train_on_batch`, once."
    )


def refuse_unknown_batch(model, x, y, sample_weight):
    """Refuses a step of `train_on_batch` that nobody could charge truthfully.

    Raises:
        PrivacyError: for a batch of unknown origin with a budget, while a run goes on that it
            would be charged as, or for the second step on a batch.
    """
    claims.refuse_busy_optimizer(model, model.optimizer)
    run = run_of(model)
    if run is not None:
        if run.is_fit or not _is_batch(run.batch, x, y, sample_weight):
            raise PrivacyError(
                "This is not a batch of the current run, or the model has already trained on it. "
                "The accounting assumes at most one step on each batch. Give `train_on_batch` all "
                "parts of each batch of `training_batches`, once. Do not call it in a callback of "
                "`fit`."
            )
        run.batch = None
        return
    if isinstance(model.optimizer, DPOptimizer) and model.optimizer.budget is not None:
        raise PrivacyError(
            "tfdp does not know how this batch was drawn, so it cannot keep the budget. Train "
            "with `fit`, or take the batches from `model.training_batches(batches)`, where "
            "`batches` come from tfdp.data."
        )


def _is_batch(batch, x, y, sample_weight):
    """Whether the arguments are the parts of a batch, or hold the same."""
    if batch is None:
        return False
    drawn = [t for t in tf.nest.flatten(tuple(batch)) if t is not None]
    given = [t for t in tf.nest.flatten((x, y, sample_weight)) if t is not None]
    return len(drawn) == len(given) and all(
        a is b or np.array_equal(np.asarray(a), np.asarray(b))
        for a, b in zip(drawn, given, strict=True)
    )
