"""Steps of subclasses that have a `train_step` of their own."""

import functools

from tfdp.accounting import NoPrivacy
from tfdp.optimizers.run_charging import RunCharging
from tfdp.runtime import replicas

_REACHED = "_tfdp_step_reached"
_CHARGING = "_tfdp_own_charging"


def charged(train_step):
    """The `train_step` of a subclass; a step that does not come to DPModel's costs ε = infinity.

    What calls `super().train_step` is charged there, as often as it does.
    """

    @functools.wraps(train_step)
    def step(model, data):
        if _REACHED in vars(model):  # called by another subclass' step
            return train_step(model, data)
        vars(model)[_REACHED] = False
        try:
            result = train_step(model, data)
        finally:
            came_to_it = vars(model).pop(_REACHED)
        if not came_to_it:
            model.join_histories()
            replicas.once(_charging(model).charge_step)
        return result

    step.is_own = True
    return step


def reached(model):
    """Called by `DPModel.train_step`, which charges the step."""
    if _REACHED in vars(model):
        vars(model)[_REACHED] = True


def assumption(model):
    """The sentence for the statement about a subclass' own step: a tuple of none or one."""
    if not getattr(type(model).train_step, "is_own", False):
        return ()
    name = type(model).__name__
    return (f"the `train_step` of {name} uses the data through `super().train_step` only",)


def _charging(model):
    if _CHARGING not in vars(model):
        vars(model)[_CHARGING] = RunCharging(model.charge_history)
        vars(model)[_CHARGING].begin(NoPrivacy())
    return vars(model)[_CHARGING]
