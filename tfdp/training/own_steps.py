"""Steps of subclasses that have a `train_step` of their own."""

import functools

from tfdp import accounting
from tfdp.errors import PrivacyError
from tfdp.optimizers.run_charging import RunCharging
from tfdp.runtime import replicas

_REACHED = "_tfdp_step_reached"
_CHARGING = "_tfdp_own_charging"
_FUNCTION = "_tfdp_train_function"


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
                f"A `{name}` was assigned to the model itself, where its steps cannot be charged. "
                "Define `train_step` in a subclass of tfdp.models.DPModel."
            )
    if not type(model).make_train_function.__module__.startswith("tfdp."):
        raise PrivacyError(
            f"{type(model).__name__} has a `make_train_function` of its own, whose steps cannot be "
            "charged. Define `train_step` in it instead."
        )
    function = getattr(model, "train_function", None)
    if function is not None and function is not vars(model).get(_FUNCTION):
        raise PrivacyError(
            "A `train_function` was assigned to the model, and its steps cannot be charged. Define "
            "`train_step` in a subclass of tfdp.models.DPModel."
        )
    train_step = type(model).train_step
    if not train_step.__module__.startswith("tfdp.") and not hasattr(train_step, "is_own"):
        type(model).train_step = _charged(train_step)


def known_function(model, function):
    """The function of a model's steps that Keras has made, which the model then knows."""
    vars(model)[_FUNCTION] = model.train_function
    return function


def _charged(train_step):
    @functools.wraps(train_step)
    def step(model, data):
        if _REACHED in vars(model):  # called by another subclass' step
            return train_step(model, data)
        vars(model)[_REACHED] = False
        try:
            return train_step(model, data)
        finally:
            if not vars(model).pop(_REACHED):
                model.join_histories()
                replicas.run_once_per_step(_charging(model).charge_step)

    step.is_own = True
    return step


def reached(model):
    """Called by `DPModel.train_step`, which charges the step.

    Raises:
        PrivacyError: if a step of a subclass comes there twice: it would use one batch for two
            steps, which are not the independent samples that are accounted for.
    """
    if _REACHED not in vars(model):
        return
    if vars(model)[_REACHED]:
        raise PrivacyError(
            f"The `train_step` of {type(model).__name__} calls `super().train_step` twice: two "
            "steps on one batch are not two samples. Call it once."
        )
    vars(model)[_REACHED] = True


def assumptions(model):
    """Sentences for the statement about steps of a model's own, none if it has none."""
    name, found = type(model).__name__, []
    if getattr(type(model).train_step, "is_own", False):
        found.append(f"the `train_step` of {name} uses the data through `super().train_step` only")
    for step in ("test_step", "make_test_function"):
        # `fit` validates by them, and takes what they do to weights for what it did itself.
        module = getattr(getattr(model, step), "__module__", None) or ""
        if not module.startswith(("tfdp.", "keras.")):
            found.append(
                f"the `{step}` of {name} gives the model no weights that learned from these records"
            )
    return tuple(found)


def _charging(model):
    if _CHARGING not in vars(model):
        vars(model)[_CHARGING] = RunCharging(model.charge_history)
        vars(model)[_CHARGING].begin(accounting.mechanisms.NoPrivacy())
    return vars(model)[_CHARGING]
