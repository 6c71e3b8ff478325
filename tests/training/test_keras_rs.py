"""Models that hold a `keras_rs.layers.DistributedEmbedding` train as those with SparseEmbedding."""

import pathlib
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tfdp.layers import SparseEmbedding
from tfdp.optimizers import DPOptimizer, RowAdagrad, RowSGD
from tfdp.selection import FEST, AdaFEST

keras_rs = pytest.importorskip("keras_rs")
V, D = 30, 3
FEATURES = {"liked": ("items", (3,)), "seen": ("items", (2,)), "user": ("users", ())}


def embedding(rows):
    tables = {name: keras_rs.layers.TableConfig(name, rows, D) for name in ("items", "users")}
    return keras_rs.layers.DistributedEmbedding(
        {
            name: keras_rs.layers.FeatureConfig(name, tables[table], (None, *shape), (None, D))
            for name, (table, shape) in FEATURES.items()
        }
    )


def sparse_embedding(rows):
    layers = {n: SparseEmbedding(rows, D, combiner="mean", name=n) for n in ("items", "users")}
    return lambda x: {name: layers[table](x[name]) for name, (table, _) in FEATURES.items()}


def make_model(rows=V, layer=embedding):
    keras.utils.set_random_seed(0)
    x = {n: keras.Input(shape, dtype="int64", name=n) for n, (_, shape) in FEATURES.items()}
    found = layer(rows)(x)
    joint = keras.layers.Concatenate()([found[name] for name in FEATURES])
    model = keras.Model(x, keras.layers.Dense(1)(keras.layers.Dense(4, "tanh")(joint)))
    generator = np.random.default_rng(1)
    for v in model.trainable_variables:
        v.assign(generator.normal(size=v.shape))
    return model


def make_data(n, rows=V, seed=2):
    generator = np.random.default_rng(seed)
    x = {k: generator.integers(0, rows, (n, *shape)) for k, (_, shape) in FEATURES.items()}
    return x, 3 * generator.normal(size=(n, 1)).astype("float32")


def compiled(base, selection=None, rows=None, n=1000, run_eagerly=True, **kwargs):
    """Run eagerly unless told otherwise: a trace takes longer than a few steps."""
    model = tfdp.make_private(base, validate=False)
    settings = {"noise_multiplier": 0.0, "expected_batch_size": 8, **kwargs}
    if selection is not None:
        settings["embedding_optimizer"] = rows or RowSGD(1.0)
    optimizer = DPOptimizer(
        keras.optimizers.SGD(1.0), selection=selection, num_examples=n, **settings
    )
    model.compile(optimizer, loss="mse", run_eagerly=run_eagerly)
    return model


def step(model, x, y):
    """One private step; by how much each variable moved, by table or layer and variable name."""
    before = [v.numpy() for v in model.trainable_variables]
    model.train_on_batch(x, y)
    names = ["/".join(v.path.split("/")[-2:]) for v in model.trainable_variables]
    after = [v.numpy() for v in model.trainable_variables]
    return {name: b - a for name, b, a in zip(names, before, after, strict=True)}


@pytest.mark.thorough
def test_a_step_is_the_one_of_sparse_embeddings():
    x, y = make_data(8, rows=6)
    found = []
    for layer in (embedding, sparse_embedding):
        model = compiled(make_model(layer=layer), AdaFEST(2.5), clip_norm=0.5)
        found.append(step(model, x, y))
    moved = np.any(found[0]["items/embeddings"] != 0, axis=1)
    assert 0 < moved.sum() < 6  # some of the rows of the batch survive, some do not
    for a, b in zip(found[0].values(), found[1].values(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.thorough
def test_no_operation_of_a_step_has_as_many_rows_as_a_table(outputs_with_rows):
    rows, before = 7919, keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")  # under which the layer would cast the table
    try:
        model = compiled(make_model(rows), AdaFEST(3.0), RowAdagrad(0.1), noise_multiplier=1.0)
        x, y = make_data(8, rows)
        model.optimizer.build(model.trainable_variables)
        data = tf.nest.map_structure(tf.convert_to_tensor, (x, y, np.ones(8, "float32")))
        graph = tf.function(model.train_step, autograph=False).get_concrete_function(data)
    finally:
        keras.config.set_dtype_policy(before)
    assert outputs_with_rows(graph, rows) == []


class Alone(keras.Model):
    """Not built before its first batch; its layer has a precision of its own."""

    def __init__(self, rows=7919):
        super().__init__()
        self.table = keras_rs.layers.EmbedReduce(rows, D, name="words", dtype="mixed_bfloat16")
        self.head = keras.layers.Dense(1)

    def call(self, ids):
        return self.head(self.table(ids))


@pytest.mark.thorough
def test_a_model_that_its_first_batch_builds_is_sparse_too(outputs_with_rows):
    model = compiled(Alone(), AdaFEST(3.0), noise_multiplier=1.0)
    x, y = np.ones((8, 2), "int64"), np.ones((8, 1), "float32")
    model.train_on_batch(x, y)
    data = tf.nest.map_structure(tf.convert_to_tensor, (x, y, np.ones(8, "float32")))
    graph = tf.function(model.train_step, autograph=False).get_concrete_function(data)
    assert outputs_with_rows(graph, 7919) == []


@pytest.mark.evidence
def test_rows_are_chosen_on_the_host_for_a_model_built_after_compile():
    model = compiled(Alone(V), AdaFEST(1.5, capacity=9), n=100)
    ids, y = np.full((100, 2), 4), np.full((100, 1), 10.0, "float32")
    model(ids[:1])
    before = model.model.table.embeddings.numpy()
    batches = tfdp.data.poisson_batches((ids, y), 8, steps_per_epoch=3)
    chosen = tfdp.distribution.select_on_host(batches, model, lambda x: {"words": x})
    model.fit(chosen, verbose=0)
    change = model.model.table.embeddings.numpy() - before
    assert list(np.flatnonzero(np.any(change != 0, axis=1))) == [4]


@pytest.mark.thorough
def test_only_surviving_rows_are_noised_and_without_selection_all_of_them():
    chosen = np.zeros(V)
    chosen[[1, 2, 5]] = 1.0
    fest = FEST(3, frequencies={"items": chosen, "users": chosen})
    x, y = make_data(8)
    found = step(compiled(make_model(), fest, noise_multiplier=1.0), x, y)
    for table in ("items/embeddings", "users/embeddings"):
        assert list(np.flatnonzero(np.any(found[table] != 0, axis=1))) == [1, 2, 5]
    rows = 2000
    found = step(compiled(make_model(rows), noise_multiplier=2.0, clip_norm=0.5, seed=0), x, y)
    for table in ("items/embeddings", "users/embeddings"):
        noise = found[table][V:]  # 5,910 draws: the bound is 5 standard deviations
        assert abs(noise.std() / (2.0 * 0.5 / 8) - 1) < 5 / np.sqrt(2 * noise.size)


def test_keras_compiles_no_step_of_any_number_of_rows_by_itself(monkeypatch):
    # On a machine with a GPU "auto" means XLA, which cannot compile such a step.
    gpu = tf.config.PhysicalDevice("/physical_device:GPU:0", "GPU")
    listed = [*tf.config.list_physical_devices(), gpu]
    monkeypatch.setattr(
        tf.config, "list_physical_devices",
        lambda kind=None: [d for d in listed if kind in (None, d.device_type)],
    )  # fmt: skip
    monkeypatch.setattr(tf.config.experimental, "tensor_float_32_execution_enabled", lambda: False)
    base = make_model()
    settings = {"noise_multiplier": 1.0, "run_eagerly": False}
    assert not compiled(base, AdaFEST(3.0), **settings).jit_compile
    assert compiled(base, **settings).jit_compile


@pytest.mark.evidence
def test_a_saved_model_goes_on_with_its_tables_and_its_ledger(tmp_path):
    x, y = make_data(100)
    batches = tfdp.data.poisson_batches((x, y), 8, steps_per_epoch=2)
    model = compiled(make_model(), AdaFEST(1.0), n=100, noise_multiplier=1.0, run_eagerly=False)
    model.fit(batches, verbose=0)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    for a, b in zip(again.trainable_variables, model.trainable_variables, strict=True):
        np.testing.assert_array_equal(a, b)
    again.fit(batches, verbose=0)
    assert again.ledger.entries[0].count == 4
    assert len(again.optimizer.embedding_optimizer.variables) == len(
        model.optimizer.embedding_optimizer.variables
    )


@pytest.mark.thorough
def test_tables_of_the_same_name_are_refused():
    x = keras.Input((2,), dtype="int64")
    layers = [keras_rs.layers.EmbedReduce(V, D, name="words") for _ in range(2)]
    inputs = [keras.Model(x, layer(x))(x) for layer in layers]
    model = keras.Model(x, keras.layers.Dense(1)(keras.layers.Add()(inputs)))
    with pytest.raises(ValueError, match="distinct names"):
        step(compiled(model, AdaFEST(1.0)), np.ones((8, 2), int), np.ones((8, 1)))


def test_a_layer_that_computes_otherwise_is_refused_under_a_selection():
    class Doubled(keras_rs.layers.EmbedReduce):
        def call(self, inputs, weights=None):
            return 2 * super().call(inputs, weights)

    x = keras.Input((2,), dtype="int64")
    model = keras.Model(x, keras.layers.Dense(1)(Doubled(V, D)(x)))
    with pytest.raises(tfdp.PrivacyError, match="is used in another way than by"):
        step(compiled(model, AdaFEST(1.0)), np.ones((8, 2), int), np.ones((8, 1)))


def test_the_example_of_the_documentation_trains_what_survives():
    page = pathlib.Path(__file__).resolve().parents[2] / "docs" / "distribution.md"
    _, section = page.read_text().split("## Models that already use keras_rs")
    code = re.search(r"```python\n(.*?)```", section, re.DOTALL)[1]
    names = {}
    exec(code.replace("epochs=3", "epochs=1, steps_per_epoch=2, verbose=0"), names)
    assert names["model"].ledger.entries[0].count == 2
    assert 0 < names["model"].history.history["gradient_size"][0] <= 1000 * 16  # ids that occur
