"""A DPOptimizer takes from the data and the epochs of `fit` what it is not told: said once."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tfdp.errors import BudgetError, PrivacyError
from tfdp.optimizers import calibrating

BUDGET = tfdp.PrivacyBudget(epsilon=0.5, delta=1e-3)


def made(small, budget=BUDGET, run_eagerly=True, **kwargs):
    """A model whose optimizer knows its budget, and nothing of the data; its steps run eagerly."""
    model = tfdp.make_private(small.base())
    optimizer = tfdp.optimizers.DPOptimizer(keras.optimizers.SGD(0.1), budget=budget, **kwargs)
    model.compile(optimizer, loss=small.loss, jit_compile=False, run_eagerly=run_eagerly)
    return model


@pytest.mark.thorough
@pytest.mark.parametrize(
    "sampler",
    [
        lambda data: tfdp.data.poisson_batches(data, 20),
        lambda data: tfdp.data.allocated_epochs(data, 2),
    ],
)
def test_the_short_form_is_charged_and_stated_as_the_long_one(small, sampler):
    short = made(small)
    short.fit(sampler(small.data()), epochs=2, verbose=0)
    long = made(small, num_examples=small.n, expected_batch_size=20, steps=4)
    long.fit(sampler(small.data()), epochs=2, verbose=0)
    assert short.optimizer.noise_multiplier == long.optimizer.noise_multiplier
    assert short.optimizer.epsilon() == long.optimizer.epsilon() <= BUDGET.epsilon
    assert str(short.privacy_statement()) == str(long.privacy_statement())
    configs = [one.optimizer.get_config() for one in (short, long)]
    for config in configs:
        config.pop("optimizer")  # SGDs of other names
    assert configs[0] == configs[1]


def test_a_noise_multiplier_needs_no_steps(small, tmp_path):
    model = made(small, budget=None, noise_multiplier=1.5)
    model.save(tmp_path / "m.keras")  # before it knows them
    model = keras.saving.load_model(tmp_path / "m.keras")
    for epochs in (1, 2):
        model.fit(small.poisson(batch=np.float32(10), steps_per_epoch=1), epochs=epochs, verbose=0)
    model.save(tmp_path / "m.keras")
    assert model.optimizer.steps_taken == 3 and model.optimizer.steps is None
    assert model.optimizer.expected_batch_size == 10 and model.optimizer.num_examples == small.n


def test_arrays_give_their_number_and_their_batches(small):
    model = made(small)
    with pytest.warns(UserWarning, match="Without amplification"):
        model.fit(*small.data(), batch_size=20, epochs=2, verbose=0)
    assert model.optimizer.steps == 4 and model.optimizer.epsilon() <= BUDGET.epsilon


@pytest.mark.thorough
def test_persons_give_the_unit(small):
    batches = small.poisson(
        batch=5, privacy_ids=np.repeat(np.arange(20), 2), max_records_per_unit=2
    )
    model = made(small)
    model.fit(batches, epochs=1, verbose=0)
    assert (model.optimizer.max_records_per_unit, model.optimizer.num_examples) == (2, 20)
    assert "one person" in str(model.privacy_statement())


@pytest.mark.thorough
@pytest.mark.parametrize(
    "settings, message",
    [({"microbatch_size": 3}, "`microbatch_size` must be a multiple of `max_records_per_unit`"),
     ({"budget": tfdp.PrivacyBudget(0.5, 0.06)}, "at most 1/num_examples")],
)  # fmt: skip
def test_settings_that_do_not_fit_the_persons_of_the_data_are_refused(small, settings, message):
    # 20 persons of two records: none is divided, and delta is at most 1/20.
    ids = np.repeat(np.arange(20), 2)
    model = made(small, **settings)
    with pytest.raises(ValueError, match=message):
        model.fit(small.poisson(batch=5, privacy_ids=ids, max_records_per_unit=2), verbose=0)
    assert model.optimizer.num_examples is None


@pytest.mark.thorough
def test_a_second_fit_does_not_go_beyond_the_budget(small):
    model = made(small, run_eagerly=False)
    model.fit(small.poisson(), epochs=1, verbose=0)
    weights = model.get_weights()
    with pytest.raises(BudgetError, match="all 4 steps have run.*`steps=`"):
        model.fit(small.poisson(), epochs=1, verbose=0)
    assert model.optimizer.steps_taken == 4 and model.optimizer.epsilon() <= BUDGET.epsilon
    np.testing.assert_array_equal(weights[0], model.get_weights()[0])


class _Stop(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        raise KeyboardInterrupt


@pytest.mark.parametrize("epochs", [3, 30])
def test_a_fit_that_was_interrupted_goes_on_within_the_steps_of_the_first(small, epochs):
    model = made(small)
    with pytest.raises(KeyboardInterrupt):
        model.fit(small.poisson(steps_per_epoch=1), epochs=3, verbose=0, callbacks=[_Stop()])
    if epochs == 3:
        model.fit(small.poisson(steps_per_epoch=1), epochs=epochs, verbose=0)
    else:
        with pytest.warns(UserWarning, match="allows no more"):
            model.fit(small.poisson(steps_per_epoch=1), epochs=epochs, verbose=0)
    assert model.optimizer.steps_taken == 3 and model.optimizer.epsilon() <= BUDGET.epsilon


@pytest.mark.thorough
def test_weights_that_are_loaded_go_on_where_they_were(small, tmp_path):
    model = made(small)
    with pytest.raises(KeyboardInterrupt):
        model.fit(small.poisson(steps_per_epoch=1), epochs=3, verbose=0, callbacks=[_Stop()])
    model.save_weights(tmp_path / "w.weights.h5")
    again = made(small)
    again.load_weights(tmp_path / "w.weights.h5")
    again.fit(small.poisson(steps_per_epoch=1), epochs=3, initial_epoch=1, verbose=0)
    assert again.optimizer.steps_taken == 3 and again.optimizer.epsilon() <= BUDGET.epsilon
    assert len(again.ledger) == 1  # one noise multiplier for both parts
    model.save(tmp_path / "m.keras")
    loaded = keras.saving.load_model(tmp_path / "m.keras")
    assert (loaded.optimizer.num_examples, loaded.optimizer.steps) == (small.n, 3)
    assert loaded.optimizer.steps_left == 2


@pytest.mark.thorough
def test_a_fit_that_ends_within_its_last_epoch_says_so(small):
    model = made(small, num_examples=small.n, expected_batch_size=10, steps=3)
    with pytest.warns(UserWarning, match="ends after 3 steps, in epoch 1 of 1"):
        model.fit(small.poisson(), verbose=0)
    assert model.optimizer.steps_taken == 3


@pytest.mark.thorough
def test_a_fit_that_was_refused_fixes_no_steps(small):
    model = made(small)
    x, y = small.data()
    bad = keras.callbacks.LambdaCallback(on_train_begin=lambda logs: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model.fit(small.poisson(steps_per_epoch=2), epochs=1, verbose=0, callbacks=[bad])
    assert model.optimizer.steps == 2
    model.fit(small.poisson(steps_per_epoch=2), epochs=2, verbose=0)
    assert model.optimizer.steps == model.optimizer.steps_taken == 4
    assert model.optimizer.epsilon() <= BUDGET.epsilon


@pytest.mark.thorough
def test_data_that_were_refused_fix_nothing(small):
    model = made(small, expected_batch_size=20)
    with pytest.raises(PrivacyError, match="expected_batch_size=10, but"):
        model.fit(small.poisson(), verbose=0)
    model.fit(small.poisson(small.data(60), batch=20, steps_per_epoch=2), verbose=0)
    assert model.optimizer.num_examples == 60 and model.optimizer.epsilon() <= BUDGET.epsilon


def test_layers_and_callbacks_are_told_the_noise_of_the_batches_of_the_run(small):
    model, told = made(small), []
    tell = keras.callbacks.LambdaCallback(
        on_train_begin=lambda logs: told.append(model.optimizer.noise_multiplier)
    )
    model.fit(tfdp.data.allocated_epochs(small.data(), 2), epochs=1, verbose=0, callbacks=[tell])
    (entry,) = model.ledger.entries
    assert told == [entry.event.noise_multiplier] == [model.optimizer.noise_multiplier]


@pytest.mark.thorough
def test_what_was_taken_is_fixed(small):
    model = made(small)
    model.fit(small.poisson(), epochs=1, steps_per_epoch=2, verbose=0)
    assert model.optimizer.steps == 2
    with pytest.raises(PrivacyError, match="expected_batch_size=20, but.*expected_batch_size=10"):
        model.fit(small.poisson(batch=20), verbose=0)
    for name in ("num_examples", "expected_batch_size", "steps"):
        with pytest.raises(AttributeError, match="cannot be changed"):
            setattr(model.optimizer, name, 10)


@pytest.mark.thorough
def test_what_was_given_is_still_compared(small):
    for given in ({"num_examples": 41}, {"expected_batch_size": 11}, {"max_records_per_unit": 2}):
        with pytest.raises(PrivacyError, match=next(iter(given))):
            made(small, None, noise_multiplier=1.0, **given).fit(small.poisson(), verbose=0)


def test_rows_are_not_chosen_on_the_host_before_the_unit_is_known():
    ids = keras.Input((1,), dtype="int64")
    rows = tfdp.layers.SparseEmbedding(20, 2)(ids)
    model = tfdp.make_private(keras.Model(ids, keras.layers.Dense(1)(rows[:, 0])))
    optimizer = tfdp.optimizers.DPOptimizer(
        "sgd", noise_multiplier=1.0, selection=tfdp.selection.AdaFEST(3.0, capacity=20),
        embedding_optimizer=tfdp.optimizers.RowSGD(0.1),
    )  # fmt: skip
    model.compile(optimizer, loss="mse")
    batches = tfdp.data.poisson_batches(
        (np.zeros((40, 1), np.int64), np.zeros((40, 1), np.float32)), 5,
        privacy_ids=np.repeat(np.arange(20), 2), max_records_per_unit=2,
    )  # fmt: skip
    with pytest.raises(PrivacyError, match="give the DPOptimizer these arguments"):
        tfdp.distribution.select_on_host(batches, model)


@pytest.mark.thorough
def test_a_backup_goes_on_within_the_steps_of_the_first_fit(small, tmp_path):
    class Halt(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 2:
                raise KeyboardInterrupt

    def backup():
        return keras.callbacks.BackupAndRestore(tmp_path / "backup")

    with pytest.raises(KeyboardInterrupt):
        made(small).fit(
            small.poisson(steps_per_epoch=1), epochs=3, verbose=0, callbacks=[backup(), Halt()]
        )
    model = made(small)
    model.fit(small.poisson(steps_per_epoch=1), epochs=3, verbose=0, callbacks=[backup()])
    assert model.optimizer.steps_taken == 3 and model.optimizer.epsilon() <= BUDGET.epsilon
    assert len(model.ledger) == 1


def test_before_the_first_fit_there_is_no_noise_and_no_epsilon(small):
    model = made(small)
    x, y = small.data()
    for ask in (
        lambda: model.optimizer.noise_multiplier,
        lambda: model.optimizer.sampling_probability,
        model.privacy_statement,
        lambda: made(small, budget=None, noise_multiplier=1.0).optimizer.epsilon(),
        lambda: made(small, budget=None, noise_multiplier=1.0).train_on_batch(x, y),
    ):
        with pytest.raises(PrivacyError, match="without num_examples, expected_batch_size"):
            ask()
    half = made(small, budget=None, noise_multiplier=1.0, num_examples=small.n)
    for ask in (lambda: half.optimizer.sampling_probability, lambda: half.train_on_batch(x, y)):
        with pytest.raises(PrivacyError, match="was made without expected_batch_size and reads"):
            ask()
    with pytest.raises(PrivacyError, match="does not know how this batch was drawn"):
        model.train_on_batch(x, y)
    with pytest.raises(PrivacyError, match="`steps=`"):
        next(model.training_batches(small.poisson()))
    with pytest.raises(PrivacyError, match="`steps=`"):
        own = small.poisson()
        unknown = tf.data.Dataset.from_generator(lambda: own, output_signature=own.element_spec)
        unknown = tfdp.data.declare_sampling(unknown, "poisson", small.n, 10)
        model.fit(unknown, verbose=0)
    with pytest.raises(ValueError, match="delta"):
        made(small, tfdp.PrivacyBudget(3, 0.5)).fit(small.poisson(), verbose=0)
    assert model.optimizer.steps_taken == 0


class AddsALoss(keras.layers.Layer):
    def call(self, x):
        self.add_loss(tf.reduce_sum(x))
        return x


def test_a_fit_that_is_refused_calibrates_no_noise(small, monkeypatch):
    calls = []
    monkeypatch.setattr(calibrating, "noise_multiplier", lambda *args: calls.append(1) or 1.0)
    model = small.model(
        keras.Sequential([keras.Input((3,)), AddsALoss(), keras.layers.Dense(2)]),
        budget=BUDGET, num_examples=None, expected_batch_size=None,
    )  # fmt: skip
    with pytest.raises(PrivacyError, match="add_loss"):
        model.fit(small.poisson(), verbose=0)
    assert model.optimizer.num_examples == small.n and not calls
