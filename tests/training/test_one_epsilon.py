"""One ε: the optimizer, the meter, the ledger, the budget and the statement say the same."""

import gc
import math
import warnings

import keras
import numpy as np
import pytest
import slow
import tensorflow as tf
from dp_accounting import pld
from eager_steps import EAGER, eager_model, fit_steps
from epsilon_by_hand import DELTA, N, assert_one, by_hand, poisson

import tfdp
from tfdp.accounting.losses.analytic_gaussian import gaussian_epsilon
from tfdp.errors import BudgetError, PrivacyError

WAYS = ["twice", "other data", "both ways", "the first one", "and leaves"]


class Meter(tfdp.callbacks.PrivacyMeter):
    """Keeps what it shows, beside what was spent."""

    def __init__(self, **kwargs):
        super().__init__(delta=DELTA, **kwargs)
        self.shown = []

    def on_train_batch_end(self, batch, logs=None):
        logs = {}
        super().on_train_batch_end(batch, logs)
        self.shown.append((logs["epsilon"], self.model.ledger.epsilon(DELTA)))


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:These batches are shuffled")
def test_the_natural_first_call_ends_within_its_budget(small):
    """`fit(x, y)` shuffles: without amplification the noise must be larger, and it is."""
    model = small.model(budget=tfdp.PrivacyBudget(1.0, DELTA), steps=12)
    meter = Meter(max_epsilon=1.0)
    model.fit(*small.data(), batch_size=10, epochs=30, verbose=0, callbacks=[meter])
    assert model.optimizer.steps_taken == 12 and model.optimizer.steps_left == 0
    sigma = model.optimizer.noise_multiplier
    assert_one(model, gaussian_epsilon(sigma, DELTA, 3), rel=1e-4)
    assert 0.99 < model.ledger.epsilon(DELTA) <= 1.0
    assert all(shown >= spent for shown, spent in meter.shown)
    assert "; kept." in " ".join(str(model.privacy_statement(DELTA)).split())


def test_shuffled_batches_with_a_budget_say_what_poisson_batches_would_save(small):
    model = eager_model(budget=tfdp.PrivacyBudget(0.5, DELTA), steps=8)
    with pytest.warns(UserWarning, match="poisson_batches"):
        model.fit(tfdp.data.shuffled_epochs(small.data(), 10), verbose=0)
    model = eager_model(budget=tfdp.PrivacyBudget(0.5, DELTA), steps=8)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "These batches are shuffled")
        fit_steps(model)


def test_the_same_budget_again_says_that_little_is_left_of_it(small):
    """A second `compile` with a budget of 3 trained on noise of σ = 374, without a word."""
    budget, model = tfdp.PrivacyBudget(3.0, DELTA), eager_model()
    model.compile(small.optimizer(budget=budget, steps=4), loss=small.loss, **EAGER)
    fit_steps(model, 4)
    optimizer = small.optimizer(budget=budget, steps=8)
    with pytest.warns(UserWarning, match="earlier charges leave little of it"):
        model.compile(optimizer, loss=small.loss, **EAGER)
        fit_steps(model, 4)
    assert optimizer.noise_multiplier > 10 and model.ledger.epsilon(DELTA) <= 3.0
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "Argument `budget` covers")
        model.compile(
            small.optimizer(budget=tfdp.PrivacyBudget(6.0, DELTA), steps=4),
            loss=small.loss, **EAGER,
        )  # fmt: skip
        fit_steps(model, 4)
        model = eager_model(noise_multiplier=100.0)  # large, and not because of earlier charges
        fit_steps(model)
        optimizer = small.optimizer(budget=tfdp.PrivacyBudget(0.1, DELTA), steps=4)
        model.compile(optimizer, loss=small.loss, **EAGER)
        fit_steps(model, 4)
        assert optimizer.noise_multiplier > 5


@pytest.mark.thorough
def test_batches_of_unknown_origin(small):
    x, y = small.data()
    model = eager_model()
    fit_steps(model)
    model.train_on_batch(x[:10], y[:10])
    assert_one(model, math.inf)
    model = eager_model(budget=tfdp.PrivacyBudget(0.5, DELTA), steps=8)
    before = model.get_weights()
    with pytest.raises(PrivacyError, match="training_batches"):
        model.train_on_batch(x[:10], y[:10])
    assert model.optimizer.steps_taken == 0
    for a, b in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_batches_that_are_known_can_be_trained_one_by_one(small):
    model = eager_model(noise_multiplier=4.0)
    for x, y, weights in model.training_batches(small.poisson()):
        model.train_on_batch(x, y, weights)
    assert_one(model, by_hand(poisson(4.0, 0.25, 4)))
    batches = iter(model.training_batches(small.poisson()))
    x, y, weights = next(batches)
    model.train_on_batch(x, y, weights)
    with pytest.raises(PrivacyError, match="already trained on it"):
        model.train_on_batch(x, y, weights)
    batches.close()
    assert_one(model, by_hand(poisson(4.0, 0.25, 5)))
    model.train_on_batch(x, y, weights)  # nobody gave this batch any more
    assert_one(model, math.inf)


@pytest.mark.thorough_after(1)
@pytest.mark.parametrize(
    "how, noise",  # forward noise is charged by the same runs of steps
    slow.cases([(how, noise) for how in WAYS for noise in (False, True)],
               slow=[(how, True) for how in ("other data", "both ways", "the first one")]),
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_steps_that_are_no_train_on_batch_are_not_charged_as_samples(small, noise, how):
    model = eager_model(noise_multiplier=4.0)
    if noise:
        noisy = [tfdp.layers.DPForwardNoise(1.0, 9.0), *small.base().layers]
        model = tfdp.make_private(keras.Sequential(noisy))
        model.compile("sgd", loss=small.loss, **EAGER)

    def train():
        batches = model.training_batches(tfdp.data.shuffled_epochs(small.data(), 10))
        for i, (x, y, weights) in enumerate(batches):
            if how == "both ways" or (how == "the first one" and i > 0):
                model.train_on_batch(x, y, weights)
            if how == "the first one" and i > 0:
                continue
            x = tf.ones_like(x) if how == "other data" else x
            for _ in range(1 + (how == "twice")):
                model.train_step((x, y, weights))
            if how == "and leaves":
                return

    if how == "and leaves":
        train()
        gc.collect()
    else:
        with pytest.raises(PrivacyError, match="taken without `train_on_batch`"):
            train()
    assert model.ledger.epsilon(DELTA) == math.inf
    assert model.privacy_statement(DELTA).unstated


@pytest.mark.thorough
def test_between_two_calls_of_fit_no_step_of_a_budget_sees_examples(small):
    """Steps are left, and nobody charges a step that no `fit` has begun."""
    model = eager_model(budget=tfdp.PrivacyBudget(1.0, DELTA), steps=12)
    fit_steps(model, 4)
    charging = model.optimizer.charging
    assert model.optimizer.steps_left == 8 and charging.allowed == 0
    assert not bool(charging.active(model))


def test_single_batches_end_with_the_budget(small):
    model = eager_model(budget=tfdp.PrivacyBudget(0.5, DELTA), steps=3)
    steps = sum(1 for b in model.training_batches(small.poisson()) if model.train_on_batch(*b))
    assert steps == 3 and model.ledger.epsilon(DELTA) <= 0.5


def test_reading_charges_nothing_and_everyone_reads_the_same(small):
    base = small.base()
    model = eager_model(base, noise_multiplier=4.0)
    fit_steps(model, 4)
    expected = by_hand(poisson(4.0, 0.25, 4))
    for _ in range(2):
        assert_one(model, expected)
    base.compile("sgd", loss=small.loss, **EAGER)
    base.fit(*small.data(), verbose=0)
    assert_one(model, math.inf)
    meter = Meter()
    fit_steps(model, callbacks=[meter])
    assert {shown for shown, _ in meter.shown} == {math.inf}


@pytest.mark.thorough
def test_delta_is_checked_against_the_largest_data_ever_trained_on(small):
    data = small.data(4 * N)
    model = eager_model(num_examples=4 * N)
    model.fit(small.poisson(data, steps_per_epoch=1), verbose=0)
    model.compile(small.optimizer(), loss=small.loss, **EAGER)
    fit_steps(model)
    too_large = 1 / N
    for state in (
        lambda: model.privacy_statement(too_large),
        lambda: model.optimizer.epsilon(too_large),
        lambda: model.ledger.epsilon(too_large),
        lambda: model.fit(
            small.poisson(), verbose=0, callbacks=[tfdp.callbacks.PrivacyMeter(delta=too_large)]
        ),
    ):
        with pytest.raises(ValueError, match="at most 1/num_examples"):
            state()
    assert model.optimizer.default_delta == 0.1 / (4 * N)


@pytest.mark.thorough
def test_the_meter_keeps_its_limit_when_a_backup_brings_charges(small, tmp_path):
    class Crash(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 1:
                raise RuntimeError("crash")

    def callbacks():
        backup = keras.callbacks.BackupAndRestore(tmp_path / "backup")
        return [tfdp.callbacks.PrivacyMeter(delta=DELTA, max_epsilon=limit), backup]

    limit = by_hand(poisson(4.0, 0.25, 8)) * (1 + 1e-9)
    with pytest.raises(RuntimeError, match="crash"):
        fit_steps(eager_model(noise_multiplier=4.0), 3, epochs=9, callbacks=[*callbacks(), Crash()])
    model = eager_model(noise_multiplier=4.0)
    fit_steps(model, 3, epochs=9, callbacks=callbacks())
    assert model.ledger.epsilon(DELTA) <= limit
    assert 6 <= model.optimizer.steps_taken <= 8


@pytest.mark.thorough
def test_a_limit_on_epsilon_counts_charges_that_are_loaded_meanwhile(small):
    model, other = eager_model(noise_multiplier=4.0), eager_model(noise_multiplier=4.0)
    fit_steps(other)
    batches = model.training_batches(small.poisson())
    model.train_on_batch(*next(batches))
    charging = model.optimizer.charging
    limit = by_hand(poisson(4.0, 0.25, 3)) * (1 + 1e-9)
    assert charging.limit_epsilon(limit, DELTA) == charging.allowed == 2
    charging.merge_bytes(other.optimizer.charging.to_bytes())
    assert charging.allowed == 1
    batches.close()


def test_the_meter_never_shows_less_than_was_spent_of_data_of_unknown_length(small):
    x, y = small.data()

    def batches():
        for start in range(0, N, 20):
            yield x[start : start + 20], y[start : start + 20]

    spec = (tf.TensorSpec((20, 3)), tf.TensorSpec((20,), tf.int32))
    data = tf.data.Dataset.from_generator(batches, output_signature=spec)
    tfdp.data.declare_sampling(data, "poisson", N, 20)
    model, meter = eager_model(noise_multiplier=4.0, expected_batch_size=20), Meter()
    model.fit(data, epochs=2, verbose=0, callbacks=[meter])
    assert model.optimizer.steps_taken == len(meter.shown) == 4
    assert all(shown >= spent for shown, spent in meter.shown)


@pytest.mark.thorough
def test_the_meter_serves_forward_noise(small):
    def noisy():
        inner = keras.Sequential(
            [
                keras.Input((3,)),
                tfdp.layers.DPForwardNoise(clip_norm=1.0, noise_multiplier=2.0),
                keras.layers.Dense(2),
            ]
        )
        model = tfdp.make_private(inner)
        model.compile("sgd", loss=small.loss, **EAGER)
        return model

    model, meter = noisy(), Meter(max_epsilon=gaussian_epsilon(2.0, DELTA, 3) * 1.001)
    data = tfdp.data.shuffled_epochs(small.data(), 10)
    model.fit(data, epochs=9, verbose=0, callbacks=[meter])
    assert all(shown >= spent for shown, spent in meter.shown) and len(meter.shown) == 12
    assert_one(model, gaussian_epsilon(2.0, DELTA, 3), rel=1e-4)


@pytest.mark.thorough_after(1)
@pytest.mark.parametrize("declared_first", [False, True])
def test_each_epoch_of_data_of_unknown_length_may_be_a_pass(small, declared_first):
    x, y = small.data()
    spec = (tf.TensorSpec((10, 3)), tf.TensorSpec((10,), tf.int32))
    data = tf.data.Dataset.from_generator(
        lambda: ((x[i : i + 10], y[i : i + 10]) for i in range(0, N, 10)), output_signature=spec
    )
    if declared_first:
        data = tfdp.data.declare_sampling(data, "shuffled", N, 10).take(1)
    else:
        data = tfdp.data.declare_sampling(data.take(1), "shuffled", N, 10)
    model = eager_model(noise_multiplier=4.0)
    model.fit(data, epochs=5, verbose=0)
    assert model.optimizer.steps_taken == 5
    assert_one(model, gaussian_epsilon(4.0, DELTA, 5), rel=1e-4)


def test_cut_off_batches_cost_the_same_delta_everywhere(small):
    batches = small.poisson(max_batch_size=24)
    probability = tfdp.data.sampling_of(batches).overflow_probability
    assert 1e-7 < probability < 1e-5
    model, meter = eager_model(noise_multiplier=2.0), Meter()
    model.fit(batches, verbose=0, callbacks=[meter])
    found = model.ledger.epsilon(DELTA)
    left = DELTA - (1 + math.exp(found)) * 4 * probability
    accountant = pld.PLDAccountant().compose(poisson(2.0, 0.25, 4))
    assert_one(model, accountant.get_epsilon(left), rel=1e-4)
    assert found > accountant.get_epsilon(DELTA)
    assert meter.shown[-1][0] >= found


@pytest.mark.thorough
def test_a_budget_covers_batches_that_are_cut_off(small):
    model = eager_model(budget=tfdp.PrivacyBudget(1.0, DELTA), steps=4)
    history = model.fit(small.poisson(max_batch_size=22, steps_per_epoch=2), epochs=5, verbose=0)
    assert history.epoch == [0, 1]  # not a batch more, that would train nothing
    assert 0.99 < model.ledger.epsilon(DELTA) <= 1.0
    model = eager_model(budget=tfdp.PrivacyBudget(1.0, DELTA), steps=4)
    with pytest.raises(BudgetError, match="max_batch_size"):
        model.fit(small.poisson(max_batch_size=11), verbose=0)


def test_a_batch_that_the_run_did_not_draw_is_refused(small):
    x, y = small.data()

    class Own(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.train_on_batch(x[:10], y[:10])

    model = eager_model(noise_multiplier=4.0)
    with pytest.raises(PrivacyError, match="not a batch of the current run"):
        for _ in model.training_batches(small.poisson()):
            model.train_on_batch(x[:10], y[:10])
    with pytest.raises(PrivacyError, match="not a batch of the current run"):
        model.fit(small.poisson(), verbose=0, callbacks=[Own()])
    shuffled = iter(model.training_batches(tfdp.data.shuffled_epochs((x, y), 10)))
    batch = next(shuffled)
    poisson_run = iter(model.training_batches(small.poisson()))
    next(poisson_run)
    with pytest.raises(PrivacyError, match="not a batch of the current run"):
        model.train_on_batch(*batch)
    with pytest.raises(PrivacyError, match="Another run"):
        next(shuffled)
    model.train_on_batch(*next(poisson_run))
    poisson_run.close()
    assert_one(model, by_hand(poisson(4.0, 0.25, 2)))  # of the refused fit, and this one


def test_declared_passes_are_passes(small):
    x, y = small.data()
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(10)
    for longer in (data.repeat(10), data.repeat()):
        with pytest.raises(ValueError, match="repeat"):
            tfdp.data.declare_sampling(longer, "shuffled", N, 10)
    with pytest.raises(ValueError, match="Declare only data that tfdp did not draw"):
        tfdp.data.declare_sampling(tfdp.data.shuffled_epochs((x, y), 10), "poisson", N, 10)


@pytest.mark.thorough
def test_numbers_of_numpy_are_numbers(tmp_path):
    model = eager_model(
        num_examples=np.int64(N), expected_batch_size=np.float32(10), noise_multiplier=np.float32(4)
    )
    fit_steps(model, 4)
    model.save(tmp_path / "m.keras")
    assert_one(model, by_hand(poisson(4.0, 0.25, 4)))


@pytest.mark.thorough
def test_a_budget_pays_for_batches_that_were_cut_before(small):
    """Their δ is taken from that of the noise, or the ε at the end would exceed the budget."""
    model = eager_model(noise_multiplier=4.0)
    model.fit(small.poisson(max_batch_size=21, steps_per_epoch=2), verbose=0)
    budget = tfdp.PrivacyBudget(1.0, DELTA)
    model.compile(small.optimizer(budget=budget, steps=4), loss=small.loss, **EAGER)
    fit_steps(model, 4)
    overflow = sum(e.count * e.overflow_probability for e in model.ledger.entries)
    assert 0.2 * DELTA < overflow * (1 + math.exp(1.0)) < 0.8 * DELTA
    assert 0.99 * budget.epsilon < model.ledger.epsilon(DELTA) <= budget.epsilon


@pytest.mark.thorough
def test_a_budget_goes_on_with_batches_of_another_size(small):
    """The noise of the steps that are left is calibrated to them; of like batches it is kept."""
    budget = {"budget": tfdp.PrivacyBudget(1.0, DELTA), "steps": 12}
    model = eager_model(**budget)
    fit_steps(model, 4)
    first = model.optimizer.noise_multiplier
    model.compile(small.optimizer(**budget), loss=small.loss, **EAGER)
    fit_steps(model, 4)
    assert model.optimizer.noise_multiplier == first
    model.compile(small.optimizer(expected_batch_size=20, **budget), loss=small.loss, **EAGER)
    model.fit(small.poisson(batch=20, steps_per_epoch=4), verbose=0)
    sigma = model.optimizer.noise_multiplier
    assert sigma > 1.1 * first and model.optimizer.steps_left == 0
    assert_one(model, by_hand(poisson(first, 0.25, 8), poisson(sigma, 0.5, 4)))
    assert 0.95 < model.ledger.epsilon(DELTA) <= 1.0
    # Of what is spent nothing is calibrated to batches of a third size.
    model.compile(small.optimizer(expected_batch_size=5, **budget), loss=small.loss, **EAGER)
    with pytest.raises(BudgetError, match="is spent"):
        model.fit(small.poisson(batch=5, steps_per_epoch=4), verbose=0)
