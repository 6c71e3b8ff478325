"""Row optimizers: Keras' formulas on the given rows, and nothing anywhere else."""

import keras
import numpy as np
import pytest
import slow
import tensorflow as tf

from tfdp.optimizers.rows import LazyAdam, RowAdagrad, RowSGD, row_optimizer
from tfdp.optimizers.rows.row_optimizer import DistinctRows
from tfdp.runtime import xla

V, D = 40, 3
MAKERS = {
    "RowSGD": lambda **k: RowSGD(0.1, **k),
    "RowAdagrad": lambda **k: RowAdagrad(0.1, **k),
    "RowAdagrad row-wise": lambda **k: RowAdagrad(0.1, row_wise=True, **k),
    "LazyAdam": lambda **k: LazyAdam(0.1, **k),
}
TWINS = {
    "RowSGD": lambda **k: keras.optimizers.SGD(0.1, **k),
    "RowAdagrad": lambda **k: keras.optimizers.Adagrad(0.1, **k),
    "LazyAdam": lambda **k: keras.optimizers.Adam(0.1, **k),
}


def table(seed=0):
    return keras.Variable(np.random.default_rng(seed).normal(size=(V, D)).astype("float32"))


def slices(rows, values):
    return tf.IndexedSlices(tf.constant(values, tf.float32), tf.constant(rows), tf.constant([V, D]))


def states(optimizer):
    return [v.numpy() for v in optimizer.variables if len(v.shape) and v.shape[0] == V]


@pytest.mark.parametrize("weight_decay", [None, 0.05])
@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("name", TWINS)
def test_all_rows_given_is_the_keras_optimizer(name, dense, weight_decay):
    generator = np.random.default_rng(1)
    row, twin = MAKERS[name](weight_decay=weight_decay), TWINS[name](weight_decay=weight_decay)
    a, b = table(), table()
    for _ in range(5):
        gradient = generator.normal(size=(V, D))
        order = generator.permutation(V)
        given = tf.constant(gradient, tf.float32) if dense else slices(order, gradient[order])
        row.apply([given], [a])
        twin.apply([tf.constant(gradient, tf.float32)], [b])
    np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=2e-6, atol=1e-6)


def test_row_wise_adagrad_accumulates_the_mean_square_of_a_row():
    optimizer, variable = RowAdagrad(0.5, 0.1, epsilon=0.0, row_wise=True), table()
    before = variable.numpy()
    gradient = np.array([[1.0, 2.0, 2.0]])
    for _ in range(2):
        optimizer.apply([slices([4], gradient)], [variable])
    steps = 0.5 * gradient[0] * (3.1**-0.5 + 6.1**-0.5)
    np.testing.assert_allclose(before[4] - variable.numpy()[4], steps, rtol=1e-5)
    (state,) = states(optimizer)
    assert state.shape == (V,)
    np.testing.assert_allclose(state[4], 6.1, rtol=1e-6)


@pytest.mark.thorough_after(4)
@pytest.mark.parametrize(
    ("name", "given"),
    slow.cases(
        [(name, given) for name in MAKERS for given in (3, 4, 8, 11)],
        # How rows are parted is the same for all of them.
        slow=[(name, given) for name in MAKERS for given in (3, 4, 8) if name != "LazyAdam"],
    ),
)
def test_parts_in_which_xla_scatters_make_one_update(name, given, monkeypatch):
    monkeypatch.setattr(row_optimizer, "XLA_ROWS", 4)
    generator = np.random.default_rng(given)
    row, twin = MAKERS[name](weight_decay=0.05), MAKERS[name](weight_decay=0.05)
    a, b = table(), table()
    row.build([a])

    @tf.function(jit_compile=True)
    def step(gradient, rows):
        with xla.compiling(True):
            row.apply([DistinctRows(gradient, rows)], [a])

    for _ in range(3):
        rows = np.sort(generator.permutation(V)[:given])
        gradient = generator.normal(size=(given, D)).astype(np.float32)
        padded = np.concatenate([rows, [V, V + 7]])  # places without a row
        step(tf.constant(np.pad(gradient, [(0, 2), (0, 0)])), tf.constant(padded))
        twin.apply([slices(rows, gradient)], [b])
    np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=2e-6, atol=1e-6)
    for state, wanted in zip(states(row), states(twin), strict=True):
        np.testing.assert_allclose(state, wanted, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("weight_decay", [None, 0.05])
@pytest.mark.parametrize("name", MAKERS)
def test_rows_that_are_not_given_keep_value_and_state(name, weight_decay):
    optimizer, variable = MAKERS[name](weight_decay=weight_decay), table()
    optimizer.apply([slices(np.arange(V), np.ones((V, D)))], [variable])
    before, state = variable.numpy(), states(optimizer)
    for _ in range(3):  # momentum or Adam of Keras would go on moving all rows
        optimizer.apply([slices([5, 9], np.ones((2, D)))], [variable])
    others = np.setdiff1d(np.arange(V), [5, 9])
    np.testing.assert_array_equal(variable.numpy()[others], before[others])
    assert np.all(variable.numpy()[[5, 9]] != before[[5, 9]])
    for old, new in zip(state, states(optimizer), strict=True):
        np.testing.assert_array_equal(new[others], old[others])


@pytest.mark.parametrize("name", MAKERS)
def test_repeated_indices_are_summed_before_anything_else(name):
    results = []
    for rows, values in (
        ([3, 8, 3], [[1.0, 2, 3], [4, 5, 6], [-3, 1, 1]]),
        ([8, 3], [[4.0, 5, 6], [-2, 3, 4]]),
    ):
        optimizer, variable = MAKERS[name](weight_decay=0.1), table()
        for _ in range(2):
            optimizer.apply([slices(rows, values)], [variable])
        results.append([variable.numpy(), *states(optimizer)])
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


@pytest.mark.parametrize("name", MAKERS)
def test_no_operation_but_the_variables_has_as_many_rows_as_the_table(name, outputs_with_rows):
    rows = 7919
    variable = keras.Variable(np.zeros((rows, D), "float32"))
    optimizer = MAKERS[name](weight_decay=0.1)
    optimizer.build([variable])

    @tf.function(autograph=False)
    def step(indices, values):
        optimizer.apply([tf.IndexedSlices(values, indices, tf.constant([rows, D]))], [variable])

    @tf.function(autograph=False)
    def dense_step(indices, values):
        slices = tf.IndexedSlices(values, indices, tf.constant([rows, D]))
        optimizer.apply([tf.convert_to_tensor(slices)], [variable])

    specs = tf.TensorSpec([None], tf.int64), tf.TensorSpec([None, D], tf.float32)
    assert outputs_with_rows(dense_step.get_concrete_function(*specs), rows)
    assert outputs_with_rows(step.get_concrete_function(*specs), rows) == []


@pytest.mark.thorough_after(1)
@pytest.mark.parametrize("name", slow.cases(MAKERS, slow=["RowSGD", "RowAdagrad"]))
def test_trains_a_keras_model_with_dense_layers_and_a_table(name):
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.Input((4,), dtype="int32"), keras.layers.Embedding(V, D), keras.layers.Flatten(),
         keras.layers.Dense(1)]
    )  # fmt: skip
    model.compile(MAKERS[name](), loss="mse", jit_compile=False)
    x = np.random.default_rng(0).integers(0, 20, (64, 4))
    y = (x < 10).mean(1, keepdims=True)
    before = model.layers[0].embeddings.numpy()
    losses = model.fit(x, y, epochs=15, verbose=0).history["loss"]
    assert losses[-1] < 0.5 * losses[0]
    np.testing.assert_array_equal(model.layers[0].embeddings.numpy()[20:], before[20:])


@pytest.mark.parametrize("name", MAKERS)
def test_options_that_act_on_whole_tables_are_refused(name):
    for option in ({"use_ema": True}, {"clipnorm": 1.0}, {"gradient_accumulation_steps": 2}):
        with pytest.raises(ValueError, match="only the given rows"):
            MAKERS[name](**option)
    with pytest.raises(ValueError):
        MAKERS[name](momentum=0.9)


def test_arguments_out_of_range_are_refused():
    with pytest.raises(ValueError, match="beta_1=1"):
        LazyAdam(beta_1=1)
    with pytest.raises(ValueError, match="epsilon=-1"):
        RowAdagrad(epsilon=-1)


@pytest.mark.parametrize("name", MAKERS)
def test_configuration_survives_serialisation(name):
    optimizer = MAKERS[name](weight_decay=0.5)
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(optimizer))
    assert type(again) is type(optimizer) and again.get_config() == optimizer.get_config()
