"""Strategy matrices of few bands: sensitivity by brute force, coefficients of least noise."""

import jax_privacy_numbers
import numpy as np
import pytest
from scipy import optimize

from tfdp.accounting import Sampling, banded_noise
from tfdp.accounting.banded_noise import (
    BandedCorrelation,
    optimized_strategy,
    steps_of_epochs,
    steps_of_pass,
)
from tfdp.accounting.correlated_noise import Workload

C = (1.0, 0.6, 0.4)


def matrix(c, steps):
    return sum(one * np.eye(steps, k=-k) for k, one in enumerate(c))


def test_a_record_moves_as_many_entries_as_there_are_bands_by_the_sensitivity_at_most(steps=11):
    chain = BandedCorrelation(C, steps)
    c0 = matrix(C, steps)
    norms = np.linalg.norm(c0, axis=0)
    assert norms.max() == pytest.approx(chain.sensitivity) and np.all(norms <= norms[0] + 1e-12)
    # Steps that are b apart move different entries, closer ones do not.
    for apart in range(1, 6):
        together = np.abs(c0[:, :-apart]) * np.abs(c0[:, apart:])
        assert np.any(together) == (apart < chain.bands)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("rates", [None, tuple(np.linspace(1.0, 0.1, 30))])
def test_noise_in_the_weights_is_that_of_the_matrices(momentum, rates, steps=30):
    learning = np.ones(steps) if rates is None else np.array(rates)
    filtered = matrix(momentum ** np.arange(steps), steps) @ np.linalg.inv(matrix(C, steps))
    weights = np.tril(np.ones((steps, steps))) @ (learning[:, None] * filtered)
    true = np.sqrt(np.mean(np.sum(weights**2, 1))) / np.sqrt(np.mean(learning**2))
    found = BandedCorrelation(C, steps).noise_in_weights(Workload(momentum, rates))
    assert found == pytest.approx(true * np.linalg.norm(C))


@pytest.mark.parametrize("momentum", [0.0, 0.8])
def test_the_gradient_of_the_cost_is_that_of_differences(momentum, steps=25):
    arguments = steps, Workload(momentum)
    for rest in (np.array([0.5, 0.3, 0.2]), np.array([0.1, -0.4])):
        value, gradient = banded_noise._cost(rest, *arguments)
        assert value == pytest.approx(banded_noise._cost_by_numbers(rest, *arguments))
        by_numbers = optimize.approx_fprime(
            rest, lambda r: banded_noise._cost(r, *arguments)[0], 1e-7
        )
        np.testing.assert_allclose(gradient, by_numbers, atol=1e-5)


@pytest.mark.parametrize("bands", [4, 8])
def test_coefficients_are_those_of_jax_privacy(bands):
    steps, theirs, _ = jax_privacy_numbers.STRATEGIES[f"banded, {bands}"]
    ours = np.array(optimized_strategy(bands, steps))
    np.testing.assert_allclose(ours / np.linalg.norm(ours), theirs, atol=2e-3)
    best = BandedCorrelation(tuple(np.array(theirs) / theirs[0]), steps)
    found = BandedCorrelation(tuple(ours), steps).noise_in_weights()
    assert found == pytest.approx(best.noise_in_weights(), rel=1e-6)


def test_more_bands_leave_less_noise_and_one_band_is_independent_noise():
    left = [
        BandedCorrelation(optimized_strategy(b, 200), 200).noise_in_weights() for b in (1, 2, 4, 16)
    ]
    assert left[0] == pytest.approx(np.sqrt(np.mean(np.arange(1, 201))))
    assert np.all(np.diff(left) < 0)
    assert optimized_strategy(4, 2)[2:] == (0.0, 0.0)  # nothing is left to take back


def test_coefficients_follow_the_workload(steps=100):
    fading = Workload(0.0, tuple(np.linspace(1.0, 0.02, steps)))
    for workload in (Workload(0.9), fading):
        own, other = (
            BandedCorrelation(optimized_strategy(4, steps, w), steps).noise_in_weights(workload)
            for w in (workload, Workload())
        )
        assert own < other


def test_noise_that_would_grow_from_step_to_step_is_refused():
    with pytest.raises(ValueError, match="Argument `strategy`"):
        BandedCorrelation((1.0, -3.0), 400)
    with pytest.raises(ValueError, match="Argument `strategy`"):
        BandedCorrelation((1.0, -3.0), 4000)  # beyond float64
    with pytest.raises(ValueError, match="Argument `strategy`"):
        BandedCorrelation((0.5, 0.3), 4)
    with pytest.raises(ValueError, match="Argument `strategy`"):
        BandedCorrelation((), 4)
    for steps in (0, 2.5):
        with pytest.raises(ValueError, match="Argument `steps`"):
            BandedCorrelation(C, steps)
    long = BandedCorrelation(optimized_strategy(2, 100_000), 100_000)
    # In the limit of many steps two equal bands would be best, whose inverse never fades.
    assert 15.0 < long.largest <= 16.0
    assert long.noise_in_weights() < 0.71 * np.sqrt(50_000)


def cyclic(**changes):
    fields = {"steps_per_epoch": 6, "passes": 2, "bands": 3, **changes}
    return Sampling("cyclic_poisson", 60, 10, **fields)


def test_steps_whose_records_may_come_again_too_soon_are_refused():
    chain = BandedCorrelation(C, 12)
    chain.check(cyclic(), "gaussian")
    chain.check(cyclic(steps_per_epoch=7, passes=1), "gaussian")
    for wrong in (
        None, cyclic(bands=2), cyclic(steps_per_epoch=5), cyclic(passes=3),
        cyclic(steps_per_epoch=None), Sampling("poisson", 60, 10, steps_per_epoch=6),
        Sampling("stream", 60, 10, steps_per_epoch=6),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="cyclic_poisson_batches"):
            chain.check(wrong, "gaussian")
    with pytest.raises(ValueError, match="cyclic_poisson_batches"):
        chain.check(cyclic(), "concentrated")


def test_a_pass_has_whole_rounds_and_at_least_one():
    found = [steps_of_pass(n, 10, 4) for n in (10, 40, 59, 60, 61, 400)]
    assert found == [4, 4, 4, 8, 8, 40]
    assert [steps_of_epochs(60, epochs, 10, 4) for epochs in (0.01, 0.5, 0.6, 3)] == [1, 4, 5, 24]


def test_rounds_that_were_begun_count_and_a_pass_begins_with_a_round():
    whole, cut = cyclic(), cyclic(steps_per_epoch=4)
    assert [whole.appearances(t) for t in (1, 3, 4, 6, 7, 12)] == [1, 1, 2, 2, 3, 4]
    assert [cut.appearances(t) for t in (3, 4, 5, 8)] == [1, 2, 3, 4]
    assert cyclic(steps_per_epoch=None).appearances(5) == 5
    assert whole.part_probability == 0.5 and whole.participations == (4, 3)


def test_parts_that_are_smaller_than_a_batch_are_refused():
    assert cyclic(bands=6).part_probability == 1.0
    for wrong in ({"bands": 7}, {"bands": None}, {"bands": 0}):
        with pytest.raises(ValueError, match="bands"):
            cyclic(**wrong)
    with pytest.raises(ValueError, match="bands"):
        Sampling("poisson", 60, 10, bands=2)


def test_overflow_is_that_of_all_steps_of_a_round():
    once = Sampling("poisson", 60, 10, max_batch_size=14).overflow_probability
    assert cyclic(max_batch_size=14).overflow_probability == pytest.approx(3 * once)
