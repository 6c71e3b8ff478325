"""The Gaussian sampling mechanism is never further from private than its curve says."""

import math

import dp_accounting
import mpmath
import numpy as np
import pytest

from tfdp.accounting import Ledger, PrivacyBudget, epsilon, wishart_calibration
from tfdp.accounting.events.wishart import WishartDpEvent, wishart_rdp
from tfdp.accounting.literature import paper_sampling_epsilon
from tfdp.accounting.losses.analytic_gaussian import gaussian_epsilon, gaussian_noise_multiplier
from tfdp.accounting.release_series import affordable_calls, release_epsilon
from tfdp.accounting.wishart_calibration import largest_num_samples, largest_relative_sensitivity
from tfdp.errors import BudgetError

BUDGET = PrivacyBudget(1.0, 1e-5)


def gaussian_divergence(order, p, q):
    """Rényi divergence of N(0, p) from N(0, q), by determinants (Gil et al. 2013, table 2)."""
    mixed = order * q + (1 - order) * p
    if np.linalg.eigvalsh(mixed)[0] <= 0:
        return math.inf
    log_det = [np.linalg.slogdet(m)[1] for m in (mixed, p, q)]
    return -(log_det[0] - (1 - order) * log_det[1] - order * log_det[2]) / (2 * (order - 1))


def random_pair(rng, relative_sensitivity):
    """Two covariances that dominate I and differ by M in Frobenius norm."""
    n = rng.integers(1, 6)
    rank = rng.integers(1, n + 1)
    first, second = (rng.normal(size=(n, rank)) * rng.gamma(1.0, 1.0, rank) for _ in range(2))
    if rng.random() < 0.3:
        first = first * 0
    a, b = first @ first.T, second @ second.T
    scale = relative_sensitivity / np.linalg.norm(a - b)
    return np.eye(n) + a * scale, np.eye(n) + b * scale


@pytest.mark.parametrize("relative_sensitivity", [0.01, 0.2, 0.7, 0.95])
def test_curve_is_never_below_closed_form_in_either_direction(relative_sensitivity):
    rng = np.random.default_rng(0)
    orders = [1.05, 1.3, 1.7, 2.0, 2.2, 3.0, 5.0, 20.0, 90.0, 120.0]
    bounds = wishart_rdp(orders, relative_sensitivity)
    for _ in range(300):
        p, q = random_pair(rng, relative_sensitivity)
        for order, bound in zip(orders, bounds, strict=True):
            assert gaussian_divergence(order, p, q) <= bound * (1 + 1e-7) + 1e-14
            assert gaussian_divergence(order, q, p) <= bound * (1 + 1e-7) + 1e-14


def test_curve_is_reached_from_order_two_on():
    for m in (0.01, 0.3):
        p, q = np.diag([1 + m, 1.0]), np.eye(2)
        for order in (2.0, 2.5, 1 + 0.9 / m):
            bound = float(wishart_rdp([order], m)[0])
            assert gaussian_divergence(order, p, q) == pytest.approx(bound, rel=1e-6)


def test_curve_is_infinite_from_one_plus_one_over_m_on():
    below, at, above = wishart_rdp([4.999, 5.0, 6.0], 0.25)
    assert math.isfinite(below) and math.isinf(at) and math.isinf(above)


def test_curve_keeps_its_digits_for_small_m():
    mpmath.mp.dps = 60
    for m in (1e-12, 1e-7, 1e-3, 0.019, 0.021, 0.5):
        for order in (1.1, 1.9, 2.0, 2.9, 1 + 0.5 / m):
            e = mpmath.mpf(m) if order >= 2 else -mpmath.mpf(m)
            a = mpmath.mpf(order)
            exact = -mpmath.log(1 + e) / 2 - mpmath.log(1 - (a - 1) * e) / (2 * (a - 1))
            assert float(wishart_rdp([order], m)[0]) == pytest.approx(float(exact), rel=1e-11)


def losses(rng, draws, num_samples, m):
    """Privacy losses of N(0, 1 + m)^k against N(0, 1)^k, and in the other direction."""
    square = rng.chisquare(num_samples, draws)
    forward = -num_samples / 2 * math.log1p(m) + (1 + m) * square * (m / (1 + m)) / 2
    backward = num_samples / 2 * math.log1p(m) - square * m / 2
    return forward, backward


@pytest.mark.parametrize(("num_samples", "m"), [(5000, 0.001), (200, 0.02), (30, 0.2)])
def test_epsilon_covers_a_monte_carlo_of_the_privacy_loss(num_samples, m):
    delta, draws = 1e-3, 2_000_000
    stated = epsilon(WishartDpEvent(num_samples, m), delta, accountant="rdp")
    sampled = []
    for loss in losses(np.random.default_rng(1), draws, num_samples, m):
        # Five standard errors: false alarms below 1e-6.
        excess = np.maximum(0.0, -np.expm1(stated - loss))
        assert excess.mean() - 5 * excess.std() / math.sqrt(draws) <= delta
        sampled.append(np.maximum(0.0, -np.expm1(0.6 * stated - loss)).mean())
    assert max(sampled) > delta  # and is not vacuous


def test_table_of_ratios_to_the_papers_rule():
    table = {}
    for num_samples, m in [(5000, 0.001), (500, 0.003), (100, 0.005)]:
        exact = epsilon(WishartDpEvent(num_samples, m), 1e-5, accountant="rdp")
        table[num_samples, m] = (exact, paper_sampling_epsilon(num_samples, m, 1e-5))
        assert exact < table[num_samples, m][1]
    exact, paper = table[5000, 0.001]
    assert (round(exact, 2), round(paper, 2)) == (0.18, 0.68)


@pytest.mark.parametrize(
    ("arguments", "change"),
    [
        ((5000, 1.0, 1e-5), "Raise the ridge above the sensitivity"),
        ((50_000, 0.001, 1e-5), "Lower num_samples to 10857 at most"),
        ((1, 0.02, 1e-5), "Raise the ridge to more than 92.1 times"),
    ],
)
def test_papers_rule_is_refused_where_it_is_not_proven(arguments, change):
    with pytest.raises(ValueError, match=change):
        paper_sampling_epsilon(*arguments)


def test_what_the_refusal_advises_is_accepted():
    assert paper_sampling_epsilon(10_857, 0.001, 1e-5) < 1
    assert paper_sampling_epsilon(1, 1 / 92.2, 1e-5) < 1


@pytest.mark.parametrize("m", [-0.1, 0.0, 1.0, 3.0, math.nan])
def test_event_refuses_a_ridge_that_does_not_exceed_the_sensitivity(m):
    with pytest.raises(ValueError, match="Raise the ridge"):
        WishartDpEvent(10, m)


@pytest.mark.parametrize("releases", [1, 8])
@pytest.mark.parametrize("m", [1e-4, 1e-3, 0.01])
def test_largest_num_samples_is_the_largest(m, releases):
    k = largest_num_samples(m, BUDGET, releases)

    def spent(k):
        composed = dp_accounting.SelfComposedDpEvent(WishartDpEvent(k, m), releases)
        return epsilon(composed, BUDGET.delta, accountant="rdp")

    assert spent(k) <= BUDGET.epsilon < spent(k + max(1, k // 10**6))


def test_largest_relative_sensitivity_inverts_largest_num_samples():
    for k in (1, 40, 10**6):
        m = largest_relative_sensitivity(k, BUDGET, releases=2)
        assert largest_num_samples(m, BUDGET, releases=2) >= k
        if k > 1:
            assert largest_num_samples(m * 1.001, BUDGET, releases=2) <= k


def test_no_sample_fits_says_which_ridge_would():
    with pytest.raises(BudgetError, match="Raise the ridge.*at most 0.10"):
        largest_num_samples(0.5, BUDGET)


def test_ledger_composes_heads_layers_and_calls_and_survives_json():
    ledger = Ledger()
    ledger.add("first", WishartDpEvent(100, 0.001), count=12)
    ledger.add("second", dp_accounting.GaussianDpEvent(5.0), count=3)
    restored = Ledger.from_json(ledger.to_json())
    orders = np.array([2.0, 8.0, 32.0])
    accountant = dp_accounting.rdp.RdpAccountant(orders)
    accountant.compose(dp_accounting.GaussianDpEvent(5.0), 3)
    total = accountant.rdp + 1200 * wishart_rdp(orders, 0.001)
    by_hand = dp_accounting.rdp.rdp_privacy_accountant.compute_epsilon(orders, total, 1e-5)[0]
    assert 0 < restored.epsilon(1e-5, accountant="rdp") <= by_hand
    with pytest.raises(ValueError, match='accountant="rdp"'):
        restored.epsilon(1e-5, "pld")


def test_gaussian_epsilon_agrees_with_privacy_loss_distributions():
    for target in (0.01, 1.0, 20.0):
        sigma = gaussian_noise_multiplier(PrivacyBudget(target, 1e-5), releases=4)
        assert gaussian_epsilon(sigma, 1e-5, releases=4) == pytest.approx(target, rel=1e-6)
        event = dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(sigma), 4)
        assert target * 0.999 < epsilon(event, 1e-5) <= target * (1 + 1e-9)
        assert release_epsilon(event, 1e-5) == pytest.approx(target, rel=1e-6)


@pytest.mark.parametrize("releases", [1, 3])
def test_the_most_samples_are_those_that_the_accountant_accepts(releases, monkeypatch):
    """Whatever rounding adds to the closed form, here three samples, is taken off again."""
    m, bound = 0.001, wishart_calibration._num_samples_bound
    monkeypatch.setattr(wishart_calibration, "_num_samples_bound", lambda *args: bound(*args) + 3)
    most = largest_num_samples(m, BUDGET, releases)
    fits, too_many = (
        dp_accounting.SelfComposedDpEvent(WishartDpEvent(n, m), releases) for n in (most, most + 1)
    )
    assert epsilon(fits, BUDGET.delta, "rdp") <= BUDGET.epsilon
    assert epsilon(too_many, BUDGET.delta, "rdp") > BUDGET.epsilon


def test_gaussian_calibration_reaches_any_epsilon():
    for target in (1e-4, 300.0, 20_000.0):
        sigma = gaussian_noise_multiplier(PrivacyBudget(target, 1e-6))
        assert gaussian_epsilon(sigma, 1e-6) == pytest.approx(target, rel=1e-5)


@pytest.mark.parametrize("event", [dp_accounting.GaussianDpEvent(20.0), WishartDpEvent(200, 0.001)])
def test_affordable_calls_is_the_most_that_fits(event):
    calls = affordable_calls(event, BUDGET)
    assert calls > 1

    def spent(calls):
        return release_epsilon(dp_accounting.SelfComposedDpEvent(event, calls), BUDGET.delta)

    assert spent(calls) <= BUDGET.epsilon < spent(calls + 1)
    assert affordable_calls(dp_accounting.GaussianDpEvent(0.1), BUDGET) == 0
    assert affordable_calls(WishartDpEvent(10_000, 0.1), BUDGET) == 0
