"""What a DPOptimizer stores of itself: settings, variables and charges, nothing of the noise."""

import keras

from tfdp import accounting

_CHARGES = "charges"
_OBJECTS = ("selection", "embedding_optimizer", "noise_correlation")


def config_of(optimizer, plain):
    """The arguments of a DPOptimizer as JSON holds them; those named in `plain` as they are."""
    budget, period = optimizer.budget, optimizer.period
    objects = {"optimizer": optimizer.inner_optimizer}
    objects |= {name: getattr(optimizer, name) for name in _OBJECTS}
    return {
        **{name: keras.saving.serialize_keras_object(one) for name, one in objects.items()},
        "budget": [budget.epsilon, budget.delta] if budget else None,
        "noise_multiplier": optimizer.charging.requested_noise_multiplier,
        "period": None if period is None else list(period),
        **{name: getattr(optimizer, name) for name in plain},
        "name": optimizer.name,
    }


def arguments_of(config, custom_objects):
    """The arguments that `config_of` wrote."""
    found = dict(config)
    for name in ("optimizer", *_OBJECTS):
        found[name] = keras.saving.deserialize_keras_object(
            found.get(name), custom_objects=custom_objects
        )
    if found["budget"] is not None:
        found["budget"] = accounting.PrivacyBudget(*found["budget"])
    return found


def save(store, variables, charging):
    """Writes variables and charges.

    Args:
        store: of `save_own_variables`.
        variables: the optimizer's own ones.
        charging: its `Charging`.
    """
    for i, variable in enumerate(variables):
        store[str(i)] = variable.numpy()
    store[_CHARGES] = charging.to_bytes()


def load(store, variables, charging):
    """Reads what `save` wrote; what was charged is added to what is known.

    Raises:
        ValueError: for a file of another number of variables.
    """
    if _CHARGES in store:
        charging.merge_bytes(store[_CHARGES][()])
    found = sum(key != _CHARGES for key in store.keys())
    if found != len(variables):
        raise ValueError(
            f"The file holds {found} variables of an optimizer, but this DPOptimizer has "
            f"{len(variables)}: it was saved with another optimizer or another model. "
            "Build and compile the model as it was when it was saved, or load only its "
            "weights, with `load_weights`."
        )
    for i, variable in enumerate(variables):
        variable.assign(store[str(i)])
