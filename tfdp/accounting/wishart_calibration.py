"""How many samples of a covariance, or how small a ridge, a budget affords (MATH.md section 6)."""

import math

import dp_accounting
import numpy as np

from tfdp.accounting.accountants import epsilon
from tfdp.accounting.events.wishart import WishartDpEvent, wishart_rdp
from tfdp.errors import BudgetError

_MOST_SAMPLES = 2**53  # integers that float64 holds exactly


def largest_num_samples(relative_sensitivity, budget, releases=1):
    """The most samples with which `releases` releases meet a budget, by the Rényi curve.

    Args:
        relative_sensitivity: M in (0, 1).
        budget: a `PrivacyBudget`.
        releases: how many such releases share the budget, e.g. the heads of a layer.

    Returns:
        An int of at least 1, at most 2^53.

    Raises:
        BudgetError: if not even one sample fits; it says which M would.
    """
    most = int(_num_samples_bound(relative_sensitivity, budget, releases))
    while most >= 1 and _spent(most, relative_sensitivity, budget, releases) > budget.epsilon:
        most -= max(1, most // 10**9)  # only rounding separates the bound from the accountant
    if most < 1:
        raise BudgetError(
            f"No number of samples meets epsilon={budget.epsilon:.6g}, delta={budget.delta:.3g} "
            f"for {releases} release(s) at relative_sensitivity={relative_sensitivity:.6g}. Raise "
            "the ridge until sensitivity / ridge is at most "
            f"{largest_relative_sensitivity(1, budget, releases):.4g}, or enlarge the budget."
        )
    return most


def largest_relative_sensitivity(num_samples, budget, releases=1):
    """The largest M (the smallest ridge) at which `num_samples` samples meet a budget.

    Args:
        num_samples: k, a count.
        budget: a `PrivacyBudget`.
        releases: how many such releases share the budget.

    Returns:
        M in (0, 1), rounded down by a relative 1e-6.

    Raises:
        BudgetError: if no M above 1e-12 is small enough.
    """
    low, high = math.log(1e-12), math.log1p(-1e-9)
    if _num_samples_bound(math.exp(low), budget, releases) < num_samples:
        raise BudgetError(
            f"No ridge makes {num_samples} samples meet epsilon={budget.epsilon:.6g}, "
            f"delta={budget.delta:.3g}. Lower num_samples or enlarge the budget."
        )
    for _ in range(60):
        middle = (low + high) / 2
        if _num_samples_bound(math.exp(middle), budget, releases) >= num_samples:
            low = middle
        else:
            high = middle
    return math.exp(low) * (1 - 1e-6)


def _spent(num_samples, relative_sensitivity, budget, releases):
    event = WishartDpEvent(num_samples, relative_sensitivity)
    composed = dp_accounting.SelfComposedDpEvent(event, releases)
    return epsilon(composed, budget.delta, accountant="rdp")


def _num_samples_bound(relative_sensitivity, budget, releases):
    """Largest k over the accountant's orders, solved from epsilon = releases k h(a) + c(a)."""
    orders = dp_accounting.rdp.RdpAccountant().orders
    # Canonne, Kamath and Steinke (2020), proposition 12: what the order itself costs.
    conversion = np.log1p(-1 / orders) - np.log(budget.delta * orders) / (orders - 1)
    curve = wishart_rdp(orders, WishartDpEvent(1, relative_sensitivity).relative_sensitivity)
    return min(float(np.max((budget.epsilon - conversion) / (releases * curve))), _MOST_SAMPLES)
