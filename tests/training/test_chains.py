"""Training with noise that is correlated over steps: what is added, charged, and refused."""

import dataclasses
from unittest import mock

import dp_accounting
import keras
import numpy as np
import pytest
import tensorflow as tf
from eager_steps import eager_model
from epsilon_by_hand import DELTA, N, assert_one, by_hand
from noise_over_steps import Weights
from scipy import stats
from small_models import Small, make_data

import tfdp
from tfdp.accounting import banded_noise, correlated_noise
from tfdp.accounting.charges.mechanisms import PrivateTraining, mechanism_from_dict
from tfdp.accounting.correlated_noise import Correlation, Workload
from tfdp.data.sampling.kept_order import refuse_more_passes
from tfdp.errors import BudgetError, PrivacyError
from tfdp.noise import training_source
from tfdp.optimizers import BandedInverse, BandedMatrix, charging
from tfdp.training.checks import advice

M = (1.0, -0.4, -0.2, -0.3)
FIXED = BandedInverse(4, M)
WIDE = 20_000
FROM_DATA = {"num_examples": None, "expected_batch_size": None}


def stream(batch=10, **kwargs):
    return tfdp.data.stream_batches(make_data(), batch, **kwargs)


def chain_model(noise_correlation="auto", **kwargs):
    return eager_model(noise_correlation=noise_correlation, **kwargs)


def gaussian(sigma):
    return dp_accounting.GaussianDpEvent(sigma)


# What is added ------------------------------------------------------------------------------------


def noise_of_fit(batches=8, executions=1, strategy=None, **compile_kwargs):
    """(executions of the fit, WIDE) sums of the noise in units of σ·C, from inputs of zero."""
    strategy = strategy or tf.distribute.get_strategy()
    with strategy.scope():
        layers = [keras.Input((1,)), keras.layers.Dense(WIDE, use_bias=False)]
        model = tfdp.make_private(keras.Sequential(layers), validate=False)
        optimizer = tfdp.optimizers.DPOptimizer(
            keras.optimizers.SGD(1.0), noise_multiplier=0.5, clip_norm=4.0, noise_correlation=FIXED
        )
        model.compile(
            optimizer, loss=keras.losses.MeanSquaredError(), steps_per_execution=executions,
            **compile_kwargs,
        )  # fmt: skip
        model.build((None, 1))
    start = model.trainable_variables[0].numpy().ravel().astype(np.float64)
    n = 2 * batches
    data = np.zeros((n, 1), np.float32), np.zeros((n, 1), np.float32)
    weights = Weights()
    model.fit(tfdp.data.stream_batches(data, 2), verbose=0, callbacks=[weights])
    return -2.0 * np.diff(np.array([start, *weights.seen]), axis=0) / (0.5 * 4.0)


def assert_covariance(noise, executions):
    """The covariance over executions is that of M.

    False alarms: each of the 36 entries is off by 6 standard deviations with probability 2e-9.
    """
    count = len(noise)
    steps = count * executions
    rows = np.arange(steps)[:, None] - np.arange(steps)[None]
    m = np.where(rows >= 0, np.concatenate([M, np.zeros(steps)])[np.abs(rows)], 0.0)
    sums = np.kron(np.eye(count), np.ones(executions)) @ m
    s = np.linalg.norm(np.linalg.inv(m)[:, 0])
    expected = s**2 * sums @ sums.T
    found = noise @ noise.T / noise.shape[1]
    deviation = np.sqrt(
        (expected**2 + np.outer(np.diag(expected), np.diag(expected))) / noise.shape[1]
    )
    assert np.all(np.abs(found - expected) < stats.norm.isf(1e-9) * deviation), found / expected


@pytest.mark.thorough
@pytest.mark.parametrize("replicas", [1, 2])
def test_the_noise_of_a_fit_has_the_covariance_of_the_matrix(replicas):
    devices = ["CPU:0", "CPU:1"][:replicas]
    strategy = tf.distribute.MirroredStrategy(devices) if replicas > 1 else None
    assert_covariance(noise_of_fit(strategy=strategy), 1)


@pytest.mark.thorough
def test_so_it_has_in_compiled_executions_of_two_steps():
    assert_covariance(noise_of_fit(executions=2, jit_compile=True), 2)


def table_model(selection, rows=4, **kwargs):
    """A table of so many rows of 10, and a dense layer."""
    ids = keras.Input((1,), dtype="int64")
    table = tfdp.layers.SparseEmbedding(rows, 10, combiner="sum", name="table")
    model = keras.Model(ids, keras.layers.Dense(1, use_bias=False)(table(ids)))
    return eager_model(
        tfdp.make_private(model, validate=False), keras.losses.MeanSquaredError(),
        selection=selection, embedding_optimizer=tfdp.optimizers.RowSGD(1.0), **kwargs,
    )  # fmt: skip


def table_stream(batches=8, **kwargs):
    data = np.zeros((2 * batches, 1), np.int64), np.zeros((2 * batches, 1), np.float32)
    return tfdp.data.stream_batches(data, 2, **kwargs)


def test_several_workers_begin_a_chain_with_one_key(monkeypatch):
    """Each makes the same call; all take the entropy of the first."""
    for module in (training_source, charging):
        monkeypatch.setattr(module, "of_first_replica", of_first_worker)
    cycles = tfdp.data.cyclic_poisson_batches(make_data(), 10, 2)
    for noise, batches in ((FIXED, stream()), (BandedMatrix(2), cycles)):
        optimizer = chain_model(noise, noise_multiplier=2.0).optimizer
        optimizer.charging.begin(tfdp.data.sampling_of(batches), "workers")
        key, counter, *_ = optimizer.noise_chain.variables
        assert key.numpy().tolist() == [7] and counter.numpy().tolist() == [7, 7]


def of_first_worker(words, strategy):
    return np.full_like(words, 7) if strategy == "workers" else words


@pytest.mark.thorough
def test_so_it_has_in_rows_that_every_step_selects():
    every_row = tfdp.selection.FEST(WIDE // 10, frequencies={"table": np.ones(WIDE // 10)})
    model = table_model(
        every_row, WIDE // 10, noise_multiplier=0.5, clip_norm=4.0, noise_correlation=FIXED,
        num_examples=None, expected_batch_size=None,
    )  # fmt: skip
    for v in model.trainable_variables:  # no gradients: all of the updates is noise
        v.assign(tf.zeros_like(v))
    weights = Weights()
    model.fit(table_stream(), verbose=0, callbacks=[weights])
    seen = np.array([np.zeros(WIDE), *weights.seen])
    assert_covariance(-2.0 * np.diff(seen, axis=0) / (0.5 * 4.0), 1)


def test_advice_knows_that_noise_is_taken_back():
    model = chain_model(FIXED, noise_multiplier=2.0)
    optimizer = model.optimizer
    alone = advice._random_steps(optimizer, 4)
    optimizer.charging.begin(tfdp.data.sampling_of(stream()))
    chain = Correlation(M, 4)
    left = chain.sensitivity * correlated_noise.noise_in_weights(M, 4)
    assert advice._random_steps(optimizer, 4) == pytest.approx(left) and left < alone == 2.0


# What is charged ----------------------------------------------------------------------------------


@pytest.mark.thorough
def test_each_chain_is_one_gaussian_and_the_meter_shows_it_from_the_first_step_on():
    model, shown = chain_model(noise_multiplier=2.0), []
    keep = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: shown.append(logs["epsilon"])
    )
    model.fit(stream(), verbose=0, callbacks=[tfdp.callbacks.PrivacyMeter(DELTA), keep])
    assert_one(model, by_hand(gaussian(2.0)))
    assert len(shown) == 4 and shown == pytest.approx([by_hand(gaussian(2.0))] * 4, abs=1e-4)
    (entry,) = model.ledger.entries
    assert entry.adjacency == "zero_out" and entry.count == 1
    assert Correlation(**entry.details["correlation"]).steps == 4
    model.fit(stream(), verbose=0)  # another chain over the same records
    assert_one(model, by_hand(gaussian(2.0), gaussian(2.0)))


def test_one_step_costs_as_much_as_all():
    model = chain_model(noise_multiplier=2.0)
    for batch in model.training_batches(stream()):
        assert len(model.ledger) == 0
        model.train_on_batch(*batch)
        break
    assert_one(model, by_hand(gaussian(2.0)))
    said = " ".join(str(model.privacy_statement(DELTA)).split())
    assert "All steps, up to 4, are one mechanism" in said and "from the first step on" in said
    assert "assumes Poisson sampling" not in said


@pytest.mark.thorough
def test_a_budget_pays_for_one_chain_and_not_for_another():
    budget = tfdp.PrivacyBudget(2.0, DELTA)
    model = chain_model(budget=budget)
    model.fit(stream(), verbose=0)
    assert 0.99 < by_hand(gaussian(model.optimizer.noise_multiplier)) / 2.0 <= 1.0
    with pytest.raises(BudgetError, match="is spent"):
        model.fit(stream(), verbose=0)


def test_a_chain_that_a_crash_ended_leaves_no_budget_for_the_rest_of_the_records():
    model = chain_model(budget=tfdp.PrivacyBudget(2.0, DELTA), steps=4)
    for batch in model.training_batches(stream()):
        model.train_on_batch(*batch)
        break
    with pytest.raises(BudgetError, match="beyond the budget"):
        model.fit(stream(), verbose=0)


@pytest.mark.thorough
def test_passes_are_charged_together_with_the_sensitivity_of_all():
    model = chain_model(FIXED, noise_multiplier=2.0)
    model.fit(stream(passes=2), epochs=2, verbose=0)
    assert_one(model, by_hand(gaussian(2.0)))
    chain = model.ledger.entries[0].details["correlation"]
    assert (chain["participations"], chain["min_separation"], chain["steps"]) == (2, 4, 8)
    c = np.linalg.inv(
        sum(m * np.eye(8, k=-k) for k, m in enumerate(M))
    )  # a record of step 0 comes again in step 4
    both = Correlation(**chain).sensitivity
    assert both >= np.linalg.norm(c[:, 0] + c[:, 4]) - 1e-12


def persons_twice(**kwargs):
    """Persons of two records each, two steps apart."""
    ids = np.resize(np.arange(N // 2), N)
    return stream(privacy_ids=ids, max_participations=2, min_separation=2, **kwargs)


def test_persons_of_two_records_pay_for_both_participations():
    model = chain_model(FIXED, noise_multiplier=2.0, **FROM_DATA)
    model.fit(persons_twice(), verbose=0)
    (entry,) = model.ledger.entries
    assert model.ledger.epsilon(DELTA) == pytest.approx(by_hand(gaussian(2.0)), rel=1e-6)
    chain = Correlation(**entry.details["correlation"])
    assert (chain.participations, chain.min_separation, chain.steps) == (2, 2, 4)
    c = np.linalg.inv(sum(m * np.eye(4, k=-k) for k, m in enumerate(M)))
    assert chain.sensitivity >= np.linalg.norm(c[:, 0] + c[:, 2]) - 1e-12
    assert entry.details["unit"] == "one person with all of its records"
    said = " ".join(str(model.privacy_statement(DELTA)).split())
    assert "nobody is in more than 2 of them, 2 or more steps apart" in said
    adafest = tfdp.selection.AdaFEST(threshold=1.0, noise_ratio=1.0)
    rows = table_model(adafest, noise_multiplier=2.0, noise_correlation="auto", **FROM_DATA)
    with pytest.raises(PrivacyError, match="one record of each person"):
        rows.fit(
            table_stream(4, privacy_ids=np.resize(np.arange(4), 8), max_participations=2,
                         min_separation=2), verbose=0,
        )  # fmt: skip


def test_persons_of_two_records_may_not_come_in_another_order():
    model = chain_model(FIXED, noise_multiplier=2.0, **FROM_DATA)
    free = tf.data.Options()
    free.deterministic = False
    with pytest.raises(PrivacyError, match="another order"):
        model.fit(persons_twice().with_options(free), verbose=0)
    assert len(model.ledger) == 0


@pytest.mark.thorough
def test_a_batch_that_is_left_out_would_move_the_steps_of_a_person_closer():
    model = chain_model(FIXED, noise_multiplier=2.0, **FROM_DATA)
    with pytest.raises(PrivacyError, match="left out"):
        _train_on_all_but_the_second(model, enumerate(model.training_batches(persons_twice())))
    assert model.optimizer.steps_taken == 1
    model = chain_model(FIXED, noise_multiplier=2.0)
    _train_on_all_but_the_second(model, enumerate(model.training_batches(stream())))
    assert model.optimizer.steps_taken == 3


def test_a_batch_whose_step_fails_would_move_the_steps_of_a_person_closer(monkeypatch):
    model = chain_model(FIXED, noise_multiplier=2.0, **FROM_DATA)
    steps = model.training_batches(persons_twice())
    model.train_on_batch(*next(steps))
    damaged = mock.Mock(side_effect=tf.errors.DataLossError(None, None, "damaged"))
    with monkeypatch.context() as broken, pytest.raises(tf.errors.DataLossError):
        broken.setattr(type(model), "compute_loss", damaged)
        model.train_on_batch(*next(steps))
    with pytest.raises(PrivacyError, match="left out"):
        next(steps)
    assert damaged.called and model.optimizer.steps_taken == 1


def _train_on_all_but_the_second(model, steps):
    for number, batch in steps:
        if number != 1:
            model.train_on_batch(*batch)


def test_a_selection_is_in_the_same_gaussian_and_allows_one_pass():
    adafest = tfdp.selection.AdaFEST(threshold=1.0, noise_ratio=1.0)
    settings = {**FROM_DATA, "noise_correlation": "auto"}
    model = table_model(adafest, noise_multiplier=2.0, **settings)
    with pytest.raises(PrivacyError, match="only one pass"):
        model.fit(table_stream(4, passes=2), epochs=2, verbose=0)
    model.fit(table_stream(4), verbose=0)
    (entry,) = model.ledger.entries
    assert entry.details["selection"]["name"] == "AdaFEST"
    assert model.ledger.epsilon(DELTA) == pytest.approx(by_hand(gaussian(2.0)), rel=1e-6)
    with pytest.raises(ValueError, match="step is Gaussian"):
        table_model(
            tfdp.selection.ExponentialSelection(5, 1.0), noise_multiplier=2.0,
            noise_correlation="auto",
        )  # fmt: skip


@pytest.mark.thorough
def test_streams_of_disjoint_periods_cost_what_the_costliest_costs(tmp_path):
    periods = tfdp.data.DisjointPeriods(tmp_path / "periods.npz")
    settings = {**FROM_DATA, "noise_correlation": "auto"}
    model = eager_model(noise_multiplier=2.0, **settings)
    for k in range(2):
        week = periods.period(f"week {k}")
        batches = stream(privacy_ids=np.arange(N) + k * N, period=week)
        compile_again(model, noise_multiplier=2.0, **settings)
        model.fit(batches, verbose=0)
    assert len(model.ledger) == 2
    assert model.ledger.epsilon(DELTA) == pytest.approx(by_hand(gaussian(2.0)), rel=1e-6)
    with pytest.raises(PrivacyError, match="another period"):
        stream(privacy_ids=np.arange(N) + 1, period=periods.period("week 2"))
    with pytest.raises(PrivacyError, match="more than once"):
        stream(privacy_ids=np.arange(N) // 2)


def compile_again(model, **kwargs):
    optimizer = tfdp.optimizers.DPOptimizer(keras.optimizers.SGD(1.0), **kwargs)
    model.compile(optimizer, loss=Small.loss, run_eagerly=True)


def test_a_mechanism_is_restored_with_its_chain_and_refused_without_what_covers_it():
    sampling = tfdp.data.sampling_of(stream(passes=2))
    chain = Correlation(M, 8, 2, 4)
    mechanism = PrivateTraining(2.0, 1.0, sampling, N, correlation=chain)
    assert mechanism_from_dict(mechanism.to_dict()) == mechanism
    for less in (Correlation(M, 7, 2, 4), Correlation(M, 8, 1, 4), Correlation(M, 8, 2, 5)):
        with pytest.raises(ValueError, match="stream_batches"):
            PrivateTraining(2.0, 1.0, sampling, N, correlation=less)
    with pytest.raises(ValueError, match="stream_batches"):
        PrivateTraining(2.0, 1.0, None, N, correlation=chain)
    sampled = tfdp.data.cyclic_poisson_batches(make_data(N), N // 4, bands=2, steps_per_epoch=2)
    sampled = tfdp.data.sampling_of(sampled)
    for drawn, mechanism in ((sampled, "gaussian"), (sampling, "laplace")):
        with pytest.raises(ValueError, match="stream_batches"):
            chain.check(drawn, mechanism)
    of_persons = tfdp.data.sampling_of(persons_twice())
    person = {"unit": "one person with all of its records"}
    PrivateTraining(2.0, 1.0, of_persons, N, correlation=Correlation(M, 4, 2, 2), **person)
    for less in (Correlation(M, 4, 1, 2), Correlation(M, 4, 2, 3)):
        with pytest.raises(ValueError, match="stream_batches"):
            PrivateTraining(2.0, 1.0, of_persons, N, correlation=less, **person)


# What is refused ----------------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_record_may_not_come_more_often_than_it_is_charged_for():
    model = chain_model(FIXED, noise_multiplier=2.0)
    for batches, epochs in ((stream(), 2), (stream(passes=2), 3)):
        with pytest.raises(PrivacyError, match="more often than it is charged"):
            model.fit(batches, epochs=epochs, verbose=0)
    with pytest.raises(PrivacyError, match="more often than it is charged"):
        model.fit(stream(), epochs=3, steps_per_epoch=2, verbose=0)
    assert len(model.ledger) == 0


@pytest.mark.parametrize("known", [{"steps_per_epoch": 4}, {"passes": 1}, {}])
def test_a_stream_that_does_not_say_how_long_it_is_is_one_pass_at_most(known):
    sampling = tfdp.accounting.Sampling("stream", N, 10, **known)
    with pytest.raises(PrivacyError, match="made for passes=1"):
        refuse_more_passes(sampling, 2, None)
    if "steps_per_epoch" in known:
        refuse_more_passes(sampling, 1, None)


@pytest.mark.thorough
def test_a_chain_has_no_step_beyond_those_that_its_sensitivity_was_computed_for():
    model = chain_model(FIXED, noise_multiplier=2.0)
    for batch in model.training_batches(stream(passes=2)):
        assert model.optimizer.charging.allowed == 8 - model.optimizer.charging.steps_of_run
        model.train_on_batch(*batch)
    assert model.optimizer.charging.steps == 4


@pytest.mark.thorough
def test_epochs_that_are_parts_of_one_pass_use_each_record_once():
    """Without noise, each record moves its own weight by one step of the normalized gradient."""
    rows = keras.layers.Embedding(N, 1, embeddings_initializer="zeros")
    base = keras.Sequential([keras.Input((1,), dtype="int32"), rows, keras.layers.Flatten()])
    model = eager_model(
        tfdp.make_private(base, validate=False), lambda y, p: tf.reduce_sum(p, axis=-1),
        noise_correlation="auto", noise_multiplier=0.0, clipping="normalized",
    )  # fmt: skip
    ids = np.arange(N, dtype=np.int32)[:, None]
    batches = tfdp.data.stream_batches((ids, ids.astype(np.float32)), 10)
    model.fit(batches, epochs=2, steps_per_epoch=2, verbose=0)
    np.testing.assert_allclose(model.get_weights()[0], np.full((N, 1), -0.1), rtol=1e-5)


def test_batches_of_unknown_steps_are_refused():
    cyclic = tfdp.data.cyclic_poisson_batches(make_data(), 10, 2)
    for noise, batches in ((BandedInverse(2), stream()), (BandedMatrix(2), cyclic)):
        sampling = tfdp.data.sampling_of(batches)
        noise.check_batches(sampling)
        with pytest.raises(PrivacyError, match="can account for|do not state it"):
            noise.check_batches(dataclasses.replace(sampling, steps_per_epoch=None))


@pytest.mark.thorough
def test_batches_in_which_a_record_may_come_at_any_time_are_refused():
    model = chain_model(noise_multiplier=2.0)
    for batches in (
        tfdp.data.poisson_batches(make_data(), 10),
        tfdp.data.shuffled_epochs(make_data(), 10),
    ):
        with pytest.raises(PrivacyError, match="stream_batches"):
            model.fit(batches, verbose=0)


def test_no_key_and_no_number_of_a_chain_is_in_what_is_saved(tmp_path):
    model = chain_model(noise_multiplier=2.0)
    optimizer = model.optimizer
    for batch in model.training_batches(stream()):
        model.train_on_batch(*batch)
        hidden = optimizer.noise_chain.variables
        key = hidden[0].numpy().tobytes()
        assert not {id(v) for v in hidden} & {id(v) for v in optimizer.variables}
        tf.train.Checkpoint(model=model, optimizer=optimizer).save(str(tmp_path / "checkpoint"))
        model.save(tmp_path / "model.keras")
        break
    written = b"".join(p.read_bytes() for p in tmp_path.iterdir())
    assert written and key not in written
    reader = tf.train.load_checkpoint(str(tmp_path))
    assert not [name for name in reader.get_variable_to_shape_map() if "chain" in name]


def test_rows_on_several_replicas_are_refused():
    """On several workers, too: each replica is one that is in sync."""
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        model = table_model(
            tfdp.selection.AdaFEST(threshold=1.0), noise_multiplier=2.0, noise_correlation="auto",
            num_examples=None, expected_batch_size=None,
        )  # fmt: skip
    with pytest.raises(PrivacyError, match="on one device only"):
        model.fit(table_stream(4), verbose=0)
    assert len(model.ledger) == 0 and model.optimizer.steps_taken == 0


@pytest.mark.thorough
def test_a_loaded_optimizer_has_the_same_correlation():
    optimizer = chain_model(BandedInverse(3, learning_rates=[1.0, 0.5, 0.1])).optimizer
    loaded = tfdp.optimizers.DPOptimizer.from_config(optimizer.get_config())
    assert loaded.noise_correlation == optimizer.noise_correlation
    with pytest.raises(AttributeError, match="cannot be changed"):
        loaded.noise_correlation = None
    assert chain_model("auto").optimizer.noise_correlation == BandedInverse(4)


def test_coefficients_are_those_for_the_wrapped_optimizer():
    sampling = tfdp.data.sampling_of(stream())
    planned = BandedInverse().planned(chain_model().optimizer.charging.poisson(), None)
    assert (planned.chain_steps, sampling.chain_steps) == (4, 4) and planned.kind == "stream"
    falling = keras.optimizers.schedules.ExponentialDecay(1.0, 1, 0.5)
    rates = tuple(float(falling(t)) for t in range(4))
    for optimizer, workload in (
        (keras.optimizers.SGD(1.0), Workload()),
        (keras.optimizers.SGD(1.0, momentum=0.9), Workload(0.9)),
        (keras.optimizers.SGD(falling), Workload(0.0, rates)),
        (keras.optimizers.SGD(falling, momentum=0.9), Workload(0.9, rates)),
    ):
        expected = correlated_noise.optimized(3, 4, workload)
        assert BandedInverse(3).correlation(optimizer, sampling).coefficients == expected
        cyclic = dataclasses.replace(sampling, kind="cyclic_poisson", bands=3)
        strategy = BandedMatrix(3).correlation(optimizer, cyclic).strategy
        assert strategy == banded_noise.optimized_strategy(3, 4, workload)
    twice = tfdp.data.sampling_of(stream(passes=2))
    chain = BandedInverse(3).correlation(keras.optimizers.SGD(1.0), twice)
    assert chain.coefficients == correlated_noise.optimized(3, 8, Workload(), 2, 4)


@pytest.mark.parametrize("wrong", [
    lambda: BandedInverse(0), lambda: BandedInverse(3, (1.0, 0.5)),
    lambda: BandedInverse(1, (2.0,)), lambda: BandedInverse(2, (1.0, float("nan"))),
    lambda: BandedInverse(2, (1.0, 15.5)),  # too large for exact sums on the grid
    lambda: BandedInverse(momentum=1.0),
    lambda: BandedInverse(learning_rates="fast"), lambda: chain_model("banded"),
    lambda: BandedInverse(learning_rates=(1.0, float("inf"))),
])  # fmt: skip
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(ValueError, match="Argument"):
        wrong()


def test_a_stream_that_ends_before_its_bound_is_not_begun_again():
    x, y = make_data()
    spec = tf.TensorSpec([3], tf.float32), tf.TensorSpec([], tf.int32)
    data = tf.data.Dataset.from_generator(
        lambda: zip(x[:20], y, strict=False), output_signature=spec
    )
    batches = tfdp.data.stream_batches(data, 10, num_examples=N)
    model = chain_model(noise_multiplier=2.0)
    with pytest.raises(PrivacyError, match="StopIteration"), pytest.warns(UserWarning):
        model.fit(batches, epochs=4, steps_per_epoch=1, verbose=0)
    assert model.optimizer.steps_taken == 2
    said = model.privacy_statement(DELTA)
    assert any(f"bound of {N} records" in one for one in said.assumptions)


@pytest.mark.thorough
def test_several_passes_in_an_order_that_may_change_are_refused():
    model = chain_model(FIXED, noise_multiplier=2.0)
    batches = stream(passes=2)
    free = tf.data.Options()
    free.deterministic = False
    for other in (
        batches.map(lambda *batch: batch, num_parallel_calls=2, deterministic=False),
        batches.with_options(free),
        batches.map(lambda *batch: batch, 2, deterministic=False).prefetch(1),
    ):
        with pytest.raises(PrivacyError, match="another order in each pass"):
            model.fit(other, epochs=2, verbose=0)
    assert len(model.ledger) == 0
    model.fit(stream().with_options(free), verbose=0)  # one pass: each record once in any order
