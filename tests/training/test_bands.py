"""Training with noise of a banded matrix: what is added, charged, kept, and refused."""

from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf
from eager_steps import eager_model
from epsilon_by_hand import DELTA, N, assert_one, by_hand, poisson
from noise_over_steps import Weights
from scipy import stats
from small_models import make_data

import tfdp
from tfdp.accounting.banded_noise import BandedCorrelation
from tfdp.accounting.charges.mechanisms import (
    ForwardNoise,
    PrivateTraining,
    mechanism_from_dict,
)
from tfdp.accounting.correlated_noise import Correlation
from tfdp.errors import BudgetError, PrivacyError
from tfdp.optimizers import BandedInverse, BandedMatrix, logical_step
from tfdp.training.checks import advice

C = (1.0, 0.5)
FIXED = BandedMatrix(2, C)
WIDE = 20_000
FROM_DATA = {"num_examples": None, "expected_batch_size": None}


def cyclic(bands=2, batch=5, passes=1, steps_per_epoch=8, **kwargs):
    return tfdp.data.cyclic_poisson_batches(
        make_data(), batch, bands, passes=passes, steps_per_epoch=steps_per_epoch, **kwargs
    )


def bands_model(noise_correlation=FIXED, **kwargs):
    return eager_model(noise_correlation=noise_correlation, expected_batch_size=5, **kwargs)


# What is added ------------------------------------------------------------------------------------


def assert_covariance_of_a_fit(executions=1, **compile_kwargs):
    """The covariance over the steps of two passes is σ²C²·s²·M·Mᵀ, M the inverse of the matrix.

    The weights are 20,000 chains. False alarms: each of at most 64 entries is off by 6 standard
    deviations with probability 2e-9.
    """
    c, batches, passes = (1.0, 0.5, 0.3), 6, 2
    layers = [keras.Input((1,)), keras.layers.Dense(WIDE, use_bias=False)]
    model = tfdp.make_private(keras.Sequential(layers), validate=False)
    optimizer = tfdp.optimizers.DPOptimizer(
        keras.optimizers.SGD(1.0), noise_multiplier=0.5, clip_norm=4.0,
        noise_correlation=BandedMatrix(3, c),
    )  # fmt: skip
    model.compile(
        optimizer, loss=keras.losses.MeanSquaredError(), steps_per_execution=executions,
        **compile_kwargs,
    )  # fmt: skip
    model.build((None, 1))
    start = model.trainable_variables[0].numpy().ravel().astype(np.float64)
    data = np.zeros((12, 1), np.float32), np.zeros((12, 1), np.float32)
    weights = Weights()
    model.fit(
        tfdp.data.cyclic_poisson_batches(data, 2, 3, passes=passes, steps_per_epoch=batches),
        epochs=passes, verbose=0, callbacks=[weights],
    )  # fmt: skip
    noise = -2.0 * np.diff(np.array([start, *weights.seen]), axis=0) / (0.5 * 4.0)
    steps = batches * passes
    m = np.linalg.inv(sum(one * np.eye(steps, k=-k) for k, one in enumerate(c)))
    sums = np.kron(np.eye(steps // executions), np.ones(executions)) @ m
    expected = np.dot(c, c) * sums @ sums.T
    found = noise @ noise.T / WIDE
    deviation = np.sqrt((expected**2 + np.outer(np.diag(expected), np.diag(expected))) / WIDE)
    assert np.all(np.abs(found - expected) < stats.norm.isf(1e-9) * deviation), found / expected


@pytest.mark.thorough
@pytest.mark.parametrize("jit_compile", [False, True])
def test_the_noise_of_a_fit_has_the_covariance_of_the_inverse_matrix(jit_compile):
    assert_covariance_of_a_fit(executions=2 if jit_compile else 1, jit_compile=jit_compile)


@pytest.mark.thorough
def test_advice_knows_that_noise_is_taken_back():
    model = bands_model(noise_multiplier=2.0)
    model.optimizer.charging.begin(tfdp.data.sampling_of(cyclic()))
    expected = BandedCorrelation(C, 8).noise_in_weights()
    assert advice._random_steps(model.optimizer, 8) == pytest.approx(expected)


# What is charged ----------------------------------------------------------------------------------


def rounds(number, sigma=2.0, probability=0.25):
    return poisson(sigma, probability, number)


def test_each_round_that_was_begun_is_one_sampled_gaussian_and_the_meter_shows_it():
    model, shown = bands_model(noise_multiplier=2.0), []
    keep = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: shown.append(logs["epsilon"])
    )
    batches = cyclic(passes=2, steps_per_epoch=4)
    meter = tfdp.callbacks.PrivacyMeter(DELTA)
    model.fit(batches, epochs=2, verbose=0, callbacks=[meter, keep])
    assert_one(model, by_hand(rounds(4)))
    # Of each epoch the ε at its end.
    assert shown == pytest.approx([by_hand(rounds(2))] * 4 + [by_hand(rounds(4))] * 4, abs=1e-4)
    (entry,) = model.ledger.entries
    assert entry.count == 4 and entry.adjacency in (None, "add_or_remove_one")
    assert BandedCorrelation(**entry.details["correlation"]) == BandedCorrelation(C, 8)
    said = " ".join(str(model.privacy_statement(DELTA)).split())
    assert "each record is in one of 2 parts" in said and "with probability 0.25" in said
    assert "part of the noise of up to 1 steps before it. Each 2 steps are one mechanism" in said


@pytest.mark.thorough
def test_a_fit_that_ends_early_costs_the_rounds_it_began():
    model = bands_model(noise_multiplier=2.0)
    for number, batch in enumerate(model.training_batches(cyclic())):
        model.train_on_batch(*batch)
        if number == 2:
            break
    assert_one(model, by_hand(rounds(2)))


@pytest.mark.thorough
def test_a_second_chain_is_charged_besides_with_its_own_rounds():
    model = bands_model(noise_multiplier=2.0)
    for steps in (3, 3):  # of a crash after the third step
        for number, batch in enumerate(model.training_batches(cyclic())):
            model.train_on_batch(*batch)
            if number == steps - 1:
                break
    assert_one(model, by_hand(rounds(4)))  # and not the 3 rounds of 6 steps
    assert len(model.ledger) == 2


@pytest.mark.thorough
def test_a_budget_pays_for_the_rounds_of_all_passes():
    budget = tfdp.PrivacyBudget(2.0, DELTA)
    model = bands_model(budget=budget)
    batches = cyclic(passes=2, steps_per_epoch=4)
    model.fit(batches, epochs=2, verbose=0)
    spent = by_hand(rounds(4, model.optimizer.noise_multiplier))
    assert 0.99 < spent / 2.0 <= 1.0
    with pytest.raises(BudgetError, match="is spent"):
        model.fit(batches, epochs=2, verbose=0)


def test_noise_is_known_before_the_data_if_the_steps_are():
    budget = tfdp.PrivacyBudget(2.0, DELTA)
    model = bands_model(budget=budget, steps=8)
    known = model.optimizer.noise_multiplier
    batches = cyclic(passes=2, steps_per_epoch=4)
    model.optimizer.charging.begin(tfdp.data.sampling_of(batches))
    assert model.optimizer.noise_multiplier == pytest.approx(known, rel=2e-3)


@pytest.mark.thorough
def test_independent_noise_on_cyclic_samples_costs_rounds_too():
    model = eager_model(noise_multiplier=2.0, expected_batch_size=5)
    model.fit(cyclic(steps_per_epoch=4), verbose=0)
    assert_one(model, by_hand(rounds(2)))


def test_forward_noise_on_cyclic_samples_costs_a_copy_in_each_step():
    """Of its steps nobody checks that they take the parts in turn."""
    mechanism = ForwardNoise(2.0, "add_or_remove_one", tfdp.data.sampling_of(cyclic()), N)
    (entry,) = mechanism.entries(3, "run")
    assert entry.count == 3


@pytest.mark.thorough
def test_persons_pay_for_rounds():
    ids = np.repeat(np.arange(N // 2), 2)
    model = eager_model(noise_multiplier=2.0, noise_correlation=FIXED, **FROM_DATA)
    batches = cyclic(privacy_ids=ids, max_records_per_unit=2, steps_per_epoch=4)
    model.fit(batches, verbose=0)
    statement = model.privacy_statement(DELTA)
    assert statement.epsilon == pytest.approx(by_hand(rounds(2, probability=0.5)), rel=1e-6)
    assert statement.unit == "one person with all of its records"


def test_a_mechanism_is_restored_with_its_matrix():
    sampling = tfdp.data.sampling_of(cyclic())
    mechanism = PrivateTraining(2.0, 1.0, sampling, N, correlation=BandedCorrelation(C, 8))
    assert mechanism_from_dict(mechanism.to_dict()) == mechanism
    for wrong in (BandedCorrelation(C, 7), BandedCorrelation((*C, 0.1), 8), Correlation(C, 8)):
        with pytest.raises(ValueError, match="batches"):
            PrivateTraining(2.0, 1.0, sampling, N, correlation=wrong)


# What is refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize("noise, batches, way_out", [
    (FIXED, lambda: cyclic(4), "bands=2"),
    (FIXED, lambda: tfdp.data.poisson_batches(make_data(), 5), "cyclic_poisson_batches"),
    (FIXED, lambda: tfdp.data.stream_batches(make_data(), 5), "BandedInverse"),
    ("auto", lambda: cyclic(), "BandedMatrix"),
    (BandedInverse(2), lambda: cyclic(), "BandedMatrix"),
    (FIXED, lambda: cyclic(passes=2).take(7), "multiple of `bands`"),
])  # fmt: skip
def test_batches_and_noise_that_do_not_belong_together_are_refused(noise, batches, way_out):
    model = bands_model(noise, noise_multiplier=2.0)
    with pytest.raises(PrivacyError, match=way_out):
        model.fit(batches(), verbose=0)
    assert len(model.ledger) == 0 and model.optimizer.steps_taken == 0


def test_more_passes_than_a_chain_was_made_for_are_refused():
    model = bands_model(noise_multiplier=2.0)
    with pytest.raises(PrivacyError, match="made for passes=1"):
        model.fit(cyclic(), epochs=2, verbose=0)


def test_parts_that_may_come_in_another_order_are_refused():
    model = bands_model(noise_multiplier=2.0)
    free = tf.data.Options()
    free.deterministic = False
    with pytest.raises(PrivacyError, match="another order"):
        model.fit(cyclic().with_options(free), verbose=0)
    assert len(model.ledger) == 0


@pytest.mark.thorough
def test_a_batch_that_is_left_out_would_bring_a_part_too_soon():
    model = bands_model(noise_multiplier=2.0)
    with pytest.raises(PrivacyError, match="left out"):
        for number, batch in enumerate(model.training_batches(cyclic())):
            if number != 1:
                model.train_on_batch(*batch)
    assert model.optimizer.steps_taken == 1


def test_a_step_that_fails_after_it_was_charged_counts_as_left_out(monkeypatch):
    model = bands_model(noise_multiplier=2.0)
    steps = model.training_batches(cyclic())
    with monkeypatch.context() as broken, pytest.raises(RuntimeError, match="full"):
        broken.setattr(logical_step, "_update_dense", mock.Mock(side_effect=RuntimeError("full")))
        model.train_on_batch(*next(steps))
    assert model.optimizer.steps_taken == 1
    with pytest.raises(PrivacyError, match="left out"):
        next(steps)


def test_rows_that_are_selected_are_refused():
    with pytest.raises(ValueError, match="chosen rows"):
        bands_model(
            selection=tfdp.selection.AdaFEST(threshold=1.0),
            embedding_optimizer=tfdp.optimizers.RowSGD(1.0), noise_multiplier=1.0,
        )  # fmt: skip


def test_several_replicas_are_refused():
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        model = bands_model(noise_multiplier=2.0)
        model.build((None, 3))
        with pytest.raises(PrivacyError, match="one device"):
            model.optimizer.build(model.trainable_variables)


@pytest.mark.thorough
def test_no_key_and_no_noise_of_a_chain_is_in_what_is_saved(tmp_path):
    model = bands_model(noise_multiplier=2.0)
    optimizer = model.optimizer
    for number, batch in enumerate(model.training_batches(cyclic())):
        model.train_on_batch(*batch)
        if number == 2:
            hidden = optimizer.noise_chain.variables
            secrets = [hidden[0].numpy(), hidden[-1].numpy()[:, :2]]
            assert all(map(np.any, secrets))
            assert not {id(v) for v in hidden} & {id(v) for v in optimizer.variables}
            tf.train.Checkpoint(model=model, optimizer=optimizer).save(str(tmp_path / "checkpoint"))
            model.save(tmp_path / "model.keras")
            model.export(tmp_path / "exported", verbose=False)
            break
    written = b"".join(p.read_bytes() for p in tmp_path.rglob("*") if p.is_file())
    assert written and not any(secret.tobytes() in written for secret in secrets)
    names = [name for name, _ in tf.train.list_variables(str(tmp_path))]
    assert names and not [name for name in names if "chain" in name or "noise" in name]
    assert not np.any(hidden[-1].numpy())  # the run has ended


def test_a_loaded_optimizer_has_the_same_matrix():
    optimizer = bands_model(BandedMatrix(3, momentum=0.5)).optimizer
    loaded = tfdp.optimizers.DPOptimizer.from_config(optimizer.get_config())
    assert loaded.noise_correlation == optimizer.noise_correlation != BandedInverse(3, momentum=0.5)


@pytest.mark.parametrize("wrong", [
    lambda: BandedMatrix(0), lambda: BandedMatrix(3, (1.0, 0.5)), lambda: BandedMatrix(1, (2.0,)),
    lambda: BandedMatrix(2, (1.0, float("nan"))), lambda: BandedMatrix(2, momentum=1.0),
])  # fmt: skip
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(ValueError, match="Argument"):
        wrong()
