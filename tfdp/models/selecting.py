"""What a model with sparse tables does beside: choose rows in a step, and show how many."""

import keras
import tensorflow as tf

from tfdp.clipping import PrivacyError, activated_rows, restrict
from tfdp.clipping.recording import all_layers
from tfdp.distribution.host_selection import rows_of_step
from tfdp.layers import SparseEmbedding


def restrict_to_survivors(model, result, chosen=None):
    """Selects rows and sets the gradients of all others to zero, before norms are taken.

    Args:
        model: a `DPModel` compiled with a `DPOptimizer`.
        result: a `Backward` of the whole batch.
        chosen: survivors that were chosen on the host, as in `SelectedInputs`.

    Returns:
        A `Backward`; the same one if the optimizer has no `selection`.

    Raises:
        PrivacyError: if no table is looked up, or one is used otherwise than by look-ups.
    """
    optimizer = model.optimizer
    if optimizer.selection is None:
        return result
    activated = activated_rows(model, result)
    static = bool(model.jit_compile)
    if chosen is None:
        survivors, cut = optimizer.select_rows(
            activated, model.trainable_variables, result.present, static
        )
    else:
        survivors, cut = rows_of_step(model, chosen, static)
    model.selection_metrics.count_cut(cut)
    return restrict(result, survivors)


def allow_compilation(model, optimizer, jit_compile):
    """XLA needs to know how many rows a step touches before any has been drawn.

    Raises:
        PrivacyError: for `jit_compile=True` with a selection of any number of rows.
    """
    if jit_compile is not True:
        return
    if optimizer.selection is not None and not optimizer.selection.is_static:
        raise PrivacyError(
            "`jit_compile=True` needs a number of rows that is known before the step. Give the "
            "selection a `capacity`, as in `AdaFEST(..., capacity=20_000)`, or leave `jit_compile` "
            f"out. Received: selection={optimizer.selection}"
        )
    for layer in all_layers(model):
        if isinstance(layer, SparseEmbedding):
            # Keras compiles no model by itself that holds this layer, and now is asked to.
            layer.supports_jit = True


class SelectionMetrics:
    """What training shows of the rows of its steps, the mean over the steps of an epoch.

    It is made from the survivors alone, which are private. Not among the model's own metrics:
    it has no value in `evaluate`.

    Attributes:
        gradient_size: scalars of sparse tables that receive noise. Without a selection it would
            be the size of the tables in every step, and is not shown.
        rows_cut: survivors beyond the selection's `capacity`, as `PaddedSurvivors.cut`; shown if
            there is one.
    """

    def __init__(self, optimizer):
        selection = getattr(optimizer, "selection", None)
        self._size = self._cut = None
        if selection is not None:
            self._size = keras.metrics.Mean(name="gradient_size")
            if selection.capacity is not None:
                self._cut = keras.metrics.Mean(name="rows_cut")

    def count_size(self, size):
        if self._size is not None:
            self._size.update_state(size)

    def count_cut(self, cut):
        if self._cut is not None:
            self._cut.update_state(tf.cast(cut, tf.float32))

    def results(self):
        """Dict of name to value."""
        return {m.name: m.result() for m in self._metrics()}

    def reset(self):
        for metric in self._metrics():
            metric.reset_state()

    def _metrics(self):
        return [m for m in (self._size, self._cut) if m is not None]


def trace_again_if_chosen_anew(model):
    """A traced step holds the rows that were chosen before it; a new choice needs a new trace."""
    selection = model.optimizer.selection
    if selection is None:
        return
    traced = vars(model).get("_traced_choice")
    vars(model)["_traced_choice"] = selection.version
    if traced not in (None, selection.version):
        model.make_train_function(force=True)
