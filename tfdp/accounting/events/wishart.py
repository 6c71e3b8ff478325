"""Privacy of a released sample covariance: the Gaussian sampling mechanism (MATH.md section 6).

The mechanism draws g_1..g_k ~ N(0, Sigma) with Sigma = X X' + ridge I and releases their sample
covariance. Its guarantee depends on k and on M = max ||Sigma - Sigma'||_F / ridge alone.
"""

import attr
import dp_accounting
import numpy as np

from tfdp import _validate
from tfdp.accounting.events.registry import register_event


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

    >>> round(tfdp.accounting.epsilon(WishartDpEvent(5000, 0.001), 1e-5, accountant="rdp"), 2)
    0.18
    """

    num_samples: int = attr.ib(converter=lambda value: _validate.count("num_samples", value))
    relative_sensitivity: float = attr.ib(converter=float)

    @relative_sensitivity.validator
    def _check_relative_sensitivity(self, _, value):
        if not 0 < value < 1:
            raise ValueError(
                "Argument `relative_sensitivity` (sensitivity over ridge, M) must be above 0 and "
                "below 1. Raise the ridge above the sensitivity, or lower the sensitivity "
                f"(fewer rows, a smaller norm). Received: relative_sensitivity={value}"
            )

    adjacencies = ("add_or_remove_one", "replace_one", "zero_out")  # see `relative_sensitivity`

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
