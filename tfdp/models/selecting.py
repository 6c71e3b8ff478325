"""The step between gradients and norms of a model with sparse tables: which rows survive."""

from tfdp.clipping import PrivacyError, activated_rows, restrict


def restrict_to_survivors(model, result):
    """Selects rows and sets the gradients of all others to zero, before norms are taken.

    Args:
        model: a `DPModel` compiled with a `DPOptimizer`.
        result: a `Backward` of the whole batch.

    Returns:
        A `Backward`; the same one if the optimizer has no `selection`.

    Raises:
        PrivacyError: if no table is looked up, or one is used otherwise than by look-ups.
    """
    optimizer = model.optimizer
    if optimizer.selection is None:
        return result
    activated = activated_rows(model, result)
    survivors = optimizer.select_rows(activated, model.trainable_variables, result.present)
    return restrict(result, survivors)


def refuse_compilation(optimizer, jit_compile):
    """XLA needs to know how many rows survive before any has been drawn."""
    if optimizer.selection is not None and jit_compile is True:
        raise PrivacyError(
            "`jit_compile=True` cannot be combined with `selection`: the number of rows that a "
            "step touches is drawn in the step. Leave `jit_compile` out."
        )
