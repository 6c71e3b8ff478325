"""What a model with sparse tables does beside: choose rows in a step, and show how many."""

import keras

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


def gradient_size_metric(optimizer):
    """The mean, over the steps of an epoch, of the scalars of sparse tables that receive noise.

    It is made from the survivors alone, which are private. Without a selection it would be the
    size of the tables in every step: there is None.
    """
    return keras.metrics.Mean(name="gradient_size") if optimizer.selection is not None else None


def trace_again_if_chosen_anew(model):
    """A traced step holds the rows that were chosen before it; a new choice needs a new trace."""
    selection = model.optimizer.selection
    if selection is None:
        return
    traced = vars(model).get("_traced_choice")
    vars(model)["_traced_choice"] = selection.version
    if traced not in (None, selection.version):
        model.make_train_function(force=True)
