"""What forward noise costs, and what the paper says that it costs."""

import math

import dp_accounting
import numpy as np
import pytest
from epsilon_by_hand import visible_sampling_epsilon
from scipy import integrate, special, stats

from tfdp.accounting import (
    Ledger,
    LedgerEntry,
    PrivacyBudget,
    calibrate_forward_noise,
    calibrate_noise_multiplier,
    epsilon,
    gdp_clt_epsilon,
)
from tfdp.accounting.events.visible_sampling import VisiblySampledGaussianDpEvent
from tfdp.accounting.literature import (
    paper_forward_noise_claim,
    paper_forward_noise_multiplier,
)
from tfdp.errors import BudgetError

N = 67_349
DELTA = 1 / (2 * N)


def gaussian_delta(eps, mu):
    return stats.norm.cdf(-eps / mu + mu / 2) - math.exp(eps) * stats.norm.cdf(-eps / mu - mu / 2)


@pytest.mark.parametrize("copies, sigma", [(1, 1.41), (3, 2.44)])
def test_sigma_for_epsilon_3_on_sst2_is_that_of_the_mathematics(copies, sigma):
    budget = PrivacyBudget(3, DELTA)
    found = calibrate_forward_noise(budget, copies)
    assert found == pytest.approx(sigma, rel=0.01)
    assert gaussian_delta(3.0, math.sqrt(copies) / found) == pytest.approx(DELTA, rel=1e-2)
    replaced = calibrate_forward_noise(budget, copies, adjacency="replace_one")
    assert replaced == pytest.approx(2 * found, rel=1e-9)
    for sigma, adjacency in ((found, "zero_out"), (replaced, "replace_one")):
        event = dp_accounting.GaussianDpEvent(sigma)
        ledger = Ledger([LedgerEntry("noise", event, copies, {"adjacency": adjacency})])
        assert 0.999 * 3 < ledger.epsilon(DELTA) <= 3


def test_other_charges_are_subtracted_from_the_budget():
    budget = PrivacyBudget(3, DELTA)
    other = dp_accounting.GaussianDpEvent(3.0)
    sigma = calibrate_forward_noise(budget, 2, other_events=[other])
    event = dp_accounting.ComposedDpEvent(
        [other, dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(sigma), 2)]
    )
    assert 0.998 * 3 < epsilon(event, DELTA) <= 3
    with pytest.raises(BudgetError):
        calibrate_forward_noise(budget, 2, other_events=[dp_accounting.GaussianDpEvent(1.0)])
    assert calibrate_noise_multiplier(budget, 1.0, 2) == pytest.approx(
        calibrate_forward_noise(budget, 2), rel=1e-3
    )


@pytest.mark.parametrize(("wanted", "delta"), [(0.712345, 1e-7), (0.00115, 1e-9), (0.03, 1e-9)])
def test_a_budget_between_grid_points_is_met_as_the_ledger_counts(wanted, delta):
    # The exact noise would be counted as 5e-8 too much, and of a small budget as 2%.
    budget = PrivacyBudget(wanted, delta)
    event = dp_accounting.GaussianDpEvent(calibrate_forward_noise(budget))
    ledger = Ledger([LedgerEntry("noise", event, 1, {"adjacency": "zero_out"})])
    assert 0.999 * budget.epsilon < ledger.epsilon(budget.delta) <= budget.epsilon


def test_beside_other_charges_a_replaced_record_moves_the_vector_twice_as_far():
    budget, other = PrivacyBudget(3, DELTA), dp_accounting.GaussianDpEvent(5.0)
    sigma = calibrate_forward_noise(budget, 2, adjacency="replace_one", other_events=[other])
    # What a record moves, over the noise: 2/5 once and 2/sigma twice.
    mu = 2 * math.sqrt(1 / 5.0**2 + 2 / sigma**2)
    assert 0.99 * DELTA < gaussian_delta(3.0, mu) <= DELTA


def test_the_papers_formula_is_the_papers_and_not_a_guarantee():
    # Equation 11 and equation 3, by themselves.
    sigma, batch, m, epochs = 0.399, 32, 32, 3
    claim = paper_forward_noise_claim(sigma, N, batch, m, epochs, DELTA)
    steps = round(epochs * N / batch)
    mu = batch / (m * N) * math.sqrt(steps * m * (math.exp(sigma**-2) - 1))
    low, high = 0.0, 10.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if gaussian_delta(middle, mu) > DELTA else (low, middle)
    assert claim.claimed_epsilon == pytest.approx(low, abs=1e-6)
    assert claim.claimed_epsilon == gdp_clt_epsilon(sigma, 1 / N, steps * m, DELTA)
    assert claim.claimed_epsilon_pld == pytest.approx(3.0, rel=0.01)
    assert claim.true_epsilon == pytest.approx(27.5, rel=0.01)
    assert claim.true_epsilon_poisson == pytest.approx(53.4, rel=0.01)
    assert "NOT A GUARANTEE" in str(claim) and claim.to_dict()["is_guarantee"] is False


@pytest.mark.parametrize("claimed", [1.73, 3.0, 0.02])
def test_the_papers_calibration_inverts_its_formula(claimed):
    sigma = paper_forward_noise_multiplier(claimed, N, 32, 32, 3, DELTA)
    draws = round(3 * N / 32) * 32
    assert gdp_clt_epsilon(sigma, 1 / N, draws, DELTA) == pytest.approx(claimed, abs=1e-6)


def test_visible_draws_cost_what_the_number_of_copies_costs():
    q, sigma, draws, delta = 0.3, 1.7, 6, 1e-4
    event = dp_accounting.SelfComposedDpEvent(VisiblySampledGaussianDpEvent(q, sigma), draws)
    exact = visible_sampling_epsilon(sigma, q, draws, delta)
    # delta as an average over the visible number of copies, by brute force
    weights = [math.comb(draws, k) * q**k * (1 - q) ** (draws - k) for k in range(draws + 1)]
    total = sum(w * gaussian_delta(exact, k**0.5 / sigma) for k, w in enumerate(weights) if k)
    assert total == pytest.approx(delta, rel=1e-6)
    assert epsilon(event, delta, adjacency="zero_out") == pytest.approx(exact, rel=1e-3)
    assert exact <= epsilon(event, delta, "rdp", "zero_out") <= 1.3 * exact
    doubled = visible_sampling_epsilon(sigma / 2, q, draws, delta)
    assert epsilon(event, delta, adjacency="replace_one") == pytest.approx(doubled, rel=1e-3)
    # one drawn for certain is a Gaussian
    certain = VisiblySampledGaussianDpEvent(1.0, sigma)
    gaussian = epsilon(dp_accounting.GaussianDpEvent(sigma), delta)
    assert epsilon(certain, delta, adjacency="zero_out") == pytest.approx(gaussian, rel=1e-3)


def test_numbers_of_copies_that_are_left_out_count_as_publishing_the_record():
    # A mean of one copy, and a delta so small that more than 35 copies matter.
    draws, sigma, delta = 10**6, 1.0, 1.5e-42
    stated = visible_sampling_epsilon(sigma, 1 / draws, draws, delta)
    copies = np.arange(1, 200)
    mu = np.sqrt(copies) / sigma
    low, high = (stats.norm.logcdf(-stated / mu + sign * mu / 2) for sign in (-1, 1))
    deltas = np.exp(high) - np.exp(stated + low)
    assert stats.binom.pmf(copies, draws, 1 / draws) @ deltas <= delta


def test_rdp_of_visible_draws_is_the_moment_of_the_mixture():
    event = VisiblySampledGaussianDpEvent(0.1, 2.0)
    # E over (drawn, noise) of the likelihood ratio to the power a, by quadrature.
    grid = np.linspace(-30, 40, 200_001)
    for order in (1.5, 2.0, 8.0):
        log = stats.norm.logpdf(grid, 1, 2) * order + stats.norm.logpdf(grid, 0, 2) * (1 - order)
        moment = 0.9 + 0.1 * integrate.trapezoid(np.exp(log), grid)
        assert event.rdp([order])[0] == pytest.approx(math.log(moment) / (order - 1), rel=1e-6)
    assert np.isfinite(special.logsumexp(event.rdp([64.0])))


def test_a_ledger_that_shows_who_is_there_is_not_asked_about_adding_a_record():
    details = {"adjacency": "zero_out"}
    ledger = Ledger([LedgerEntry("noise", dp_accounting.GaussianDpEvent(2.0), 1, details)])
    assert ledger.adjacency == "zero_out"
    with pytest.raises(ValueError, match="zero_out"):
        ledger.epsilon(1e-5, adjacency="add_or_remove_one")
    with pytest.raises(ValueError, match="adjacency"):
        epsilon(VisiblySampledGaussianDpEvent(0.1, 2.0), 1e-5)
    doubled = ledger.epsilon(1e-5, adjacency="replace_one")
    assert doubled == pytest.approx(epsilon(dp_accounting.GaussianDpEvent(1.0), 1e-5), rel=1e-3)
