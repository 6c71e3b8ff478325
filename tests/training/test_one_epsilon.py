"""One ε: the optimizer, the meter, the ledger, the budget and the statement say the same."""

import gc
import math
import warnings

import dp_accounting
import keras
import numpy as np
import pytest
import tensorflow as tf
from dp_accounting import pld

import tfdp
from tfdp.accounting import LedgerEntry
from tfdp.accounting.gaussian import gaussian_epsilon
from tfdp.errors import BudgetError, PrivacyError

DELTA = 1e-3
N = 40


def poisson(sigma, q, steps):
    event = dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(sigma))
    return dp_accounting.SelfComposedDpEvent(event, steps)


def by_hand(*events):
    accountant = pld.PLDAccountant()
    for event in events:
        accountant.compose(event)
    return accountant.get_epsilon(DELTA)


def assert_one(model, expected, rel=1e-6):
    """Everything that states an ε states this one."""
    statement = model.privacy_statement(DELTA)
    assert statement.epsilon == pytest.approx(expected, rel=rel)
    assert model.ledger.epsilon(DELTA) == statement.epsilon
    if isinstance(model.optimizer, tfdp.optimizers.DPOptimizer):
        assert model.optimizer.epsilon(DELTA) == statement.epsilon
        assert model.optimizer.ledger == model.ledger


class Meter(tfdp.callbacks.PrivacyMeter):
    """Keeps what it shows, beside what was spent."""

    def __init__(self, **kwargs):
        super().__init__(delta=DELTA, **kwargs)
        self.shown = []

    def on_train_batch_end(self, batch, logs=None):
        logs = {}
        super().on_train_batch_end(batch, logs)
        self.shown.append((logs["epsilon"], self.model.ledger.epsilon(DELTA)))


@pytest.mark.filterwarnings("ignore:These batches are shuffled")
def test_the_natural_first_call_ends_within_its_budget(small):
    """`fit(x, y)` shuffles: without amplification the noise must be larger, and it is."""
    model = small.model(budget=tfdp.PrivacyBudget(3.0, DELTA), steps=12)
    meter = Meter(max_epsilon=3.0)
    model.fit(*small.data(), batch_size=10, epochs=30, verbose=0, callbacks=[meter])
    assert model.optimizer.steps_taken == 12 and model.optimizer.steps_left == 0
    sigma = model.optimizer.noise_multiplier
    assert_one(model, gaussian_epsilon(sigma, DELTA, 3), rel=1e-4)
    assert 2.97 < model.ledger.epsilon(DELTA) <= 3.0
    assert all(shown >= spent for shown, spent in meter.shown)
    assert "; kept." in " ".join(str(model.privacy_statement(DELTA)).split())


def test_shuffled_batches_with_a_budget_say_what_poisson_batches_would_save(small):
    model = small.model(budget=tfdp.PrivacyBudget(3.0, DELTA), steps=12)
    with pytest.warns(UserWarning, match="poisson_batches"):
        model.fit(tfdp.data.shuffled_epochs(small.data(), 10), verbose=0)
    model = small.model(budget=tfdp.PrivacyBudget(3.0, DELTA), steps=12)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "These batches are shuffled")
        model.fit(small.poisson(), verbose=0)


def test_batches_of_unknown_origin(small):
    x, y = small.data()
    model = small.model()
    model.fit(small.poisson(), verbose=0)
    model.train_on_batch(x[:10], y[:10])
    assert_one(model, math.inf)
    model = small.model(budget=tfdp.PrivacyBudget(3.0, DELTA), steps=12)
    before = model.get_weights()
    with pytest.raises(PrivacyError, match="training_batches"):
        model.train_on_batch(x[:10], y[:10])
    assert model.optimizer.steps_taken == 0
    for a, b in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_batches_that_are_known_can_be_trained_one_by_one(small):
    model = small.model(noise_multiplier=1.3)
    for x, y, weights in model.training_batches(small.poisson()):
        model.train_on_batch(x, y, weights)
    assert_one(model, by_hand(poisson(1.3, 0.25, 4)))
    batches = iter(model.training_batches(small.poisson()))
    x, y, weights = next(batches)
    model.train_on_batch(x, y, weights)
    with pytest.raises(PrivacyError, match="trained on already"):
        model.train_on_batch(x, y, weights)
    batches.close()
    assert_one(model, by_hand(poisson(1.3, 0.25, 5)))
    model.train_on_batch(x, y, weights)  # nobody gave this batch any more
    assert_one(model, math.inf)


def test_single_batches_end_with_the_budget(small):
    model = small.model(budget=tfdp.PrivacyBudget(3.0, DELTA), steps=3)
    steps = sum(1 for b in model.training_batches(small.poisson()) if model.train_on_batch(*b))
    assert steps == 3 and model.ledger.epsilon(DELTA) <= 3.0


@pytest.mark.parametrize("then", ["private", "plain", "wrapper dropped"])
def test_charges_outlive_what_charged_them(small, then):
    base = small.base()
    model = small.model(base)
    x, y = small.data()
    for _ in range(5):
        model.train_on_batch(x[:10], y[:10])
    if then == "wrapper dropped":
        layer = base.layers[0]
        del model, base
        gc.collect()
        model = small.model(keras.Sequential([keras.Input((3,)), layer]))
    else:
        model.compile(small.optimizer() if then == "private" else "sgd", loss=small.loss)
    gc.collect()
    assert model.ledger.epsilon(DELTA) == math.inf
    assert model.privacy_statement(DELTA).epsilon == math.inf


@pytest.mark.parametrize("plain", [False, True])
def test_a_model_that_its_first_batch_builds_keeps_its_ledger(small, plain):
    """An encoder trained there, then frozen and reused, brings what it cost."""
    encoder = keras.layers.Dense(4)
    first = tfdp.make_private(keras.Sequential([encoder, keras.layers.Dense(2)]))
    optimizer = "sgd" if plain else small.optimizer(noise_multiplier=0.5)
    first.compile(optimizer, loss=small.loss)
    first.fit(*small.data(), batch_size=10, verbose=0) if plain else first.fit(
        small.poisson(), epochs=2, verbose=0
    )
    assert first.ledger.entries
    encoder.trainable = False
    second = small.model(keras.Sequential([encoder, keras.layers.Dense(2)]))
    del first
    gc.collect()
    second.fit(small.poisson(), verbose=0)
    expected = by_hand(poisson(0.5, 0.25, 8), poisson(1.0, 0.25, 4))
    assert_one(second, math.inf if plain else expected)


def test_reading_charges_nothing_and_everyone_reads_the_same(small):
    base = small.base()
    model = small.model(base)
    model.fit(small.poisson(), verbose=0)
    expected = by_hand(poisson(1.0, 0.25, 4))
    for _ in range(2):
        assert_one(model, expected)
    base.compile("sgd", loss=small.loss)
    base.fit(*small.data(), verbose=0)
    assert_one(model, math.inf)
    meter = Meter()
    model.fit(small.poisson(), verbose=0, callbacks=[meter])
    assert {shown for shown, _ in meter.shown} == {math.inf}


def test_weights_from_elsewhere_are_mentioned(small):
    def mentioned(model):
        return any("came from elsewhere" in s for s in model.privacy_statement(DELTA).assumptions)

    model = small.model()
    model.fit(small.poisson(), verbose=0)
    assert not mentioned(model)  # initial values, and what was charged
    model.fit(small.poisson(), verbose=0)
    assert not mentioned(model)
    copy = keras.models.clone_model(model.model)
    copy.set_weights(model.get_weights()[:2])
    other = small.model(copy)
    other.fit(small.poisson(), verbose=0)
    assert mentioned(other)
    other.fit(small.poisson(), verbose=0)
    assert mentioned(other)  # it belongs to the run
    other.compile(small.optimizer(), loss=small.loss)
    assert mentioned(other)
    model.layers[0].set_weights([w + 1 for w in model.layers[0].get_weights()])
    assert mentioned(model)

    base = small.base()
    with tf.GradientTape() as tape:  # a loop of the user's own
        loss = tf.reduce_mean(base(small.data()[0]) ** 2)
    kernel = base.trainable_variables[0]
    kernel.assign_sub(tape.gradient(loss, kernel.value))
    model = small.model(base)
    model.fit(small.poisson(), verbose=0)
    assert mentioned(model)


def test_files_know_which_weights_they_account_for(small, tmp_path):
    model = small.model()
    model.fit(small.poisson(), verbose=0)
    model.save(tmp_path / "m.keras")
    other = keras.models.load_model(tmp_path / "m.keras")
    assert other.ledger == model.ledger
    for loaded in (other, small.model()):
        if loaded is not other:
            model.save_weights(tmp_path / "m.weights.h5")
            loaded.load_weights(tmp_path / "m.weights.h5")
        loaded.fit(small.poisson(), verbose=0)
        assumptions = loaded.privacy_statement(DELTA).assumptions
        assert not any("elsewhere" in s for s in assumptions), assumptions


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
        model.compile(small.optimizer(), loss=small.loss)
        model.fit(small.poisson(), verbose=0)
        expected = by_hand(poisson(1.0, 0.25, 4)) if private else math.inf
        assert_one(model, expected)
        assert any("train_step" in s for s in model.privacy_statement(DELTA).assumptions)


def test_what_a_run_did_is_not_lost_by_compile_or_load(small, tmp_path):
    model = small.model(seed=3)
    data = small.poisson().map(lambda x, y, w: (x, y, w))
    model.fit(data, verbose=0, callbacks=[keras.callbacks.EarlyStopping("loss")])
    model.compile(small.optimizer(), loss=small.loss)
    model.fit(small.poisson(), verbose=0)
    model.save(tmp_path / "m.keras")
    for candidate in (model, keras.models.load_model(tmp_path / "m.keras")):
        text = " ".join(str(candidate.privacy_statement(DELTA)).split())
        assert "EarlyStopping" in text and "what `map` did" in text
        assert "fixed seed 3" in text and "not a private one" in text


def test_delta_is_checked_against_the_largest_data_ever_trained_on(small):
    data = small.data(4 * N)
    model = small.model(num_examples=4 * N)
    model.fit(small.poisson(data), verbose=0)
    model.compile(small.optimizer(), loss=small.loss)
    model.fit(small.poisson(), verbose=0)
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


def test_the_meter_keeps_its_limit_when_a_backup_brings_charges(small, tmp_path):
    class Crash(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 2:
                raise RuntimeError("crash")

    def callbacks():
        backup = keras.callbacks.BackupAndRestore(tmp_path / "backup")
        return [tfdp.callbacks.PrivacyMeter(delta=DELTA, max_epsilon=limit), backup]

    limit = by_hand(poisson(1.0, 0.25, 14)) * (1 + 1e-9)
    with pytest.raises(RuntimeError, match="crash"):
        small.model().fit(small.poisson(), epochs=9, verbose=0, callbacks=[*callbacks(), Crash()])
    model = small.model()
    model.fit(small.poisson(), epochs=9, verbose=0, callbacks=callbacks())
    assert model.ledger.epsilon(DELTA) <= limit
    assert 12 <= model.optimizer.steps_taken <= 14


def test_the_meter_never_shows_less_than_was_spent_of_data_of_unknown_length(small):
    x, y = small.data()

    def batches():
        for start in range(0, N, 10):
            yield x[start : start + 10], y[start : start + 10]

    spec = (tf.TensorSpec((10, 3)), tf.TensorSpec((10,), tf.int32))
    data = tf.data.Dataset.from_generator(batches, output_signature=spec)
    tfdp.data.declare_sampling(data, "poisson", N, 10)
    model, meter = small.model(), Meter()
    model.fit(data, epochs=2, verbose=0, callbacks=[meter])
    assert model.optimizer.steps_taken == len(meter.shown) == 8
    assert all(shown >= spent for shown, spent in meter.shown)


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
        model.compile("sgd", loss=small.loss)
        return model

    model, meter = noisy(), Meter(max_epsilon=gaussian_epsilon(2.0, DELTA, 3) * 1.001)
    data = tfdp.data.shuffled_epochs(small.data(), 10)
    model.fit(data, epochs=9, verbose=0, callbacks=[meter])
    assert all(shown >= spent for shown, spent in meter.shown) and len(meter.shown) == 12
    assert_one(model, gaussian_epsilon(2.0, DELTA, 3), rel=1e-4)


@pytest.mark.parametrize("declared_first", [False, True])
def test_each_epoch_of_data_of_unknown_length_may_be_a_pass(small, declared_first):
    x, y = small.data()
    spec = (tf.TensorSpec((10, 3)), tf.TensorSpec((10,), tf.int32))
    data = tf.data.Dataset.from_generator(
        lambda: ((x[i : i + 10], y[i : i + 10]) for i in range(0, N, 10)), output_signature=spec
    )
    if declared_first:
        data = tfdp.data.declare_sampling(data, "shuffled", N, 10).take(2)
    else:
        data = tfdp.data.declare_sampling(data.take(2), "shuffled", N, 10)
    model = small.model(noise_multiplier=4.0)
    model.fit(data, epochs=5, verbose=0)
    assert model.optimizer.steps_taken == 10
    assert_one(model, gaussian_epsilon(4.0, DELTA, 5), rel=1e-4)


def test_two_releases_cost_twice_even_if_they_are_equal(small, monkeypatch):
    data = tfdp.data.synthetic_sequences(num_users=50, num_items=6, min_length=3, max_length=4)
    one, other = (tfdp.data.private_frequency(data.train, epsilon=1.0) for _ in range(2))
    object.__setattr__(other, "probabilities", one.probabilities)
    ledger = tfdp.accounting.history.ChargeHistory()
    for release in (one, one, other):
        ledger.charge(release.entry)
    assert sum(e.count for e in ledger.ledger().entries) == 2
    h = np.ones((N, 2), np.float32)
    entries = [tfdp.data.release_once(h, np.zeros(N, int), 1.0, 2.0).entry for _ in range(2)]
    assert entries[0] != entries[1]


def test_what_was_made_from_a_release_carries_its_charge():
    data = tfdp.data.synthetic_sequences(num_users=60, num_items=8, min_length=3, max_length=4)
    release = tfdp.data.private_frequency(data.train, epsilon=1.0)
    items = tfdp.data.FrequentItems(release, k=3)
    model = tfdp.models.SequenceBaseline(items.num_items, 4, dim=4)
    model.compile(
        tfdp.optimizers.DPOptimizer(
            "sgd", noise_multiplier=1.0, num_examples=60, expected_batch_size=20
        )
    )
    model.fit(tfdp.data.poisson_batches(items.encode(data.train), 20), verbose=0)
    assert {e.label for e in model.ledger.entries} == {"item frequencies", "private training"}
    assert_one(model, by_hand(release.event, poisson(1.0, 1 / 3, 3)))


def test_a_release_about_other_records_is_refused():
    ids = np.random.default_rng(0).integers(0, 20, 200)
    fest = tfdp.selection.FEST(k=5, epsilon=1.0)
    fest.adapt({"table": ids}, {"table": 20})
    table = tfdp.layers.SparseEmbedding(20, 2, name="table")
    inner = keras.Sequential([keras.Input((1,), dtype="int32"), table, keras.layers.Flatten()])
    model = tfdp.make_private(inner)
    with pytest.raises(PrivacyError, match="num_examples=200"):
        model.compile(
            tfdp.optimizers.DPOptimizer(
                "sgd", noise_multiplier=1.0, num_examples=20, expected_batch_size=5,
                selection=fest, embedding_optimizer=tfdp.optimizers.RowSGD(0.1),
            ),
            loss="mse",
        )  # fmt: skip


def test_cut_off_batches_cost_the_same_delta_everywhere(small):
    batches = small.poisson(max_batch_size=24)
    probability = tfdp.data.sampling_of(batches).overflow_probability
    assert 1e-7 < probability < 1e-5
    model, meter = small.model(noise_multiplier=2.0), Meter()
    model.fit(batches, verbose=0, callbacks=[meter])
    found = model.ledger.epsilon(DELTA)
    left = DELTA - (1 + math.exp(found)) * 4 * probability
    accountant = pld.PLDAccountant().compose(poisson(2.0, 0.25, 4))
    assert_one(model, accountant.get_epsilon(left), rel=1e-4)
    assert found > accountant.get_epsilon(DELTA)
    assert meter.shown[-1][0] >= found


def test_a_budget_covers_batches_that_are_cut_off(small):
    model = small.model(budget=tfdp.PrivacyBudget(3.0, DELTA), steps=8)
    model.fit(small.poisson(max_batch_size=24), epochs=5, verbose=0)
    assert 2.97 < model.ledger.epsilon(DELTA) <= 3.0
    model = small.model(budget=tfdp.PrivacyBudget(3.0, DELTA), steps=8)
    with pytest.raises(BudgetError, match="max_batch_size"):
        model.fit(small.poisson(max_batch_size=11), verbose=0)


class Random:
    """A random life of some weights, and what it cost, composed by hand."""

    def __init__(self, small, seed):
        self.small = small
        self.choose = np.random.default_rng(seed)
        self.events, self.unamplified = [], 0.0
        self.infinite = False
        self.deferred = bool(self.choose.integers(2))
        layers = [keras.layers.Dense(4), keras.layers.Dense(2)]
        if not self.deferred:
            layers.insert(0, keras.Input((3,)))
        self.model = tfdp.make_private(keras.Sequential(layers))
        self.compile()

    def compile(self):
        self.sigma = float(self.choose.choice([1.0, 2.0, 4.0]))
        self.model.compile(
            self.small.optimizer(noise_multiplier=self.sigma), loss=self.small.loss,
            run_eagerly=True,
        )  # fmt: skip

    def poisson_fit(self, **kwargs):
        epochs = int(self.choose.integers(1, 3))
        self.model.fit(self.small.poisson(**kwargs), epochs=epochs, verbose=0)
        self.events.append(poisson(self.sigma, 0.25, 4 * epochs))

    def shuffled_fit(self):
        epochs = int(self.choose.integers(1, 3))
        self.model.fit(*self.small.data(), batch_size=10, epochs=epochs, verbose=0)
        self.unamplified += epochs / self.sigma**2

    def unknown_step(self):
        if self.choose.random() < 0.8:
            return
        x, y = self.small.data()
        self.model.train_on_batch(x[:5], y[:5])
        self.infinite = True

    def release(self):
        sigma = float(self.choose.choice([3.0, 5.0]))
        entry = LedgerEntry("release", dp_accounting.GaussianDpEvent(sigma), 1,
                            {"release": str(self.choose.integers(1 << 60))})  # fmt: skip
        releases = getattr(self.model, "privacy_releases", [])
        self.model.privacy_releases = [*releases, entry]
        self.unamplified += sigma**-2
        self.model.charge_releases()

    def recompile(self):
        self.compile()
        gc.collect()

    def reload(self, folder):
        if not self.model.built:
            return
        self.model.save(folder / "m.keras")
        releases = getattr(self.model, "privacy_releases", [])
        self.model = keras.models.load_model(folder / "m.keras")
        self.model.privacy_releases = releases
        gc.collect()

    def freeze_and_reuse(self):
        if not self.model.built:
            return
        first, last = [l for l in self.model.model.layers if isinstance(l, keras.layers.Dense)]
        first.trainable = False
        releases = getattr(self.model, "privacy_releases", [])
        self.model = tfdp.make_private(
            keras.Sequential([keras.Input((3,)), first, keras.layers.Dense(2)])
        )
        self.model.privacy_releases = releases
        del last
        self.compile()

    def live(self, folder, length=4):
        for _ in range(length):
            act = self.choose.choice(
                ["poisson_fit", "shuffled_fit", "unknown_step", "release", "recompile", "reload",
                 "freeze_and_reuse"], p=[0.3, 0.2, 0.1, 0.1, 0.1, 0.1, 0.1],
            )  # fmt: skip
            getattr(self, act)(*([folder] if act == "reload" else []))
        self.poisson_fit()

    @property
    def epsilon(self):
        if self.infinite:
            return math.inf
        events = list(self.events)
        if self.unamplified:
            events.append(dp_accounting.GaussianDpEvent(self.unamplified**-0.5))
        return by_hand(*events)


@pytest.mark.parametrize("seed", range(6))
def test_random_runs_state_what_dp_accounting_composes_by_hand(small, seed, tmp_path):
    run = Random(small, seed)
    run.live(tmp_path)
    assert_one(run.model, run.epsilon, rel=1e-4)


@pytest.mark.evidence
@pytest.mark.parametrize("seed", range(6, 206))
def test_two_hundred_random_runs(small, seed, tmp_path):
    run = Random(small, seed)
    run.live(tmp_path, length=5)
    assert_one(run.model, run.epsilon, rel=1e-4)


def test_a_batch_that_the_run_did_not_draw_is_refused(small):
    x, y = small.data()

    class Own(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.train_on_batch(x[:10], y[:10])

    model = small.model()
    with pytest.raises(PrivacyError, match="would be charged as if"):
        for _ in model.training_batches(small.poisson()):
            model.train_on_batch(x[:10], y[:10])
    with pytest.raises(PrivacyError, match="would be charged as if"):
        model.fit(small.poisson(), verbose=0, callbacks=[Own()])
    shuffled = iter(model.training_batches(tfdp.data.shuffled_epochs((x, y), 10)))
    batch = next(shuffled)
    poisson_run = iter(model.training_batches(small.poisson()))
    next(poisson_run)
    with pytest.raises(PrivacyError, match="would be charged as if"):
        model.train_on_batch(*batch)
    with pytest.raises(PrivacyError, match="Another run"):
        next(shuffled)
    model.train_on_batch(*next(poisson_run))
    poisson_run.close()
    assert_one(model, by_hand(poisson(1.0, 0.25, 2)))  # of the refused fit, and this one


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

    for fails in (False, True):
        model = Mixed()
        model.fails = fails
        model.compile(small.optimizer(), loss=small.loss, run_eagerly=True)
        try:
            model.fit(small.poisson(), verbose=0)
        except RuntimeError:
            pass
        assert_one(model, math.inf)
    model = Twice()
    model.compile(small.optimizer(), loss=small.loss)
    with pytest.raises(PrivacyError, match="twice"):
        model.fit(small.poisson(), verbose=0)
    model = small.model()
    model.train_step = lambda data: {}
    with pytest.raises(PrivacyError, match="assigned to the model"):
        model.compile(small.optimizer(), loss=small.loss)


def test_an_optimizer_that_is_set_without_compile_charges_the_weights(small):
    model = small.model()
    model.optimizer = small.optimizer(noise_multiplier=2.0)
    model.fit(small.poisson(), verbose=0)
    assert_one(model, by_hand(poisson(2.0, 0.25, 4)))
    model = small.model()
    model.optimizer = keras.optimizers.SGD()
    x, y = small.data()
    model.train_on_batch(x, y)
    model.compile(small.optimizer(), loss=small.loss)
    assert_one(model, math.inf)


def test_values_from_elsewhere_stay_so(small):
    def mentioned(model):
        return any("came from elsewhere" in s for s in model.privacy_statement(DELTA).assumptions)

    model = small.model()
    model.set_weights([w + 1 for w in model.get_weights()])
    model.fit(small.poisson(), epochs=0, verbose=0)
    model.fit(small.poisson(), verbose=0)
    assert mentioned(model)
    encoder = keras.layers.Dense(3)
    encoder.build((None, 3))
    encoder.set_weights([w + 1 for w in encoder.get_weights()])
    encoder.trainable = False
    for _ in range(2):
        model = small.model(keras.Sequential([keras.Input((3,)), encoder, keras.layers.Dense(2)]))
        model.fit(small.poisson(), verbose=0)
        assert mentioned(model)


def test_parts_of_loaded_models_bring_their_charges(small, tmp_path):
    base = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4), keras.layers.Dense(2)])
    model = small.model(base, noise_multiplier=0.5)
    model.fit(small.poisson(), verbose=0)
    expected = by_hand(poisson(0.5, 0.25, 4), poisson(1.0, 0.25, 4))
    base.save(tmp_path / "base.keras")
    keras.Model(base.inputs, base.layers[0].output).save(tmp_path / "encoder.keras")
    for name in ("base", "encoder"):
        loaded = keras.models.load_model(tmp_path / f"{name}.keras")
        other = small.model(keras.Sequential([keras.Input((3,)), loaded, keras.layers.Dense(2)]))
        other.fit(small.poisson(), verbose=0)
        assert_one(other, expected)


def test_plain_training_between_two_compiles_of_the_inner_model_is_counted(small):
    base = small.base()
    model = small.model(base)
    base.compile("sgd", loss=small.loss)
    base.fit(*small.data(), verbose=0)
    base.compile("adam", loss=small.loss)
    assert_one(model, math.inf)


def test_the_ways_of_an_encoded_sequence_carry_the_release():
    data = tfdp.data.synthetic_sequences(num_users=30, num_items=8, min_length=3, max_length=4)
    items = tfdp.data.FrequentItems(tfdp.data.private_frequency(data.train, epsilon=1.0), k=3)
    pair = items.encode(data.train)
    x, y = pair
    for found in (
        tfdp.data.poisson_batches((x, y), 10),
        tfdp.data.poisson_batches((items.encode(data.train.x), y), 10),
        pair,
        (x[:5], y[:5]),
    ):
        assert [e.label for e in tfdp.data.provenance.releases_of(found)] == ["item frequencies"]


def test_declared_passes_are_passes(small):
    x, y = small.data()
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(10)
    for longer in (data.repeat(10), data.repeat()):
        with pytest.raises(ValueError, match="repeat"):
            tfdp.data.declare_sampling(longer, "shuffled", N, 10)
    with pytest.raises(ValueError, match="cannot be declared otherwise"):
        tfdp.data.declare_sampling(tfdp.data.shuffled_epochs((x, y), 10), "poisson", N, 10)


def test_numbers_of_numpy_are_numbers(small, tmp_path):
    model = small.model(num_examples=np.int64(N), expected_batch_size=np.float32(10))
    model.fit(small.poisson(), verbose=0)
    model.save(tmp_path / "m.keras")
    assert_one(model, by_hand(poisson(1.0, 0.25, 4)))
