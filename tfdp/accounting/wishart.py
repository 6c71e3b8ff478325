"""Privacy of a released sample covariance: the Gaussian sampling mechanism (MATH.md section 6).

The mechanism draws g_1..g_k ~ N(0, Sigma) with Sigma = X X' + ridge I and releases their sample
covariance. Its guarantee depends on k and on M = max ||Sigma - Sigma'||_F / ridge alone.
"""

import math

import attr
import dp_accounting
import numpy as np

from tfdp import _validate
from tfdp.accounting.accountants import epsilon
from tfdp.accounting.events import register_event
from tfdp.errors import BudgetError

_MOST_SAMPLES = 2**53  # integers that float64 holds exactly


@register_event
@attr.s(frozen=True, auto_attribs=True)
class WishartDpEvent(dp_accounting.DpEvent):
    """One release of the sample covariance of `num_samples` draws from N(0, Sigma).

    Formal guarantees: Rényi differential privacy of every order a > 1 at `rdp([a])`, for every
    pair of inputs, in both directions, whose Sigma and Sigma' differ by at most
    relative_sensitivity * ridge in Frobenius norm while both are at least ridge I.

    Args:
        num_samples: k, a count.
        relative_sensitivity: M = Delta_F / ridge, in (0, 1). Which inputs are neighbours (a
            sequence, a token, a feature) is part of Delta_F, so the curve holds whatever name a
            ledger gives to its adjacency.

    Raises:
        ValueError: if `num_samples` is no count or M is not in (0, 1).

    Example:

    >>> round(epsilon(WishartDpEvent(5000, 0.001), 1e-5, accountant="rdp"), 2)
    0.18
    """

    num_samples: int = attr.ib(converter=lambda value: _validate.count("num_samples", value))
    relative_sensitivity: float = attr.ib(converter=float)

    @relative_sensitivity.validator
    def _check_relative_sensitivity(self, _, value):
        if not 0 < value < 1:
            raise ValueError(
                "Argument `relative_sensitivity` (sensitivity over ridge, M) must be above 0 and "
                "below 1: raise the ridge above the sensitivity, or lower the sensitivity "
                f"(fewer rows, a smaller norm). Received: relative_sensitivity={value}"
            )

    @property
    def adjacencies(self):
        """Adjacencies under which `rdp` holds: all (see `relative_sensitivity`)."""
        return ("add_or_remove_one", "replace_one", "zero_out")

    def rdp(self, orders):
        """The Rényi curve; see `wishart_rdp`."""
        return self.num_samples * wishart_rdp(orders, self.relative_sensitivity)


def wishart_rdp(orders, relative_sensitivity):
    """Rényi divergence per sample, as a function of the order.

    For zero-mean Gaussians with relative eigenvalues 1 + e_j,

        D_a = sum_j h(e_j),   h(e) = -ln(1 + e) / 2 - ln(1 - (a-1) e) / (2 (a-1)),

    and sum_j e_j^2 <= M^2 in both directions because Sigma and Sigma' both dominate ridge I. The
    Taylor coefficients of h at s e (s = 1 for a >= 2, s = -1 below) are not negative, so that
    h(s sqrt(u)) is convex in u and the sum is largest with all of M^2 in one eigenvalue.

    Args:
        orders: numbers above 1.
        relative_sensitivity: M in (0, 1).

    Returns:
        An array: h(M) for orders of at least 2, h(-M) below 2, infinite from 1 + 1/M on.

    Source: MATH.md section 6.
    """
    a = np.asarray(orders, np.float64)
    e = np.where(a >= 2, relative_sensitivity, -relative_sensitivity)
    x = -(a - 1) * e
    finite = x > -1
    # The linear terms of the two logarithms cancel exactly: leave them out of both.
    curve = -_log1p_minus(e) / 2 - _log1p_minus(np.where(finite, x, 0.0)) / (2 * (a - 1))
    return np.where(finite, curve, np.inf)


def _log1p_minus(x):
    """ln(1 + x) - x, without cancellation near 0."""
    x = np.asarray(x, np.float64)
    small = np.abs(x) < 0.02
    y = np.where(small, x, 0.0)
    series = sum((-1) ** (m + 1) * y**m / m for m in range(10, 1, -1))
    return np.where(small, series, np.log1p(np.where(small, 1.0, x)) - np.where(small, 1.0, x))


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
            f"No sample fits epsilon={budget.epsilon:.6g}, delta={budget.delta:.3g} for "
            f"{releases} release(s) at relative_sensitivity={relative_sensitivity:.6g}: raise the "
            "ridge, so that sensitivity over ridge is at most "
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
            f"delta={budget.delta:.3g}: lower num_samples or enlarge the budget."
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
