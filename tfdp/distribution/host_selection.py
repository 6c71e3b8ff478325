"""Choosing the rows of a step in the input pipeline, ahead of the accelerator.

Which rows an example activates depends on its ids and on no gradient, so that AdaFEST can choose
where the batches are made, before they are divided among replicas.
"""

import typing
from collections.abc import Callable

import keras
import tensorflow as tf

from tfdp._compat.keras import calls_of_graph
from tfdp.clipping.losses import example_mask_of
from tfdp.clipping.recording import trained_variables
from tfdp.clipping.rules.embed_reduce import register_keras_rs
from tfdp.clipping.sums.surviving_rows import table_name
from tfdp.clipping.sums.units import ids_of_units, unit_mask
from tfdp.data.provenance.dataset_tags import walk
from tfdp.data.provenance.padding_guard import map_batches
from tfdp.errors import PrivacyError
from tfdp.layers.sparse_embedding import SparseEmbedding
from tfdp.noise import PipelineNoiseSource
from tfdp.runtime import replicas
from tfdp.runtime.external_table import is_external
from tfdp.runtime.strategies import traces_once
from tfdp.selection import NO_ROW, TableActivity
from tfdp.selection.tables import offsets, split_padded_rows

_ATTRIBUTE = "_tfdp_selected_for"
_IDS = "_tfdp_function_of_ids"


class SelectedInputs(typing.NamedTuple):
    """Inputs of a model, and the surviving rows of their batch.

    Attributes:
        inputs: what the model is called with.
        survivors: (B, k) int64, so that it is divided among replicas as the examples are. All of
            it together holds the rows of all tables in one range, `NO_ROW` where there is none.
        look_ups: what is looked up in a TPU embedding: dict of table name to dict of
            "activations", (B, T, 1), and "survivors", (B, k, 1). All are rows that exist: any row
            stands where there is none. Nothing for a model without such tables.
    """

    inputs: typing.Any
    survivors: tf.Tensor
    look_ups: typing.Any = ()


def select_on_host(
    batches: tf.data.Dataset, model: keras.Model, ids: Callable | None = None
) -> tf.data.Dataset:
    """Selects the rows of each batch in the input pipeline, by the model's AdaFEST.

    The selection is the same as in the step: it has the same distribution and is charged with the
    step. σ₁ is that of the model's `DPOptimizer`. It is drawn anew for every batch of every epoch.

    Example:

    ```python
    batches = tfdp.data.poisson_batches((ids, y), 1024)
    model.fit(tfdp.distribution.select_on_host(batches, model), epochs=3)
    ```

    Args:
        batches: `tf.data.Dataset` from `tfdp.data`, of (x, y, sample_weight), not divided among
            replicas yet, and for a strategy of one worker. Cache records before the batches are
            drawn, not afterwards.
        model: a `DPModel` whose DPOptimizer has `selection=AdaFEST(..., capacity=...)`; built.
        ids: function of x that gives a dict of the name of each SparseEmbedding to the ids (B, T)
            that examples activate in it, negative for padding, in the order in which the model
            looks them up. Each row of it must come from its own example: `fit` proves it, or
            refuses, or the statement lists it as assumed. Rows that it leaves out do not train.
            `None` takes them from the graph of a functional model.

    Returns:
        A `tf.data.Dataset`, to be given to `model.fit` as it is or after `prefetch`.

    Raises:
        ValueError: for a selection without a capacity, tables that `ids` does not name, or a
            model whose ids are not known without it.
        PrivacyError: inside the scope of a TPUStrategy; for a DPOptimizer that was not told
            `num_examples`, `expected_batch_size` and, with a budget, `steps`.
    """
    optimizer = model.optimizer
    selection = getattr(optimizer, "selection", None)
    if getattr(selection, "capacity", None) is None or selection.reads_gradients:
        raise ValueError(
            "Argument `model` must be compiled with a DPOptimizer whose `selection` selects by "
            "ids and has a `capacity`: AdaFEST(..., capacity=...). Received: "
            f"selection={selection}"
        )
    if traces_once(tf.distribute.get_strategy()):
        raise PrivacyError(
            "Batches must be made on the host, but `strategy.scope()` puts variables onto the "
            "devices. Call `select_on_host` outside `strategy.scope()`. Received: "
            f"{tf.distribute.get_strategy()}"
        )
    # Whose rows count together must be known here, and not at the `fit` that comes later.
    optimizer.from_data.require()
    sizes = _tables(model)
    given, ids = ids, ids or ids_of_model(model)
    held = [table_name(v) for v in trained_variables(model) if _is_held(v)]
    # Seeded only where the optimizer is, for tests.
    source = PipelineNoiseSource(None if optimizer.seed is None else optimizer.seed + 1)
    stddev, k = optimizer.charging.host_noise_stddev(), optimizer.rows_per_unit

    def select(x, y, sample_weight):
        activated = ids(x)
        if sorted(activated) != sorted(sizes):
            raise ValueError(
                "Argument `ids` must return the ids of each trainable SparseEmbedding, by its "
                f"name: {sorted(sizes)}. Received: {sorted(activated)}"
            )
        activated = {name: _matrix(activated[name], n) for name, n in sizes.items()}
        batch = tf.nest.flatten(x)[0].shape[0]
        example_mask = example_mask_of(sample_weight, batch)
        tables = [
            TableActivity(name, n, ids_of_units(activated[name], example_mask, k))
            for name, n in sizes.items()
        ]
        sigma = stddev / optimizer.clip_norm
        mask = unit_mask(example_mask, k)
        rows = selection.select_padded(tables, mask, sigma, source)
        starts = offsets(tables)
        joint = [tf.where(r < NO_ROW, r + s, NO_ROW) for r, s in zip(rows, starts, strict=False)]
        packed = tf.concat(joint, 0)
        packed = tf.pad(packed, [[0, -packed.shape[0] % batch]], constant_values=NO_ROW)
        packed = tf.reshape(packed, [batch, -1])
        look_ups = {
            name: _look_ups(activated[name], survivors, sizes[name])
            for name, survivors in zip(sizes, rows, strict=True)
            if name in held
        }
        return SelectedInputs(x, packed, look_ups or ()), y, sample_weight

    chosen = map_batches(batches, select, deterministic=True).prefetch(2)
    setattr(chosen, _ATTRIBUTE, _choice_of(model))
    if given is not None:
        setattr(chosen, _IDS, (given, batches.element_spec[0]))
    return chosen


def functions_of_ids(dataset):
    """The functions of the user's that gave the ids for selected rows, traced.

    Args:
        dataset: a `tf.data.Dataset`.
    """
    held = [vars(made_from)[_IDS] for made_from in walk(dataset) if _IDS in vars(made_from)]
    return [tf.function(ids).get_concrete_function(spec) for ids, spec in held]


def _is_held(variable):
    """Whether it is a sparse table that is no variable of this process."""
    return is_external(variable) and table_name(variable) is not None


def _choice_of(model):
    """What rows are chosen for: the optimizer, its selection's version, and the tables."""
    variables = trained_variables(model)
    held = {table_name(v) for v in variables if _is_held(v)}
    return model.optimizer, model.optimizer.selection.version, _tables(model), held


def check_selected(dataset, model):
    """Refuses batches whose rows were chosen by nobody knows whom.

    Returns:
        Whether the batches hold their rows.

    Raises:
        PrivacyError: if a dataset holds `SelectedInputs` that `select_on_host` did not make for
            this optimizer and the tables that it trains now, or that each of several workers
            would make on its own.
    """
    spec = getattr(dataset, "element_spec", None)
    if not (isinstance(spec, tuple) and spec and isinstance(spec[0], SelectedInputs)):
        return False
    if replicas.is_multi_worker(model.distribute_strategy):
        raise PrivacyError(
            "Every worker would select rows with its own noise, but only one selection is "
            "charged. Do not use `select_on_host` with several workers: the step selects one set "
            "of rows for all of them."
        )
    choices = [vars(d)[_ATTRIBUTE] for d in walk(dataset) if _ATTRIBUTE in vars(d)]
    known = choices and choices[0][0] is model.optimizer
    if not known or choices[0][1:] != _choice_of(model)[1:]:
        raise PrivacyError(
            "The rows of these batches were selected with another optimizer or for other tables, "
            "but the σ of this optimizer is charged. Call "
            "`tfdp.distribution.select_on_host(batches, model)` after `compile`, and pass the "
            "result to `fit`."
        )
    return True


def unpack(x):
    """(inputs, `SelectedInputs` or None)."""
    return (x.inputs, x) if isinstance(x, SelectedInputs) else (x, None)


def rows_of_step(model, survivors, static):
    """The rows that were chosen on the host, as `SparseTraining.select` gives them.

    Args:
        survivors: this replica's part of `SelectedInputs.survivors`.
        static: as for `SparseTraining.select`.

    Returns:
        Dict of place among the trained variables to rows, of a fixed size also for tables that an
        embedding engine holds.
    """
    selection, charging = model.optimizer.selection, model.optimizer.charging
    tables = [TableActivity(name, n, None) for name, n in _tables(model).items()]
    variables = trained_variables(model)
    places = [i for i, v in enumerate(variables) if table_name(v) is not None]
    padded = [static or is_external(variables[i]) for i in places]

    def unpacked(parts):
        # The rows of steps that no budget pays for are nobody's.
        rows = tf.where(charging.active(model), tf.sort(tf.reshape(parts, [-1])), NO_ROW)
        rows = rows[: min(selection.capacity, rows.shape[0])]
        split = split_padded_rows(rows, tables)
        return [
            r if fixed else tf.boolean_mask(r, r < NO_ROW)
            for r, fixed in zip(split, padded, strict=True)
        ]

    return dict(zip(places, replicas.run_once_per_step(unpacked, survivors), strict=True))


def _tables(model):
    """Names and numbers of rows of the tables, in the order of the trained variables."""
    register_keras_rs(model)
    tables = [v for v in trained_variables(model) if table_name(v) is not None]
    if not tables:
        raise ValueError(
            "Argument `model` must be built and must have a trainable SparseEmbedding. Build it "
            f"with `model.build(shape)`, or call it on a batch. Received: model={model.name!r}"
        )
    return {table_name(v): v.shape[0] for v in tables}


def ids_of_model(model):
    """The function that computes, from its inputs, the ids that a functional model looks up.

    Args:
        model: a `DPModel`, `make_private` of a functional model; built.

    Returns:
        Function of x as `select_on_host` takes it.

    Raises:
        ValueError: if the graph does not show the ids of every table.
    """
    graph = getattr(model, "model", model)
    calls = {}
    for node in calls_of_graph(graph):
        layer = node.operation
        if isinstance(layer, SparseEmbedding) and layer.trainable:
            calls.setdefault(layer, []).append(node.arguments.args[0])
    names = [layer.name for layer in calls]
    if sorted(names) != sorted(_tables(model)):
        raise ValueError(
            "Argument `ids` is needed, because the graph of the model does not show which ids it "
            "looks up in each table. Pass a function of x, such as `lambda x: {'words': x}`. "
            f"Received: ids=None for model {model.name!r} with tables {sorted(_tables(model))}"
        )
    compute = keras.Function(graph.input, list(calls.values()))

    def ids(x):
        found = compute(x)
        return {
            layer.name: tf.concat(
                [_matrix(layer.rows_read(tf.cast(i, tf.int64)), layer.input_dim) for i in own], 1
            )
            for layer, own in zip(calls, found, strict=True)
        }

    return ids


def _matrix(ids, num_rows):
    """(B, T) int64 ids, −1 for what is no row."""
    ids = tf.cast(ids, tf.int64)
    ids = tf.where((ids >= 0) & (ids < num_rows), ids, -1)
    return tf.reshape(ids, [ids.shape[0], -1])


def _look_ups(activated, survivors, num_rows):
    """`SelectedInputs.look_ups` of one table."""
    batch = activated.shape[0]
    survivors = tf.pad(survivors, [[0, -survivors.shape[0] % batch]], constant_values=NO_ROW)
    survivors = tf.reshape(survivors, [batch, -1])

    def existing(rows):
        # Where there is none, rows in turn: many look-ups of one row are slow.
        others = tf.range(rows.shape.num_elements(), dtype=tf.int64) % num_rows
        is_row = (rows >= 0) & (rows < NO_ROW)
        return tf.where(is_row, rows, tf.reshape(others, rows.shape))[..., tf.newaxis]

    return {"activations": existing(activated), "survivors": existing(survivors)}
