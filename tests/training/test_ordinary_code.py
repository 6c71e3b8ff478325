"""What users write in Keras every day trains privately, or is refused in one clear sentence."""

import keras
import numpy as np
import pytest
import slow
import tensorflow as tf
from eager_steps import EAGER, eager_model, fit_steps
from keras import layers

import tfdp
from tfdp.clipping import per_example_gradient_norms
from tfdp.errors import PrivacyError

N = 40
X = np.random.default_rng(0).normal(size=(N, 3)).astype(np.float32)
Y = np.random.default_rng(1).integers(0, 2, N).astype(np.int32)
IDS = np.abs(X * 2).astype(np.int32)


class ByName(keras.Model):
    def __init__(self):
        super().__init__()
        self.one, self.two = layers.Dense(2), layers.Dense(2)

    def call(self, inputs):
        return self.one(inputs["a"]) + self.two(inputs["b"])


class ByPlace(ByName):
    def call(self, inputs):
        return self.one(inputs[0]) + self.two(inputs[1])


@pytest.mark.thorough
@pytest.mark.parametrize(
    "model, x", [(ByName, {"a": X, "b": X}), (ByPlace, (X, X)), (ByPlace, [X, X])],
    ids=["dict", "tuple", "list"],
)  # fmt: skip
def test_subclassed_models_take_several_inputs(small, model, x):
    private = small.model(model(), compile_kwargs={"run_eagerly": model is ByPlace})
    private.fit(small.poisson((x, Y), steps_per_epoch=1), verbose=0)
    assert private.predict(x, verbose=0).shape == (N, 2)


def square(y_true, y_pred):
    return tf.square(y_true - y_pred)


class Square(keras.losses.Loss):
    def call(self, y_true, y_pred):
        return tf.reduce_mean(tf.square(y_true - y_pred), -1)


@pytest.fixture(scope="module")
def of_squares():
    """A model, and the norms of its gradients by Keras' own squared error."""
    model = keras.Sequential([keras.Input((3,)), layers.Dense(1)])
    y = Y[:4, None].astype("float32")
    return model, per_example_gradient_norms(model, X[:4], y, "mse")


@pytest.mark.thorough
@pytest.mark.parametrize("loss", [square, Square()], ids=["function", "class"])
@pytest.mark.parametrize("dtype", ["int32", "float64", "bool"])
def test_losses_of_ones_own_get_labels_as_in_keras(loss, dtype, of_squares):
    model, wanted = of_squares
    found = per_example_gradient_norms(model, X[:4], Y[:4, None].astype(dtype), loss)
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_one_table_is_read_by_ids_of_two_kinds():
    a, b = keras.Input((3,), dtype="int32"), keras.Input((3,), dtype="int64")
    table = layers.Embedding(9, 2)
    model = keras.Model([a, b], layers.Flatten()(layers.Concatenate(1)([table(a), table(b)])))
    one = keras.Sequential([keras.Input((6,), dtype="int32"), table, layers.Flatten()])
    y = np.zeros((4, 12))
    found = per_example_gradient_norms(model, [IDS[:4], IDS[4:8].astype("int64")], y, "mse")
    wanted = per_example_gradient_norms(one, np.concatenate([IDS[:4], IDS[4:8]], 1), y, "mse")
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_norms_of_ragged_inputs():
    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.table = tfdp.layers.SparseEmbedding(9, 3, combiner="sum")
            self.out = layers.Dense(1)

        def call(self, x):
            return self.out(self.table(x))

    ragged = tf.ragged.constant([[1, 2], [1, 2, 4]], dtype=tf.int64)
    model = Model()
    model(ragged)
    norms = per_example_gradient_norms(model, ragged, np.ones((2, 1)), "mse")
    alone = [
        per_example_gradient_norms(model, ragged[i : i + 1], np.ones((1, 1)), "mse")[0]
        for i in range(2)
    ]
    np.testing.assert_allclose(norms, alone, rtol=1e-6)


def test_a_model_that_is_not_compiled_says_so(small):
    private = tfdp.make_private(small.base())
    for train in (private.fit, private.train_on_batch):
        with pytest.raises(ValueError, match="not compiled.*compile"):
            train(X, Y)


@pytest.mark.parametrize("name", ["num_examples", "expected_batch_size", "noise_multiplier",
                                  "clip_norm", "microbatch_size", "steps"])  # fmt: skip
@pytest.mark.parametrize("value", ["1", None, [1]])
def test_arguments_of_another_kind_are_named(small, name, value):
    if value is None and name != "clip_norm":
        return
    with pytest.raises(ValueError, match=f"Argument `{name}` must"):
        small.optimizer(**{name: value})


@pytest.mark.thorough
@pytest.mark.parametrize("microbatch_size", [None, 4])
def test_the_losses_of_outputs_add_up_to_the_loss(small, microbatch_size):
    x = keras.Input((3,))
    base = keras.Model(x, {name: layers.Dense(1, name=name)(x) for name in ("a", "b")})
    private = small.model(
        base, {"a": "mse", "b": "mse"},
        {"loss_weights": {"a": 0.5, "b": 2.0}, **EAGER},
        noise_multiplier=0.0, microbatch_size=microbatch_size, inner=keras.optimizers.SGD(0.0),
    )  # fmt: skip
    targets = {"a": X[:, :1] + 3, "b": X[:, 1:2] - 3}
    batches = small.poisson((X, targets), steps_per_epoch=1)
    logs = private.fit(batches, epochs=2, verbose=0).history
    np.testing.assert_allclose(
        logs["loss"], 0.5 * np.array(logs["a_loss"]) + 2 * np.array(logs["b_loss"]), rtol=1e-5
    )


def texts():
    return np.array(["a b", "c d"] * (N // 2), object)


@pytest.fixture(scope="module")
def vectorization():
    layer = layers.TextVectorization(20, output_sequence_length=4)
    layer.adapt(["a b c", "d e"])
    return layer


def text_model(*first):
    return keras.Sequential([*first, layers.Embedding(20, 3), layers.Flatten(), layers.Dense(2)])


def two(vectorization):
    return lambda x, y: (vectorization(x), y)


def three(vectorization):
    return lambda x, y, weights: (vectorization(x), y, weights)


def without_weights(vectorization):
    return lambda x, y, weights: (vectorization(x), y)


@pytest.mark.thorough
@pytest.mark.parametrize("how", [two, three, without_weights])
def test_texts_are_taken_apart_after_sampling(small, vectorization, how):
    batches = small.poisson((texts(), Y), steps_per_epoch=2)
    mapped = batches.map(how(vectorization))
    mask = [np.asarray(weights) != 0 for *_, weights in mapped]
    assert not all(m.all() for m in mask) and any(m.any() for m in mask)
    private = eager_model(text_model(keras.Input((4,), dtype="int64")))
    private.fit(mapped, verbose=0)


def test_a_map_that_changes_rows_is_still_refused(small):
    batches = small.poisson((X, Y)).map(lambda x, y: (tf.concat([x, x], 0), y))
    with pytest.raises(PrivacyError, match="changed the number of rows"):
        small.model().fit(batches, verbose=0)


def test_texts_are_taken_apart_in_the_model(small, vectorization):
    # Adam's variables are made in the step, which is then traced and examined again.
    base = text_model(keras.Input((1,), dtype="string"), vectorization)
    private = small.model(base, inner=keras.optimizers.Adam())
    private.fit(small.poisson((texts()[:, None], Y), steps_per_epoch=1), verbose=0)


@pytest.mark.thorough
def test_functional_models_are_converted_after_fit(small):
    private = eager_model()
    fit_steps(private)
    assert len(tf.lite.TFLiteConverter.from_keras_model(private).convert()) > 100


@pytest.mark.thorough
def test_a_metric_of_the_whole_batch_sees_no_padding(small):
    def smallest(y_true, y_pred):
        return tf.reduce_min(tf.cast(y_true, tf.float32))  # padding would be 0

    private = small.model(compile_kwargs={"metrics": [smallest], **EAGER})
    x, y = small.data()
    logs = private.fit(small.poisson((x, y * 0 + 1)), verbose=0).history
    assert logs["smallest"] == [1.0]


@pytest.mark.thorough
def test_a_metric_of_each_example_keeps_its_name(small):
    def error(y_true, y_pred):
        return tf.cast(tf.argmax(y_pred, -1, tf.int32) != tf.cast(y_true, tf.int32), tf.float32)

    settings = {"metrics": [error, "accuracy"], **EAGER}
    private = small.model(compile_kwargs=settings, noise_multiplier=0.0)
    logs = private.fit(small.poisson(), verbose=0).history
    assert logs["error"][0] == pytest.approx(1 - logs["accuracy"][0], abs=1e-6)


def test_a_row_optimizer_belongs_to_one_model(small):
    rows = tfdp.optimizers.RowAdagrad(0.1)

    def model():
        return eager_model(
            keras.Sequential([keras.Input((3,), dtype="int32"), tfdp.layers.SparseEmbedding(9, 2),
                              layers.Flatten(), layers.Dense(2)]),
            selection=tfdp.selection.AdaFEST(1.0, noise_ratio=1.0, contribution_norm=1.0),
            embedding_optimizer=rows,
        )  # fmt: skip

    first = model()
    for _ in range(2):
        first.fit(small.poisson((IDS, Y), steps_per_epoch=1), verbose=0)
    with pytest.raises(ValueError, match="`embedding_optimizer` .*another model.*RowAdagrad"):
        model().fit(small.poisson((IDS, Y), steps_per_epoch=1), verbose=0)


def test_layers_that_write_or_remember_are_refused_by_name(small):
    for layer, shape, message in (
        (layers.SpectralNormalization(layers.Dense(2)), (3,), "kernel_constraint"),
        (layers.GRU(2, stateful=True), (4, 3), "stateful"),
        (layers.BatchNormalization(), (3,), "replace_batch_norm"),
    ):
        base = keras.Sequential([keras.Input(shape, batch_size=10), layer])
        with pytest.raises(PrivacyError, match=message):
            tfdp.make_private(base)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:Layer .* has no clipping rule, and TensorFlow cannot")
def test_a_scan_around_a_layer_is_served(small):
    class Steps(keras.Model):
        def __init__(self):
            super().__init__()
            self.cell, self.out = layers.Dense(3), layers.Dense(1)
            self.cell.build((None, 3))

        def call(self, x):
            rows = keras.ops.transpose(x, (1, 0, 2))
            last, _ = keras.ops.scan(
                lambda h, row: (keras.ops.tanh(self.cell(h)) + row, h),
                keras.ops.zeros_like(rows[0]), rows,
            )  # fmt: skip
            return self.out(last)

    x = np.random.default_rng(2).normal(size=(2, 3, 3)).astype(np.float32)
    model, y = Steps(), np.ones((2, 1), np.float32)
    norms = per_example_gradient_norms(model, x, y, "mse")
    for i in range(2):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(model(x[i : i + 1]) - y[i]))
        gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
        true = np.sqrt(sum(np.sum(np.square(g)) for g in gradients))
        assert norms[i] == pytest.approx(true, rel=1e-5)


@pytest.mark.thorough
def test_logs_that_are_written_to_a_file_hold_epsilon(tmp_path):
    path = tmp_path / "log.csv"
    callbacks = [keras.callbacks.CSVLogger(path), tfdp.callbacks.PrivacyMeter()]
    fit_steps(eager_model(), callbacks=callbacks)
    assert "epsilon" in path.read_text().splitlines()[0].split(",")


@pytest.mark.thorough
def test_a_fit_that_the_budget_ends_says_so():
    budget = tfdp.PrivacyBudget(epsilon=0.5, delta=1e-3)
    private = eager_model(budget=budget, steps=3)
    with pytest.warns(UserWarning, match="ends after 3 steps, in epoch 2 of 5.*steps="):
        fit_steps(private, 2, epochs=5)


@pytest.mark.thorough
@pytest.mark.parametrize("at_once", slow.cases([3, 7], slow=[7]))
def test_executions_that_do_not_divide_an_epoch_take_all_steps_of_a_budget(small, at_once):
    budget, together = tfdp.PrivacyBudget(0.5, 1e-3), {"steps_per_execution": at_once}
    model = small.model(compile_kwargs=together, budget=budget, steps=25)
    with pytest.warns(UserWarning, match="ends after 25 steps, in epoch 4 of 4"):
        fit_steps(model, 8, epochs=4)
    assert model.optimizer.steps_taken == 25


@pytest.mark.thorough
@pytest.mark.parametrize("at_once", slow.cases([3, 7], slow=[3]))
def test_executions_that_do_not_divide_an_epoch_end_at_the_last_that_a_meter_allows(small, at_once):
    together = {"steps_per_execution": at_once}
    model = small.model(compile_kwargs=together, noise_multiplier=4.0)
    limit = model.optimizer.epsilon_after(18, 1e-3) * (1 + 1e-9)
    meter = tfdp.callbacks.PrivacyMeter(delta=1e-3, max_epsilon=limit)
    fit_steps(model, 8, epochs=3, callbacks=[meter])
    assert 18 - at_once < model.optimizer.steps_taken <= 18


def test_a_list_of_callbacks_may_be_one_of_keras(small):
    model, seen = eager_model(budget=tfdp.PrivacyBudget(0.5, 1e-3), steps=2), []
    watch = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append(logs))
    callbacks = keras.callbacks.CallbackList([watch], add_history=True, model=model, epochs=1)
    fit_steps(model, 2, callbacks=callbacks)
    assert len(seen) == 1 and model.optimizer.steps_taken == 2


@pytest.mark.thorough
def test_a_fit_that_ends_with_its_last_epoch_says_nothing(recwarn):
    budget = tfdp.PrivacyBudget(epsilon=0.5, delta=1e-3)
    fit_steps(eager_model(budget=budget, steps=2), 2)
    assert not [w for w in recwarn if "ends after" in str(w.message)]
