"""What a model with sparse tables does beside: choose rows in a step, and show how many."""

import keras
import tensorflow as tf

from tfdp._compat.keras import all_layers
from tfdp.clipping.recording import trained_variables
from tfdp.clipping.rules.embed_reduce import is_embed_reduce
from tfdp.clipping.sums.surviving_rows import (
    activated_rows,
    restrict,
    shared_tables,
    table_name,
)
from tfdp.distribution.host_selection import rows_of_step
from tfdp.errors import PrivacyError
from tfdp.layers import SparseEmbedding
from tfdp.runtime.external_table import is_external, vector_tables
from tfdp.runtime.strategies import compiled_by_xla, traces_once
from tfdp.selection import NO_ROW, TableActivity
from tfdp.training.claims import run_of


def preselect_rows(model, chosen):
    """The rows of sparse tables that a step may update, if they are known before its gradients.

    Args:
        model: a `DPModel` compiled with a `DPOptimizer`.
        chosen: the `SelectedInputs` with survivors that were chosen on the host, or None.

    Returns:
        Dict of place among the trained variables to rows of sparse tables, or None: the step has no
        selection, or has to choose them itself, from its whole batch.

    Raises:
        PrivacyError: for micro-batches, none of which is the whole batch; as
            `refuse_unchecked_rows`.
    """
    optimizer = model.optimizer
    if chosen is not None:
        refuse_unchecked_rows(model, chosen)
        rows = rows_of_step(model, chosen.survivors, compiled_by_xla(model))
        model.selection_metrics.count_rows(rows)
        return rows
    if optimizer.selection is None or optimizer.microbatch_size is None:
        return None
    if optimizer.selection.reads_batch:
        raise PrivacyError(
            "Rows must be selected from the whole batch, but this step sees only "
            f"{optimizer.microbatch_size} examples of it at once. Select them when batches are "
            "made: give `fit` the result of `tfdp.distribution.select_on_host(batches, model, "
            "ids)`. Or leave `microbatch_size` out."
        )
    variables = trained_variables(model)
    tables = {i: v for i, v in enumerate(variables) if table_name(v) is not None}
    activity = [TableActivity(table_name(v), v.shape[0], None) for v in tables.values()]
    rows = optimizer.selection.select(activity, None, None, None)
    return dict(zip(tables, rows, strict=True))


def refuse_unchecked_rows(model, chosen):
    """Refuses rows that reach a model in another way than by `fit`, which checks who chose them.

    Args:
        model: the model.
        chosen: as for `preselect_rows`.
    """
    run = run_of(model)
    if chosen is not None and (run is None or not run.rows_are_checked):
        raise PrivacyError(
            "A step outside `fit` received rows, and tfdp does not know who selected them. Give "
            "`fit` the batches that `tfdp.distribution.select_on_host` returns."
        )


def restrict_to_survivors(model, result, survivors=None):
    """Sets the gradients of all rows but the survivors' to zero, before norms are taken.

    Args:
        model: a `DPModel` compiled with a `DPOptimizer`.
        result: a `Backward`; of the whole batch if the rows are to be chosen here.
        survivors: from `preselect_rows`; if None they are selected.

    Returns:
        A `Backward`; the same one if the optimizer has no `selection`.

    Raises:
        PrivacyError: if no table is looked up, or one is used otherwise than by look-ups.
    """
    optimizer, rows = model.optimizer, vector_rows(model)
    if optimizer.selection is not None:
        activated = activated_rows(model, result)
        if survivors is None:
            survivors = optimizer.select_rows(
                activated, trained_variables(model), result.unit_mask, compiled_by_xla(model)
            )
            model.selection_metrics.count_rows(survivors)
        rows = {**survivors, **rows}
    if rows:
        _refuse_several_draws(model, result)
    return restrict(result, rows) if rows else result


def vector_rows(model):
    """The rows of a model's `VectorTable`s that a step noises beside those that examples share.

    All, or none: which rows an example has of its own must not be told by which are noised.

    Returns:
        Dict of place among the trained variables to rows.
    """
    tables = vector_tables(trained_variables(model))
    return {
        i: tf.range(table.shape[0] if table.takes_all else 0, dtype=tf.int64)
        for i, table in tables.items()
    }


def _refuse_several_draws(model, result):
    """Refuses shared rows of a table where the parts of a step draw each its own.

    Raises:
        PrivacyError: for micro-batches, or several replicas.
    """
    tables = [
        v.name if is_external(v) else table_name(v)
        for v in shared_tables(result)
        if not getattr(v, "takes_all", False)
    ]
    count = model.distribute_strategy.num_replicas_in_sync
    if any(tables) and (model.optimizer.microbatch_size is not None or count > 1):
        raise PrivacyError(
            f"Tables {[name for name in tables if name]} are looked up for negatives that all "
            "examples share. Each micro-batch and each replica draws its own negatives, but noise "
            "on selected rows needs one set of rows for the whole step. Leave out "
            "`microbatch_size` and train on one device. Or leave out `selection` and "
            '`noise_at="vectors"`, or take all items as negatives (`num_negatives=None`). '
            f"Received: {count} replicas, microbatch_size={model.optimizer.microbatch_size}"
        )


def allow_compilation(model, optimizer, jit_compile):
    """XLA needs to know how many rows a step updates before any has been drawn.

    Raises:
        PrivacyError: for `jit_compile=True`, or under TPUStrategy, with a selection of any number
            of rows.
    """
    on_tpu = traces_once(model.distribute_strategy)
    selection, asked = optimizer.selection, jit_compile is True
    if (asked or on_tpu) and selection is not None and not selection.is_static:
        raise PrivacyError(
            f"{'A step under TPUStrategy' if on_tpu else '`jit_compile=True`'} needs a number of "
            "rows that is known before the step. Give the selection a `capacity`, as in "
            f"`AdaFEST(..., capacity=20_000)`{'' if on_tpu else ', or leave `jit_compile` out'}. "
            f"Received: selection={selection}"
        )
    if on_tpu:
        return  # the strategy compiles, and not Keras
    for layer in all_layers(model):
        if isinstance(layer, SparseEmbedding):
            # Keras compiles no model by itself that holds this layer, unless it is asked to.
            layer.supports_jit = asked
        elif is_embed_reduce(layer):
            # Keras would compile it by itself wherever there is an accelerator.
            layer.supports_jit = asked or selection is None


class SelectionMetrics:
    """What training shows of the rows of its steps, the mean over the steps of an epoch.

    It is made from the surviving rows alone, which are private. Not among the model's own metrics:
    it has no value in `evaluate`.

    Attributes:
        gradient_size: scalars of sparse tables that receive noise. Without a selection it would
            be the size of the tables in every step, and is not shown.
        capacity_reached: share of the steps whose survivors took every place of the selection's
            `capacity`, so that some may have found none; shown if there is one.
    """

    def __init__(self, optimizer):
        selection = getattr(optimizer, "selection", None)
        self._size = self._full = None
        if selection is not None:
            self._size = keras.metrics.Mean(name="gradient_size")
            self._capacity = selection.capacity
            if self._capacity is not None:
                self._full = keras.metrics.Mean(name="capacity_reached")

    def count_size(self, size):
        if self._size is not None:
            self._size.update_state(size)

    def count_rows(self, rows):
        if self._full is not None:
            taken = [tf.reduce_sum(tf.cast(r < NO_ROW, tf.int64)) for r in rows.values()]
            self._full.update_state(tf.cast(tf.add_n(taken) >= self._capacity, tf.float32))

    def results(self):
        """Dict of name to value."""
        return {m.name: m.result() for m in self._metrics()}

    def reset(self):
        for metric in self._metrics():
            metric.reset_state()

    def _metrics(self):
        return [m for m in (self._size, self._full) if m is not None]


def trace_again_if_chosen_anew(model):
    """A traced step holds the rows that were chosen before it; a new choice needs a new trace."""
    selection = model.optimizer.selection
    if selection is None:
        return
    traced = vars(model).get("_traced_choice")
    vars(model)["_traced_choice"] = selection.version
    if traced not in (None, selection.version):
        model.make_train_function(force=True)
