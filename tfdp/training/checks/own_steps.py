"""Steps of subclasses that have a `train_step` of their own."""

import functools
import weakref

import tensorflow as tf

from tfdp import accounting
from tfdp.errors import PrivacyError
from tfdp.optimizers.run_charging import RunCharging
from tfdp.runtime import replicas
from tfdp.training.weights import other_reads

_REACHED = "_tfdp_step_reached"
_GIVEN = "_tfdp_step_given"
_CHARGING = "_tfdp_own_charging"
_OPTIMIZER = "_tfdp_compiled_optimizer"
_FUNCTION = "_tfdp_train_function"
# Steps that are charged, of the user's.
_CHARGED = weakref.WeakSet()


def charge_own_step(model):
    """Sees to it that steps which do not come to `DPModel.train_step` cost ε = infinity.

    Called by `compile`, and before every run and single step: a step may be assigned later. What
    calls `super().train_step` is charged there.

    Raises:
        PrivacyError: for a `train_step` that was assigned to the model itself, or steps that do
            not come to `train_step` at all.
    """
    for name in ("train_step", "make_train_function"):
        if name in vars(model):
            raise PrivacyError(
                f"A `{name}` was assigned to the model itself, where tfdp cannot charge its "
                "steps. Define `train_step` in a subclass of tfdp.models.DPModel."
            )
    if _is_own(model, "make_train_function"):
        raise PrivacyError(
            f"{type(model).__name__} has its own `make_train_function`, whose steps tfdp cannot "
            "charge. Define `train_step` instead."
        )
    function = getattr(model, "train_function", None)
    if function is not None and function is not vars(model).get(_FUNCTION):
        raise PrivacyError(
            "A `train_function` was assigned to the model, and tfdp cannot charge its steps. "
            "Define `train_step` in a subclass of tfdp.models.DPModel."
        )
    train_step = type(model).train_step
    if _is_own(model, "train_step") and train_step not in _CHARGED:
        type(model).train_step = _charged(train_step)


def _is_own(model, name, known=("tfdp.",)):
    """Whether a method is of the user's: by the class that has it, too, for `functools.wraps`
    copies the module of a function."""
    owner = next(c for c in type(model).__mro__ if name in vars(c))
    modules = owner.__module__, getattr(vars(owner)[name], "__module__", None) or ""
    return name in vars(model) or not all(module.startswith(known) for module in modules)


def note_compilation(model):
    """Called at the end of `compile`, after which another optimizer may not take over."""
    vars(model)[_OPTIMIZER] = model.optimizer


def refuse_other_optimizer(model):
    """Refuses to train by another optimizer than the one that the model was compiled with.

    Raises:
        PrivacyError: if `model.optimizer` was assigned after steps were traced: they are those of
            the one before, and are charged to its budget.
    """
    other = model.optimizer is not vars(model).get(_OPTIMIZER, model.optimizer)
    if other and getattr(model, "train_function", None) is not None:
        raise PrivacyError(
            "Another optimizer was assigned to the model after `compile`, but its steps would "
            "still use the previous one. Call `model.compile` with the new optimizer. Received: "
            f"optimizer {model.optimizer.name!r}"
        )


def has_own_step(model):
    """Whether a model has a `train_step` of the user's."""
    return _is_own(model, "train_step")


def known_function(model, function):
    """The function of a model's steps that Keras has made, which the model then knows."""
    vars(model)[_FUNCTION] = model.train_function
    return function


def _charged(train_step):
    @functools.wraps(train_step)
    def step(model, data):
        if _REACHED in vars(model):  # called by another subclass' step
            return train_step(model, data)
        vars(model)[_REACHED], vars(model)[_GIVEN] = False, _first(data)
        try:
            with other_reads.noted(model):
                return train_step(model, data)
        finally:
            del vars(model)[_GIVEN]
            if not vars(model).pop(_REACHED):
                model.join_histories()
                replicas.run_once_per_step(_charging(model).charge_step)

    _CHARGED.add(step)
    return step


def _first(data):
    """The first tensor of a batch that has rows; None if there is none."""
    tensors = [t for t in tf.nest.flatten(data) if hasattr(t, "shape")]
    return next((t for t in tensors if tf.TensorShape(t.shape).rank), None)


def reached(model, data):
    """Called by `DPModel.train_step`, which charges the step.

    Args:
        model: the model.
        data: the batch that came there.

    Raises:
        PrivacyError: if a step of a subclass comes there twice: it would use one batch for two
            steps, which are not the independent samples that are accounted for. Or if it hands on
            other rows than it got.
    """
    if _REACHED not in vars(model):
        return
    if vars(model)[_REACHED]:
        raise PrivacyError(
            f"The `train_step` of {type(model).__name__} calls `super().train_step` twice. The "
            "accounting assumes at most one step on each batch. Call it once."
        )
    vars(model)[_REACHED] = True
    _refuse_other_rows(model, vars(model)[_GIVEN], _first(data))


def _refuse_other_rows(model, given, handed_on):
    if given is None or handed_on is None:
        return
    found, rows = handed_on.shape[0], given.shape[0]
    wrong = (
        f"The `train_step` of {type(model).__name__} passes on another number of rows than it "
        "received. A record in two rows would count twice. Pass each row on once. Put several "
        "views of a record into its row, as an extra axis."
    )
    if None in (found, rows):  # known in the step alone
        tf.debugging.assert_equal(tf.shape(handed_on)[0], tf.shape(given)[0], message=wrong)
    elif found != rows:
        raise PrivacyError(f"{wrong} Received: {found} rows passed on, {rows} rows in the batch")


def assumptions(model):
    """Sentences for the statement about steps of a model's own, none if it has none."""
    name, found = type(model).__name__, []
    if _is_own(model, "train_step"):
        found.append(
            f"the `train_step` of {name} uses the data only through `super().train_step`, and "
            "passes it each row once, independently of the other rows"
        )
    for step in ("test_step", "make_test_function", "evaluate"):
        # `fit` validates by them, and takes what they do to weights for what it did itself.
        if _is_own(model, step, ("tfdp.", "keras.")):
            found.append(
                f"the `{step}` of {name} does not give the model weights that learned from these "
                "records"
            )
    return tuple(found)


def _charging(model):
    if _CHARGING not in vars(model):
        vars(model)[_CHARGING] = RunCharging(model.charge_history)
        vars(model)[_CHARGING].begin(accounting.charges.mechanisms.NoPrivacy())
    return vars(model)[_CHARGING]
