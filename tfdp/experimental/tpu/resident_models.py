"""Models of which a TPU embedding holds tables: before, in and outside of their training."""

import contextlib

import keras
import tensorflow as tf

from tfdp._compat.keras import all_layers
from tfdp.clipping.recording import trained_variables
from tfdp.errors import PrivacyError
from tfdp.experimental.tpu import resident_table
from tfdp.experimental.tpu.tables import TPUTables
from tfdp.runtime.external_table import VectorTable, external_tables
from tfdp.runtime.strategies import compiled_by_xla, traces_once


def prepare(model, x, callbacks=None, kwargs=None):
    """Makes the tables, at the first `fit`, and checks that the data tells what is looked up.

    Args:
        model: a `DPModel` compiled with a `DPOptimizer`.
        x: first argument of `fit`.
        callbacks: callbacks of `fit`.
        kwargs: its other arguments.

    Returns:
        What to give to Keras in place of `x`.

    Raises:
        PrivacyError: for data that `select_on_host` did not make, batches of another shape than
            the tables were made for, micro-batches, or a frozen table.
    """
    tables = tables_of(model)
    if not tables:
        return x
    if model.optimizer.max_records_per_unit is not None:
        raise PrivacyError(
            f"Tables {sorted(t.name for t in tables)} in a TPU embedding are looked up by record, "
            "and were not tried with persons as the unit of privacy. Leave their `placement` out. "
            f"Received: max_records_per_unit={model.optimizer.max_records_per_unit}"
        )
    frozen = {t.name for t in tables} - {getattr(v, "name", "") for v in trained_variables(model)}
    if frozen:
        raise PrivacyError(
            f"Tables {sorted(frozen)} in a TPU embedding are frozen. Leave their `placement` out: "
            "what a TPU embedding holds is trained."
        )
    look_ups = ()
    if isinstance(getattr(x, "element_spec", None), tuple):
        look_ups = getattr(x.element_spec[0], "look_ups", ())
    names = [table.name for table in tables]
    if not isinstance(x, tf.data.Dataset) or not look_ups:
        raise PrivacyError(
            "Rows in a TPU embedding are looked up ahead of the step. Train on batches of "
            "`tfdp.distribution.select_on_host(batches, model)`, called when the model is built. "
            f"Received: x of type {type(x).__name__} for a model with tables {names} there"
        )
    if model.optimizer.microbatch_size is not None:
        raise PrivacyError(
            "Argument `microbatch_size` cannot be combined with tables in a TPU embedding, which "
            f"are looked up once in a step. Received: {model.optimizer.microbatch_size}"
        )
    strategy = model.distribute_strategy
    shapes = {
        name: {
            feature: (spec.shape[0] // strategy.num_replicas_in_sync, *spec.shape[1:])
            for feature, spec in look_ups[name].items()
        }
        for name in names
    }
    rows = model.optimizer.embedding_optimizer
    holder = tables[0].holder
    if {table.holder for table in tables} != {holder} or (
        holder is not None
        and (holder.row_optimizer is not rows or set(holder.shapes) != set(names))
    ):
        for table in tables:  # compiled anew, or trained in another model: same rows, new slots
            if table.holder is not None:
                table.loaded = {"0": table.holder.arrays(table.name)["0"]}
        holder = None
    if holder is None:
        with strategy.scope():
            # Keras would build it for the model's variables alone.
            model.optimizer.build(trained_variables(model))
            TPUTables(
                tables, rows, resident_table.embedding_feature(), shapes, compiled_by_xla(model)
            )
    elif holder.shapes != shapes:
        raise PrivacyError(
            "The TPU embedding was made for batches of another shape. Train on batches of shapes "
            f"{holder.shapes}. Received: {shapes}"
        )
    holder = tables[0].holder
    _refuse_uses(holder, callbacks, kwargs or {})
    if vars(model).get("_tfdp_holder") is not holder:
        # What was traced before reads the rows of another one.
        model.train_function = model.test_function = model.predict_function = None
        vars(model)["_tfdp_holder"] = holder
    if traces_once(strategy):
        # The embedding takes its ids from the host.
        options = tf.distribute.InputOptions(experimental_fetch_to_device=False)
        x = strategy.experimental_distribute_dataset(x, options)
    return x


def looked_up(model, chosen):
    """Context in which the layers of the model read the rows of this batch."""
    tables = tables_of(model)
    if not tables:
        return contextlib.nullcontext()
    if chosen is None or not chosen.look_ups or tables[0].holder is None:
        raise PrivacyError(
            f"Rows of tables {[t.name for t in tables]} in a TPU embedding are looked up ahead of "
            "the step. Train with `fit`, on batches of `tfdp.distribution.select_on_host`."
        )
    return tables[0].holder.looked_up(chosen.look_ups)


def _refuse_uses(holder, callbacks, kwargs):
    """Refuses, before anything is spent, what would fail or leave the tables out."""
    given = list(callbacks.callbacks if hasattr(callbacks, "callbacks") else callbacks or [])
    if any(getattr(c, "restore_best_weights", False) for c in given):
        raise ValueError(
            "Argument `callbacks` has a callback with `restore_best_weights=True`, which would "
            "leave out the tables in a TPU embedding. Use ModelCheckpoint."
        )
    if holder.reads_rows:
        return
    if kwargs.get("validation_data") is not None or kwargs.get("validation_split"):
        raise ValueError(
            "Argument `validation_data` cannot be used with tables in a TPU embedding, which looks "
            "up rows in training only. Save the model, and evaluate it where there is no TPU."
        )
    if any(isinstance(c, keras.callbacks.BackupAndRestore) for c in given):
        raise ValueError(
            "Argument `callbacks` has BackupAndRestore, which cannot put rows back into a TPU's "
            "embedding engine. Use ModelCheckpoint, and load the file before the first `fit`."
        )


def refuse_reading(model):
    """Refuses to evaluate a model whose tables can be read in training only.

    Raises:
        RuntimeError: if it has such tables.
    """
    _refuse(model, [t for t in tables_of(model) if t.holder is None or not t.holder.reads_rows])


def refuse_export(model):
    """Refuses to export a model whose tables are no variables that Keras would export.

    Raises:
        RuntimeError: if it has such tables.
    """
    _refuse(model, tables_of(model))


def _refuse(model, hidden):
    if hidden:
        raise RuntimeError(
            f"Tables {sorted(t.name for t in hidden)} of model {model.name!r} are in a TPU "
            "embedding, which looks up rows in training only. Save the model, and load it where "
            "there is no TPU to evaluate or export it."
        )


def refuse_training_otherwise(model):
    """Refuses an optimizer that knows nothing of the tables.

    Raises:
        PrivacyError: if a TPU embedding holds tables of the model.
    """
    held = [t.name for t in tables_of(model)]
    if held:
        raise PrivacyError(
            f"Tables {held} are in a TPU embedding, which a DPOptimizer trains and no other. "
            "Compile with a DPOptimizer, or leave `placement` out."
        )


def tables_of(model):
    """The `TPUResidentTable` objects of a model, trained or frozen."""
    tables = external_tables(all_layers(model))
    return [table for table in tables if not isinstance(table, VectorTable)]
