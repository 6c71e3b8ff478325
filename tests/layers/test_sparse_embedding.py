import keras
import numpy as np
import pytest
import slow
import tensorflow as tf

from tfdp import make_private
from tfdp.clipping import per_example_gradient_norms
from tfdp.clipping.plan.planning import make_clipping_plan
from tfdp.data import poisson_batches
from tfdp.layers import SparseEmbedding
from tfdp.optimizers import DPOptimizer, RowSGD
from tfdp.selection import AdaFEST

V, D = 9, 4


def layer_with(table=None, **kwargs):
    layer = SparseEmbedding(V, D, **kwargs)
    layer.build((None, 3))
    table = np.random.default_rng(0).normal(size=(V, D)) if table is None else table
    layer.embeddings.assign(table)
    return layer, np.asarray(table)


def test_without_combiner_it_is_the_keras_embedding():
    layer, table = layer_with()
    ids = np.array([[1, 8, 1], [0, 2, 3]])
    np.testing.assert_allclose(layer(ids), table[ids], rtol=1e-6)
    np.testing.assert_allclose(layer(ids[:, 0]), table[ids[:, 0]], rtol=1e-6)


@pytest.mark.thorough_after(1)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_combiners(combiner, weighted):
    layer, table = layer_with(combiner=combiner, mask_zero=True)
    ids = np.array([[1, 0, 1], [5, 6, 7], [0, 0, 0]])
    weights = np.array([[0.5, np.nan, 2.0], [1.0, 0.0, 3.0], [1.0, 1.0, 1.0]], "float32")
    output = layer(ids, weights=weights) if weighted else layer(ids)
    for row, w, found in zip(ids, weights, output.numpy(), strict=True):
        w = np.where(row > 0, w if weighted else 1.0, 0.0)
        total = np.einsum("t,td->d", w, table[row])
        size = {"sum": 1.0, "mean": w.sum(), "sqrtn": np.sqrt((w**2).sum())}[combiner]
        np.testing.assert_allclose(found, total / size if w.any() else 0 * total, rtol=1e-5)


def test_padding_looks_up_zeros_and_is_masked():
    layer, table = layer_with(mask_zero=True)
    ids = np.array([[2, 0, 3]])
    np.testing.assert_allclose(layer(ids)[0], [table[2], 0 * table[0], table[3]], rtol=1e-6)
    np.testing.assert_array_equal(layer.compute_mask(ids), [[True, False, True]])
    assert layer_with(mask_zero=True, combiner="sum")[0].compute_mask(ids) is None


@pytest.mark.thorough_after(1)
@pytest.mark.parametrize("bad", [-1, V, 2**40])
@pytest.mark.parametrize("compiled", [False, True])
def test_an_id_out_of_range_is_an_error_that_names_layer_and_range(bad, compiled):
    layer, _ = layer_with(name="products")
    run = tf.function(layer, autograph=False) if compiled else layer
    with pytest.raises(tf.errors.InvalidArgumentError, match=rf"products.*\[0, {V}\)") as error:
        run(tf.constant([[1, 2, bad]], tf.int64))
    assert str(bad) in str(error.value)


@pytest.mark.thorough
def test_under_xla_an_id_out_of_range_is_padding():
    layer, table = layer_with(combiner="mean")
    ids = tf.constant([[1, 2, V]], tf.int64)
    output = tf.function(layer, jit_compile=True, autograph=False)(ids)
    np.testing.assert_allclose(output[0], table[[1, 2]].mean(0), rtol=1e-5)


def test_int64_ids_beyond_float32_reach_their_row():
    layer = SparseEmbedding(2**25, 1, embeddings_initializer="zeros")
    layer.build((None,))
    layer.embeddings.value.scatter_update(tf.IndexedSlices([[7.0]], tf.constant([2**24 + 1])))
    x = keras.Input((), dtype="int64")
    model = keras.Model(x, layer(x))
    np.testing.assert_array_equal(model(np.array([2**24 + 1, 2**24])), [[7.0], [0.0]])


def test_what_would_densify_the_table_is_refused():
    for option in ("embeddings_regularizer", "embeddings_constraint", "activity_regularizer"):
        with pytest.raises(ValueError, match=option):
            SparseEmbedding(V, D, **{option: "l2"})


def test_floats_and_ragged_ids_are_refused_with_the_way_out():
    layer, _ = layer_with()
    with pytest.raises(ValueError, match="dtype='int64'"):
        layer(tf.constant([[1.0]]))
    with pytest.raises(ValueError, match="to_tensor"):
        layer.call(tf.ragged.constant([[1], [2, 3]]))
    for arguments in ((0, 3), (3, -1), (3, 3, "max")):
        with pytest.raises(ValueError, match="Received"):
            SparseEmbedding(*arguments)


@pytest.mark.thorough
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_the_look_up_makes_no_tensor_of_the_tables_size(policy, outputs_with_rows):
    rows = 7919
    layer = SparseEmbedding(rows, D, combiner="mean", dtype=policy)
    layer.build((None, 3))

    @tf.function(autograph=False)
    def look_up(ids):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(layer(ids)))
        gradient = tape.gradient(loss, layer.embeddings.value)
        return gradient.values, gradient.indices

    function = look_up.get_concrete_function(tf.TensorSpec([None, 3], tf.int64))
    assert outputs_with_rows(function, rows) == []


def model_of(shared, weighted, **kwargs):
    """Two features, tables shared or not, and a dense layer."""
    a, b = keras.Input((3,), dtype="int64"), keras.Input((2,), dtype="int64")
    w = keras.Input((3,))
    first = SparseEmbedding(V, D, **kwargs)
    second = first if shared else SparseEmbedding(V, D, **kwargs)
    x = first(a, weights=w) if weighted else first(a)
    flatten = keras.layers.Flatten() if kwargs.get("combiner") is None else lambda t: t
    x = keras.layers.Concatenate()([flatten(x), flatten(second(b))])
    return keras.Model([a, b, w], keras.layers.Dense(1)(keras.layers.Dense(5, "tanh")(x)))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("combiner", "shared"),
    slow.cases(
        [(combiner, shared) for combiner in (None, "sum", "mean", "sqrtn")
         for shared in (False, True)],
        slow=[(None, False), ("sum", True), ("mean", False), ("sqrtn", True)],
    ),
)  # fmt: skip
def test_per_example_norms_are_exact(combiner, shared):
    generator = np.random.default_rng(1)
    keras.utils.set_random_seed(1)
    model = model_of(shared, True, combiner=combiner, mask_zero=True)
    x = [tf.constant(generator.integers(0, 4, (6, n))) for n in (3, 2)]  # repeated, padded
    x.append(tf.constant(generator.normal(size=(6, 3)), tf.float32))
    y = tf.constant(generator.normal(size=(6, 1)), tf.float32)
    loss = keras.losses.MeanSquaredError()
    found = per_example_gradient_norms(model, x, y, loss)
    alone = per_example_gradient_norms(model, [t[:1] for t in x], y[:1], loss)  # a batch of one
    with tf.GradientTape(persistent=True) as tape:
        losses = tf.unstack(tf.reduce_mean(tf.square(y - model(x)), 1))
    wanted = []
    for value in losses:
        gradients = tape.gradient(value, [v.value for v in model.trainable_variables])
        dense = [tf.convert_to_tensor(g).numpy().astype("float64") for g in gradients]
        wanted.append(np.sqrt(sum((g**2).sum() for g in dense)))
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    np.testing.assert_allclose(alone, wanted[:1], rtol=1e-5)


@pytest.mark.thorough
def test_it_has_a_rule_and_never_one_copy_of_the_table_for_each_example():
    model = model_of(False, True, combiner="mean")
    specs = [tf.TensorSpec([4, 3], tf.int64), tf.TensorSpec([4, 2], tf.int64),
             tf.TensorSpec([4, 3], tf.float32)]  # fmt: skip
    plan = make_clipping_plan(model, specs)
    rules = {u.layer.name: u.rule for u in plan.calls.values()}
    assert all(
        rule is not None for name, rule in rules.items() if name.startswith("sparse_embedding")
    )
    assert sum(name.startswith("sparse_embedding") for name in rules) == 2


@pytest.mark.thorough
def test_without_selection_every_row_is_noised_as_in_dense_dp_sgd():
    ids = np.random.default_rng(0).integers(1, 4, (64, 3))
    layer = SparseEmbedding(2000, D, combiner="mean", mask_zero=True)
    x = keras.Input((3,), dtype="int64")
    model = make_private(keras.Model(x, keras.layers.Dense(1)(layer(x))))
    model.compile(
        DPOptimizer(
            keras.optimizers.SGD(1.0), noise_multiplier=2.0, num_examples=64,
            expected_batch_size=16, clip_norm=0.5, seed=0,
        ),
        loss="mse", run_eagerly=True,
    )  # fmt: skip
    before = layer.embeddings.numpy()
    model.fit(
        poisson_batches((ids, np.ones((64, 1))), 16, steps_per_epoch=1, seed=0), epochs=1, verbose=0
    )
    change = (layer.embeddings.numpy() - before)[10:]
    assert abs(change.std() / (2.0 * 0.5 / 16) - 1) < 0.05  # 8,000 draws: more than 6 σ


def test_configuration_and_weights_survive_a_file(tmp_path):
    model = model_of(True, True, combiner="sqrtn", mask_zero=True)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    x = [np.array([[1, 0, 3]]), np.array([[2, 2]]), np.ones((1, 3), "float32")]
    np.testing.assert_array_equal(again(x), model(x))
    layer = next(la for la in again.layers if isinstance(la, SparseEmbedding))
    assert layer.get_config()["combiner"] == "sqrtn" and layer.mask_zero


RAGGED = [[1, 1, 5], [], [7], [2, 3]]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_ragged_ids_are_the_padded_ones(combiner, weighted):
    layer, _ = layer_with(combiner=combiner, mask_zero=True)
    ragged = tf.ragged.constant(RAGGED, dtype=tf.int32)
    weights = tf.ragged.constant([[0.5, 2.0, 1.0], [], [3.0], [1.0, 1.5]]) if weighted else None
    padded = weights.to_tensor(0.0) if weighted else None
    dense = layer(ragged.to_tensor(0), weights=padded)
    np.testing.assert_array_equal(layer(ragged, weights=weights), dense)


def test_a_private_step_on_ragged_ids_is_the_one_on_padded_ids():
    ragged = tf.ragged.constant(RAGGED, dtype=tf.int64)
    y, weight = np.array([[1.0], [2.0], [3.0], [4.0]]), np.array([1.0, 1.0, 1.0, 0.0])
    tables = []
    for is_ragged, x in ((True, ragged), (False, ragged.to_tensor(0))):
        keras.utils.set_random_seed(0)
        ids = keras.Input((None,), dtype="int64", ragged=is_ragged)
        layer = SparseEmbedding(V, D, combiner="mean", mask_zero=True)
        model = make_private(keras.Model(ids, keras.layers.Dense(1)(layer(ids))))
        model.compile(DPOptimizer(
            keras.optimizers.SGD(1.0), noise_multiplier=0.0, num_examples=100,
            expected_batch_size=4, clip_norm=0.1, selection=AdaFEST(0.5),
            embedding_optimizer=RowSGD(1.0)), loss="mse", run_eagerly=True)  # fmt: skip
        before = layer.embeddings.numpy()
        model.train_on_batch(x, y, sample_weight=weight)
        tables.append(layer.embeddings.numpy() - before)
    np.testing.assert_allclose(tables[0], tables[1], atol=1e-7)
    assert sorted(set(np.nonzero(tables[0])[0])) == [1, 5, 7]  # not 2 and 3: padding of the batch


def test_ragged_ids_without_a_combiner_and_out_of_range_are_refused():
    ragged = tf.ragged.constant(RAGGED, dtype=tf.int64)
    with pytest.raises(ValueError, match="combiner"):
        layer_with()[0](ragged)
    with pytest.raises(tf.errors.InvalidArgumentError, match="from"):
        layer_with(combiner="sum")[0](ragged + 3)
