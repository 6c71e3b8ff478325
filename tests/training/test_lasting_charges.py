"""Charges outlive what charged them: optimizers, wrappers, builds, files."""

import gc
import math

import dp_accounting
import keras
import pytest
import tensorflow as tf
from eager_steps import EAGER, eager_model, fit_steps
from epsilon_by_hand import DELTA, assert_one, by_hand, poisson

import tfdp
from tfdp.errors import PrivacyError


@pytest.mark.thorough
@pytest.mark.parametrize("then", ["private", "plain", "wrapper dropped"])
def test_charges_outlive_what_charged_them(small, then):
    base = small.base()
    model = eager_model(base)
    x, y = small.data()
    for _ in range(2):
        model.train_on_batch(x[:10], y[:10])
    if then == "wrapper dropped":
        layer = base.layers[0]
        del model, base
        gc.collect()
        model = eager_model(keras.Sequential([keras.Input((3,)), layer]))
    else:
        model.compile(small.optimizer() if then == "private" else "sgd", loss=small.loss)
    gc.collect()
    assert model.ledger.epsilon(DELTA) == math.inf
    assert model.privacy_statement(DELTA).epsilon == math.inf


@pytest.mark.thorough
def test_an_optimizer_knows_of_charges_that_came_since_it_was_compiled(small):
    """Its model shares a layer that another one has built and trained; nobody asked the model."""
    encoder = keras.layers.Dense(4)
    first, second = (
        tfdp.make_private(keras.Sequential([encoder, keras.layers.Dense(2)])) for _ in range(2)
    )
    for model in (first, second):
        model.compile(small.optimizer(noise_multiplier=4.0), loss=small.loss, **EAGER)
    fit_steps(first, 4)
    assert second.optimizer.epsilon(DELTA) == pytest.approx(
        by_hand(poisson(4.0, 0.25, 4)), rel=1e-6
    )


@pytest.mark.thorough
@pytest.mark.parametrize("plain", [False, True])
def test_a_model_that_its_first_batch_builds_keeps_its_ledger(small, plain):
    """An encoder trained there, then frozen and reused, brings what it cost."""
    encoder = keras.layers.Dense(4)
    first = tfdp.make_private(keras.Sequential([encoder, keras.layers.Dense(2)]))
    optimizer = "sgd" if plain else small.optimizer(noise_multiplier=8.0)
    first.compile(optimizer, loss=small.loss, **EAGER)
    first.fit(*small.data(), verbose=0) if plain else fit_steps(first, 4)
    encoder.trainable = False
    second = eager_model(keras.Sequential([encoder, keras.layers.Dense(2)]), noise_multiplier=4.0)
    del first
    gc.collect()
    fit_steps(second, 2)
    expected = by_hand(poisson(8.0, 0.25, 4), poisson(4.0, 0.25, 2))
    assert_one(second, math.inf if plain else expected)


@pytest.mark.thorough
def test_a_step_of_a_subclass_is_counted(small):
    class Own(tfdp.models.DPModel):
        def __init__(self, private):
            super().__init__()
            self.dense, self.private = keras.layers.Dense(2), private

        def call(self, x):
            return self.dense(x)

        def train_step(self, data):
            if self.private:
                return super().train_step(data)
            x, y, _ = keras.utils.unpack_x_y_sample_weight(data)
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self(x, training=True)))
            kernel = self.dense.kernel
            kernel.assign_sub(0.1 * tape.gradient(loss, kernel.value))
            return {"loss": loss}

    for private in (True, False):
        model = Own(private)
        model.compile(small.optimizer(noise_multiplier=4.0), loss=small.loss)
        model.fit(small.poisson(), verbose=0)
        expected = by_hand(poisson(4.0, 0.25, 4)) if private else math.inf
        assert_one(model, expected)
        assert any("train_step" in s for s in model.privacy_statement(DELTA).assumptions)


def test_steps_that_could_escape_the_charge_do_not(small):
    class Raw:
        def train_step(self, data):
            x, y, _ = keras.utils.unpack_x_y_sample_weight(data)
            self.dense.kernel.assign_add(tf.ones_like(self.dense.kernel))
            if self.fails:
                raise RuntimeError("after the fact")
            return {"loss": tf.reduce_mean(self(x))}

    class Mixed(Raw, tfdp.models.DPModel):
        fails = False

        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(2)

        def call(self, x):
            return self.dense(x)

    class Twice(Mixed):
        def train_step(self, data):
            tfdp.models.DPModel.train_step(self, data)
            return tfdp.models.DPModel.train_step(self, data)

    batches = small.poisson(steps_per_epoch=1)
    for fails in (False, True):
        model = Mixed()
        model.fails = fails
        model.compile(small.optimizer(), loss=small.loss, run_eagerly=True)
        try:
            model.fit(batches, verbose=0)
        except RuntimeError:
            pass
        assert_one(model, math.inf)
    model = Twice()
    model.compile(small.optimizer(), loss=small.loss)
    with pytest.raises(PrivacyError, match="twice"):
        model.fit(batches, verbose=0)
    model = small.model()
    model.train_step = lambda data: {}
    with pytest.raises(PrivacyError, match="assigned to the model"):
        model.compile(small.optimizer(), loss=small.loss)


@pytest.mark.parametrize("name", ["train_step", "make_train_function", "train_function"])
def test_a_step_that_is_assigned_after_compile_is_refused(small, name):
    batches = small.poisson(steps_per_epoch=1)
    ways = (
        lambda model: model.fit(batches, verbose=0),
        lambda model: model.train_on_batch(*small.data()),
        lambda model: next(model.training_batches(batches)),
        lambda model: tfdp.models.DPModel.make_train_function(model),  # may not make it known
        lambda model: model.fit(batches, verbose=0),
    )
    for steps in (0, 1):
        model = eager_model()
        model.fit(batches, epochs=steps, verbose=0)
        setattr(model, name, lambda *args, **kwargs: {})
        for train in ways:
            with pytest.raises(PrivacyError, match=f"A `{name}` was assigned to the model"):
                train(model)
        assert model.optimizer.steps_taken == steps


def test_steps_of_a_class_that_changes_after_compile_are_charged(small):
    class Own(tfdp.models.DPModel):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(2)

        def call(self, x):
            return self.dense(x)

    def raw(self, data):
        self.dense.kernel.assign_add(tf.ones_like(self.dense.kernel))
        return {}

    model = Own()
    model.compile(small.optimizer(), loss=small.loss, run_eagerly=True)
    Own.train_step = raw  # before Keras has made the function of its steps
    for batch in model.training_batches(small.poisson(steps_per_epoch=1)):
        model.train_on_batch(*batch)
    assert_one(model, math.inf)
    Own.make_train_function = lambda self, force=False: None
    with pytest.raises(PrivacyError, match="its own `make_train_function`"):
        model.fit(small.poisson(), verbose=0)


@pytest.mark.thorough
@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.filterwarnings("ignore:Layer InputLayer does not have a `quantize` method")
def test_layers_that_replace_their_variables_keep_the_charges(small, tmp_path, saved):
    layers = [keras.layers.Dense(4, name="frozen"), keras.layers.Dense(2, use_bias=False)]
    inner = keras.Sequential([keras.Input((3,)), *layers])
    layers[0].trainable = False
    model = eager_model(inner, noise_multiplier=4.0)
    fit_steps(model, 2)
    inner.quantize("int8")
    assert not inner.trainable_variables
    if saved:
        inner.save(tmp_path / "inner.keras")
        inner = keras.models.load_model(tmp_path / "inner.keras")
    again = tfdp.make_private(keras.Sequential([keras.Input((3,)), *inner.layers]), validate=False)
    again.compile(small.optimizer(noise_multiplier=4.0), loss=small.loss, run_eagerly=True)
    assert_one(again, by_hand(poisson(4.0, 0.25, 2)))


def test_the_ledger_of_a_model_is_charged_through_the_model():
    model = eager_model(noise_multiplier=4.0)
    fit_steps(model, 2)
    event = dp_accounting.GaussianDpEvent(3.0)
    for ledger in (model.ledger, model.optimizer.ledger):
        for change, given in ((ledger.add, ("counts", event)), (ledger.merge, (ledger,))):
            with pytest.raises(ValueError, match=r"Charge the model, `model.charge\("):
                change(*given)
    for _ in range(2):  # equal, and each costs
        model.charge("counts", event)
    assert_one(model, by_hand(poisson(4.0, 0.25, 2), event, event))


@pytest.mark.thorough
def test_an_optimizer_that_is_set_without_compile_charges_the_weights(small):
    model = eager_model()
    model.optimizer = small.optimizer(noise_multiplier=4.0)
    fit_steps(model, 4)
    assert_one(model, by_hand(poisson(4.0, 0.25, 4)))
    model = eager_model()
    model.optimizer = keras.optimizers.SGD()
    x, y = small.data()
    model.train_on_batch(x, y)
    model.compile(small.optimizer(), loss=small.loss)
    assert_one(model, math.inf)


def by_python(x):
    """What no graph shows."""
    return tf.ensure_shape(tf.numpy_function(lambda x: 2 * x, [x], tf.float32), x.shape)


@pytest.mark.thorough
def test_what_a_run_did_is_not_lost_by_compile_or_load(small, tmp_path):
    model = eager_model(seed=3)
    data = small.poisson(steps_per_epoch=1).map(lambda x, y, w: (by_python(x), y, w))
    model.fit(data, verbose=0, callbacks=[keras.callbacks.EarlyStopping("loss")])
    model.compile(small.optimizer(), loss=small.loss, **EAGER)
    fit_steps(model)
    model.save(tmp_path / "m.keras")
    for candidate in (model, keras.models.load_model(tmp_path / "m.keras")):
        text = " ".join(str(candidate.privacy_statement(DELTA)).split())
        assert "EarlyStopping" in text and "each `map` after sampling" in text
        assert "fixed seed 3" in text and "not a private one" in text


@pytest.mark.thorough
def test_parts_of_loaded_models_bring_their_charges(small, tmp_path):
    base = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4), keras.layers.Dense(2)])
    model = eager_model(base, noise_multiplier=8.0)
    fit_steps(model, 4)
    expected = by_hand(poisson(8.0, 0.25, 4), poisson(4.0, 0.25, 2))
    base.save(tmp_path / "base.keras")
    keras.Model(base.inputs, base.layers[0].output).save(tmp_path / "encoder.keras")
    for name in ("base", "encoder"):
        loaded = keras.models.load_model(tmp_path / f"{name}.keras")
        whole = keras.Sequential([keras.Input((3,)), loaded, keras.layers.Dense(2)])
        other = eager_model(whole, noise_multiplier=4.0)
        fit_steps(other, 2)
        assert_one(other, expected)


def test_plain_training_between_two_compiles_of_the_inner_model_is_counted(small):
    base = small.base()
    model = eager_model(base)
    base.compile("sgd", loss=small.loss, **EAGER)
    base.fit(*small.data(), verbose=0)
    base.compile("adam", loss=small.loss)
    assert_one(model, math.inf)
