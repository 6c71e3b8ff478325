"""Calibrated noise meets the budget, tightly, after everything else is paid."""

import dp_accounting
import pytest

from tfdp.accounting import (
    Ledger,
    PrivacyBudget,
    accountants,
    calibrate_noise_multiplier,
    epsilon,
    gdp_clt_epsilon,
)
from tfdp.accounting.events.composition import compose, training_event
from tfdp.errors import BudgetError

_SST2_DELTA = 1 / (2 * 67349)


def _reached(sigma, q, steps, delta, accountant="pld", adjacency="add_or_remove_one", others=()):
    event = compose([*((e, 1) for e in others), (training_event(sigma, q), steps)])
    return epsilon(event, delta, accountant, adjacency)


@pytest.mark.thorough_after(2)
@pytest.mark.parametrize(
    ("target", "q", "steps", "accountant", "adjacency"),
    [
        (8.0, 512 / 6040, 1200, "pld", "add_or_remove_one"),
        (0.3, 0.001, 5000, "pld", "add_or_remove_one"),
        # dp_accounting's own rule, which is slow; tests/accounting/test_epsilon.py asks it once.
        pytest.param(2.0, 0.02, 100, "pld", "replace_one", marks=pytest.mark.evidence),
        (3.0, 0.02, 400, "rdp", "replace_one"),
        (1.0, 0.02, 400, "pld", "zero_out"),
        (2.0, 0.5, 20, "rdp", "add_or_remove_one"),
        (1.0, 1.0, 4, "pld", "add_or_remove_one"),
    ],
)
def test_calibration_never_exceeds_the_budget_and_uses_it_up(
    target, q, steps, accountant, adjacency
):
    budget = PrivacyBudget(target, 1e-5)
    sigma = calibrate_noise_multiplier(budget, q, steps, accountant, adjacency)
    reached = _reached(sigma, q, steps, 1e-5, accountant, adjacency)
    assert 0.999 * target <= reached <= target


@pytest.mark.parametrize(("copies", "sigma"), [(1, 1.41), (3, 2.44)])
def test_published_figures_for_unsampled_copies(copies, sigma):
    # MATH.md section 5: epsilon = 3 at delta = 1/(2n) on SST-2.
    calibrated = calibrate_noise_multiplier(PrivacyBudget(3.0, _SST2_DELTA), 1.0, copies)
    assert calibrated == pytest.approx(sigma, abs=0.006)


@pytest.mark.thorough
def test_other_events_are_paid_from_the_same_budget():
    budget = PrivacyBudget(2.0, 1e-5)
    others = (dp_accounting.LaplaceDpEvent(2.0),)
    alone = calibrate_noise_multiplier(budget, 0.01, 500)
    sigma = calibrate_noise_multiplier(budget, 0.01, 500, other_events=others)
    assert sigma > alone * 1.05
    reached = _reached(sigma, 0.01, 500, 1e-5, others=others)
    assert 0.999 * 2.0 <= reached <= 2.0


def test_delta_promised_elsewhere_is_not_spent_again():
    budget = PrivacyBudget(2.0, 1e-5)
    sigma = calibrate_noise_multiplier(budget, 0.01, 500, extra_delta=9e-6)
    assert _reached(sigma, 0.01, 500, 1e-6) <= 2.0 < _reached(sigma, 0.01, 500, 1e-7)


def test_a_budget_that_other_charges_use_up_is_refused_with_their_names():
    others = (dp_accounting.LaplaceDpEvent(0.5),)
    with pytest.raises(BudgetError, match=r"Laplace noise.*epsilon 2 alone.*Raise"):
        calibrate_noise_multiplier(PrivacyBudget(1.5, 1e-5), 0.01, 10, other_events=others)


def test_a_delta_that_is_used_up_is_refused():
    with pytest.raises(BudgetError, match="delta of 1e-05 is used up"):
        calibrate_noise_multiplier(PrivacyBudget(1.5, 1e-5), 0.01, 10, extra_delta=1e-5)


def test_a_budget_that_no_noise_meets_is_refused():
    others = (dp_accounting.GaussianDpEvent(1.0),)
    left = epsilon(others[0], 1e-5)
    with pytest.raises(BudgetError, match="No noise multiplier"):
        calibrate_noise_multiplier(
            PrivacyBudget(left * (1 + 1e-12), 1e-5), 1.0, 10_000_000, other_events=others
        )


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"sampling_probability": 0.0}, "sampling_probability"),
        ({"sampling_probability": 1.1}, "sampling_probability"),
        ({"steps": 0}, "steps"),
        ({"steps": 2.5}, "steps"),
        ({"budget": 8.0}, "budget"),
        ({"extra_delta": -1e-9}, "extra_delta"),
        ({"accountant": "moments"}, "accountant"),
        ({"adjacency": "add"}, "adjacency"),
    ],
)
def test_arguments_out_of_range_are_named(change, named):
    good = {"budget": PrivacyBudget(1.0, 1e-5), "sampling_probability": 0.1, "steps": 10}
    with pytest.raises(ValueError, match=f"Argument `{named}` must be"):
        calibrate_noise_multiplier(**{**good, **change})


def test_the_central_limit_underestimates_where_dp_sgd_works():
    for sigma, q, steps in ((1.0, 0.01, 1000), (1.756, 512 / 6040, 1200), (0.7, 0.004, 3000)):
        approximate = gdp_clt_epsilon(sigma, q, steps, 1e-5)
        exact = _reached(sigma, q, steps, 1e-5)
        assert 0.75 * exact < approximate < exact


def test_the_central_limit_solves_its_own_equation():
    # mu = 1 gives delta(1; 1) = Phi(-1/2) - e Phi(-3/2) = 0.1269 (tables of the normal law).
    sigma = (1 / 0.6931471805599453) ** 0.5  # exp(1/sigma^2) - 1 = 1
    assert gdp_clt_epsilon(sigma, 0.1, 100, 0.126937) == pytest.approx(1.0, abs=1e-4)
    assert gdp_clt_epsilon(0.03, 0.1, 100, 1e-5) == float("inf")
    assert gdp_clt_epsilon(1e5, 0.01, 1, 1e-5) == 0.0


def test_a_budget_within_the_jump_between_two_accountants_is_kept(monkeypatch):
    # With so little noise that PLD would be too large, RDP states ε, which is more: at one σ, ε
    # jumps over the budget. (The bound where that happens is lowered, for speed.)
    monkeypatch.setattr(accountants, "_LARGEST_LOSS", 0.5)
    sigma, delta = 2**0.5, 1e-5  # 2 Gaussians whose loss is 0.5
    event = dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(sigma), 2)
    low, high = (epsilon(event, delta, accountant) for accountant in ("pld", "rdp"))
    target = (low + high) / 2
    assert low < 0.999 * target
    found = calibrate_noise_multiplier(PrivacyBudget(target, delta), 1.0, 2, accountant=None)
    for factor, kept in ((1.0, True), (1 - 1e-6, False)):
        ledger = Ledger()
        ledger.add("training", training_event(found * factor, 1.0), 2)
        assert (ledger.epsilon(delta) <= target) == kept


@pytest.mark.parametrize("q, steps, target", [(1.0, 3, 90.0), (1.0, 3, 250.0)])
def test_large_budgets_are_met_by_the_accountant_that_states_epsilon_later(q, steps, target):
    sigma = calibrate_noise_multiplier(PrivacyBudget(target, 1e-5), q, steps, accountant=None)
    ledger = Ledger()
    ledger.add("training", training_event(sigma, q), steps)
    assert 0.9 * target < ledger.epsilon(1e-5) <= target
