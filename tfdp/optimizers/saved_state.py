"""What a DPOptimizer stores of itself: variables and charges, and nothing of the noise."""

_CHARGES = "charges"


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
