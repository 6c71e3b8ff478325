"""Charges that come to the weights another way than by `compile` and `fit` of one model."""

import dp_accounting
import keras
import numpy as np
import pytest
import tensorflow as tf
from eager_steps import EAGER, eager_model, fit_steps

import tfdp
from tfdp.errors import BudgetError, PrivacyError

DELTA = 1e-3
N = 40


def elsewhere(model):
    return [s for s in model.privacy_statement(DELTA).assumptions if "came from elsewhere" in s]


def test_checkpoints_carry_charges_whatever_the_model_is_compiled_with(small, tmp_path):
    plain, private = tfdp.make_private(small.base()), eager_model()
    plain.compile("sgd", loss=small.loss, **EAGER)
    for name, model in (("plain", plain), ("private", private)):
        fit_steps(model)
        tf.train.Checkpoint(model=model).write(str(tmp_path / name))
    assert plain.ledger.epsilon(DELTA) == np.inf

    restored = eager_model()
    tf.train.Checkpoint(model=restored).read(str(tmp_path / "plain")).expect_partial()
    assert restored.ledger.epsilon(DELTA) == restored.optimizer.epsilon(DELTA) == np.inf

    restored = tfdp.make_private(small.base())
    restored.compile("sgd", loss=small.loss, **EAGER)
    tf.train.Checkpoint(model=restored).read(str(tmp_path / "private")).expect_partial()
    assert restored.ledger == private.ledger and len(private.ledger) == 1


@pytest.mark.thorough
def test_exports_hold_no_charges(small, tmp_path):
    model = eager_model()
    fit_steps(model)
    model.export(str(tmp_path / "exported"), verbose=False)
    reader = tf.train.load_checkpoint(str(tmp_path / "exported" / "variables" / "variables"))
    assert not [name for name in reader.get_variable_to_shape_map() if "history" in name]


def budgeted(small, steps=6):
    return tfdp.optimizers.DPOptimizer(
        keras.optimizers.SGD(0.1), budget=tfdp.PrivacyBudget(0.5, DELTA),
        num_examples=N, expected_batch_size=10, steps=steps,
    )  # fmt: skip


@pytest.mark.thorough
def test_a_trained_layer_that_joins_while_the_model_is_built_counts_before_the_first_step(small):
    trained = eager_model(noise_multiplier=1.5)
    fit_steps(trained, 2)

    class Late(keras.Model):
        def build(self, shape):
            self.encoder = trained.model.layers[0]
            self.head = keras.layers.Dense(2)
            self.head.build((None, *self.encoder.compute_output_shape(shape)[1:]))
            self.built = True

        def call(self, x):
            return self.head(self.encoder(x))

    model = tfdp.make_private(Late(), validate=False)
    model.compile(budgeted(small), loss=small.loss)
    with pytest.raises(BudgetError, match="charged again after|use up the budget"):
        fit_steps(model, 2, epochs=3)
    assert model.optimizer.steps_taken == trained.optimizer.steps_taken == 2  # and none since


@pytest.mark.thorough
@pytest.mark.parametrize("singly", [False, True])
def test_another_model_on_shared_layers_cannot_break_the_budget(small, singly):
    base = small.base()
    model = tfdp.make_private(base)
    model.compile(budgeted(small), loss=small.loss, run_eagerly=singly)
    shared = keras.Sequential([keras.Input((3,)), *base.layers])
    second = eager_model(shared, noise_multiplier=1.5)

    def train_second(*_):
        fit_steps(second)

    with pytest.raises(BudgetError, match="charged again after"):
        if singly:
            for i, (x, y, w) in enumerate(model.training_batches(small.poisson(steps_per_epoch=4))):
                model.train_on_batch(x, y, w)
                if i == 1:
                    train_second()
        else:
            callback = keras.callbacks.LambdaCallback(on_epoch_end=train_second)
            fit_steps(model, 2, epochs=3, callbacks=[callback])
    assert model.optimizer.steps_taken == 2 + 1


def test_layers_that_are_unfrozen_during_a_fit_are_not_trained_uncharged(small):
    below = keras.layers.Dense(3)
    inner = keras.Sequential(
        [
            keras.Input((3,)),
            below,
            tfdp.layers.DPForwardNoise(1.0, 2.0, gradient="propagate"),
            keras.layers.Dense(2),
        ]
    )
    below.trainable = False
    model = tfdp.make_private(inner, validate=False)
    model.compile("sgd", loss=small.loss, run_eagerly=True)
    before = below.get_weights()[0]

    def unfreeze(*_):
        below.trainable = True

    callback = keras.callbacks.LambdaCallback(on_epoch_end=unfreeze)
    data = tfdp.data.shuffled_epochs(small.data(), 10)
    with pytest.raises(PrivacyError, match="frozen or unfrozen"):
        model.fit(data, epochs=2, verbose=0, callbacks=[callback])
    np.testing.assert_array_equal(below.get_weights()[0], before)


def test_files_that_cannot_carry_charges_are_refused(small, tmp_path):
    model = eager_model()
    ways = (keras.Model.save, keras.saving.save_model, keras.models.save_model)
    for number, save in enumerate(ways):
        save(small.base(), tmp_path / f"untrained{number}.h5")
        assert keras.models.load_model(tmp_path / f"untrained{number}.h5").built
    fit_steps(model)
    for save in ways:
        for one in (model, model.model):
            with pytest.raises(PrivacyError, match="`filepath`.*legacy HDF5"):
                save(one, tmp_path / "trained.h5")
    assert not (tmp_path / "trained.h5").exists()


def test_values_of_an_attention_layer_that_was_built_before_are_initial(small):
    inputs = keras.Input((5, 4))
    x = keras.layers.MultiHeadAttention(2, 2)(inputs, inputs)
    outputs = keras.layers.Dense(2)(keras.layers.Flatten()(x))
    model = tfdp.make_private(keras.Model(inputs, outputs))
    model.compile(small.optimizer(), loss=small.loss)
    assert not model.weight_origin.elsewhere()
    kernel = model.trainable_variables[0]
    value = kernel.numpy()
    value.ravel()[0] += 1e-3
    kernel.assign(value)
    assert model.weight_origin.elsewhere() == [kernel.path]


def test_a_callback_of_the_users_own_is_listed_as_trusted(small):
    class Mine(keras.callbacks.Callback):
        pass

    model = eager_model()
    fit_steps(model, callbacks=[Mine(), keras.callbacks.TerminateOnNaN()])
    statement = model.privacy_statement(DELTA)
    trusted = [s for s in statement.assumptions if "callback" in s]
    assert len(trusted) == 1 and "Mine" in trusted[0]
    (stops,) = (s for s in statement.not_covered if "TerminateOnNaN" in s)
    assert "follows 'loss' (from the training data)" in stops
    schedule = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate)
    fit_steps(model, callbacks=[keras.callbacks.LambdaCallback(), schedule])
    assumed = model.privacy_statement(DELTA).assumptions
    assert any("callback LambdaCallback does not give" in s for s in assumed)
    assert any("the schedule of LearningRateScheduler" in s for s in assumed)


def test_a_loop_of_the_users_own_is_listed_as_trusted(small):
    model = eager_model()
    for batch in model.training_batches(small.poisson(steps_per_epoch=1)):
        model.train_on_batch(*batch)
    (loop,) = (s for s in model.privacy_statement(DELTA).assumptions if "`training_batches`" in s)
    assert "does not give the model other weights" in loop


def test_the_meter_serves_forward_noise_that_is_resumed(small, tmp_path):
    class Crash(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 1:
                raise RuntimeError("crash")

    def fit(limit, *more):
        inner = keras.Sequential(
            [
                keras.Input((3,)),
                tfdp.layers.DPForwardNoise(clip_norm=1.0, noise_multiplier=2.0),
                keras.layers.Dense(2),
            ]
        )
        model = tfdp.make_private(inner, validate=False)
        model.compile("sgd", loss=small.loss, **EAGER)
        meter = tfdp.callbacks.PrivacyMeter(delta=DELTA, max_epsilon=limit)
        backup = keras.callbacks.BackupAndRestore(tmp_path / "backup")
        data = tfdp.data.shuffled_epochs(small.data(), 20)
        history = None
        try:
            history = model.fit(data, epochs=9, verbose=0, callbacks=[meter, backup, *more])
        except RuntimeError as error:
            assert "crash" in str(error)
        return model, history

    three = tfdp.accounting.epsilon(dp_accounting.GaussianDpEvent(2.0 / np.sqrt(3)), DELTA)
    first, _ = fit(three * 1.001, Crash())
    assert first.ledger.epsilon(DELTA) > 0
    resumed, history = fit(three * 1.001)
    spent = resumed.ledger.epsilon(DELTA)
    assert first.ledger.epsilon(DELTA) < spent <= three * 1.001
    assert all(shown >= 0.999 * first.ledger.epsilon(DELTA) for shown in history.history["epsilon"])
    assert history.history["epsilon"][-1] >= spent * (1 - 1e-9)
