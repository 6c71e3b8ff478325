"""Amplification of steps that choose and then noise: two looks at one Poisson batch."""

import dp_accounting
import numpy as np
import pytest
from scipy import special

from tfdp import PrivacyBudget, accounting
from tfdp.accounting.events.composition import training_event
from tfdp.accounting.events.concentrated import PoissonSampledConcentratedDpEvent, sampled_rdp

ORDERS = np.array([2, 3, 4, 8, 16, 32], float)
_GRID = np.linspace(-14.0, 16.0, 6001)


def joint_density(utilities, selection_epsilon, shift, sigma):
    """(rows, grid): a row by the exponential mechanism, then a Gaussian, both from one batch."""
    weights = np.exp(selection_epsilon * np.asarray(utilities, float))
    noise = np.exp(-((_GRID - shift) ** 2) / (2 * sigma**2)) / (sigma * np.sqrt(2 * np.pi))
    return (weights / weights.sum())[:, np.newaxis] * noise[np.newaxis]


def divergence(p, q, order):
    step = _GRID[1] - _GRID[0]
    log_terms = order * np.log(p) + (1 - order) * np.log(q)
    return special.logsumexp(log_terms, b=step) / (order - 1)


@pytest.mark.parametrize("q", [0.01, 0.1, 0.5])
@pytest.mark.parametrize("epsilon, sigma", [(0.5, 2.0), (2.0, 1.0), (1.0, 4.0)])
def test_a_choice_and_noise_on_one_poisson_batch_stay_within_the_curve(q, epsilon, sigma):
    rho = epsilon**2 / 8 + 0.5 / sigma**2
    without = joint_density([0, 0, 0, 0], epsilon, 0.0, sigma)
    for utilities in ([1, 0, 0, 0], [1, 1, 1, 0], [1, 0.5, 0, 0]):
        drawn = joint_density(utilities, epsilon, 1.0, sigma)
        with_record = q * drawn + (1 - q) * without
        for order in (2.0, 3.0, 6.0):
            (bound,) = sampled_rdp([order], rho, q)
            assert divergence(with_record, without, order) <= bound * (1 + 1e-6)
            assert divergence(without, with_record, order) <= bound * (1 + 1e-6)


@pytest.mark.thorough
def test_costs_amplified_one_by_one_would_be_exceeded():
    # A rare large choice and a shift that only matters together with it.
    q, epsilon, sigma, order = 0.01, 6.0, 0.5, 3.0
    without = joint_density([0] * 1000, epsilon, 0.0, sigma)
    with_record = q * joint_density([1] + [0] * 999, epsilon, 1.0, sigma) + (1 - q) * without
    truth = divergence(with_record, without, order)
    apart = sum(  # the step of the grid enters the choice's densities once, to the power of 1
        divergence(with_record.sum(axis), without.sum(axis), order) for axis in (0, 1)
    )
    assert truth > 1.5 * apart
    rho = epsilon**2 / 8 + 0.5 / sigma**2
    assert truth <= sampled_rdp([order], rho, q)[0]


@pytest.mark.parametrize("q", [0.001, 0.02, 0.3])
@pytest.mark.parametrize("sigma", [0.7, 1.5, 5.0])
def test_the_curve_is_above_the_sampled_gaussian_s_own_and_not_by_much(q, sigma):
    event = dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(sigma))
    accountant = dp_accounting.rdp.RdpAccountant(ORDERS).compose(event)
    exact = np.asarray(accountant._rdp)
    bound = sampled_rdp(ORDERS, 0.5 / sigma**2, q)
    # Both are logarithms of numbers near 1, which are rounded to 1e-16.
    assert (bound >= exact * (1 - 1e-9) - 1e-15).all()
    assert (bound <= (2 if q < 0.1 else 4) * exact).all()


@pytest.mark.parametrize(
    "order, rho, q, bound",
    [
        # Removing a record costs more, by the bound of its own:
        (4, 0.02, 0.1, 9.745244481e-4),
        (8, 0.125, 0.02, 4.82317783e-4),
        (3, 0.5, 0.5, 0.7449400628),
        (8, 0.125, 0.5, 0.5122370564),
        (32, 0.02, 0.001, 6.602098101e-7),
        # by Zhu and Wang's, which is smaller there:
        (2, 0.125, 0.1, 2.836228266e-3),
        (16, 0.02, 0.3, 0.1038642087),
        (16, 0.02, 0.5, 0.1676638338),
        # and never more than without sampling.
        (4, 0.02, 0.9, 0.08),
    ],
)
def test_the_bound_of_removing_a_record_is_the_one_in_the_text(order, rho, q, bound):
    # The formulas of `sampled_rdp` with 50 digits.
    assert sampled_rdp([order], rho, q)[0] == pytest.approx(bound, rel=1e-8)


def test_without_sampling_the_curve_is_the_gaussian_s():
    np.testing.assert_allclose(sampled_rdp(ORDERS, 0.125, 1.0), ORDERS / 8)
    event = PoissonSampledConcentratedDpEvent(1.0, 2.0)
    gaussian = dp_accounting.GaussianDpEvent(2.0)
    mine, other = (accounting.epsilon(e, 1e-5, "rdp") for e in (event, gaussian))
    assert mine == pytest.approx(other, rel=1e-9)


def test_between_integers_the_curve_bounds_the_gaussian_s_too_and_never_falls():
    orders = np.linspace(1.01, 12, 100)
    curve = sampled_rdp(orders, 0.3, 0.05)
    assert (np.diff(curve) >= -1e-12).all()
    event = dp_accounting.PoissonSampledDpEvent(0.05, dp_accounting.GaussianDpEvent(0.6**-0.5))
    exact = np.asarray(dp_accounting.rdp.RdpAccountant(orders).compose(event)._rdp)
    assert (curve >= exact * (1 - 1e-9)).all()


def test_ledgers_save_it_and_take_rdp_where_pld_has_no_rule():
    ledger = accounting.Ledger()
    ledger.add("training", training_event(1.0, 0.01, "concentrated"), 100)
    again = accounting.Ledger.from_json(ledger.to_json())
    assert again == ledger
    assert ledger.epsilon(1e-5) == ledger.epsilon(1e-5, "rdp")
    with pytest.raises(ValueError, match="rdp"):
        ledger.epsilon(1e-5, "pld")
    gaussian = accounting.Ledger()
    gaussian.add("training", training_event(1.0, 0.01), 100)
    assert gaussian.epsilon(1e-5) == gaussian.epsilon(1e-5, "pld") < ledger.epsilon(1e-5)


def test_noise_is_calibrated_to_the_joint_mechanism():
    budget = PrivacyBudget(3.0, 1e-5)
    sigma = accounting.calibrate_noise_multiplier(
        budget, 0.02, 500, accountant=None, mechanism="concentrated"
    )
    event = dp_accounting.SelfComposedDpEvent(training_event(sigma, 0.02, "concentrated"), 500)
    assert 2.99 < accounting.epsilon(event, 1e-5, "rdp") <= 3.0
    assert sigma > accounting.calibrate_noise_multiplier(budget, 0.02, 500)


def test_arguments_out_of_range_are_refused():
    for q, sigma in ((0.0, 1.0), (1.5, 1.0), (0.1, 0.0), (0.1, -1.0)):
        with pytest.raises(ValueError, match="Received"):
            PoissonSampledConcentratedDpEvent(q, sigma)
    with pytest.raises(ValueError, match="mechanism"):
        training_event(1.0, 0.1, "exponential")
