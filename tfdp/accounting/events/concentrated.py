"""Steps that are concentrated differentially private before their batch is sampled.

A step that chooses rows by the exponential mechanism and then adds Gaussian noise reads the same
Poisson batch twice. Amplification by sampling holds for the two together, so their Rényi curves
are added first and the sum is amplified; adding two separately amplified costs is unsound
(MATH.md section 3).
"""

import attr
import dp_accounting
import numpy as np
from scipy import special

from tfdp import _validate
from tfdp.accounting.events.registry import register_event


@register_event
@attr.s(frozen=True, auto_attribs=True)
class PoissonSampledConcentratedDpEvent(dp_accounting.DpEvent):
    """A mechanism of Rényi curve a/(2·noise_multiplier²), run on a Poisson sample.

    Formal guarantees: if the mechanism, run on two batches that differ by one record, has a Rényi
    divergence of at most a·ρ in both directions and at every order a > 1 (ρ-zCDP, with
    ρ = 1/(2·noise_multiplier²): a Gaussian of that noise multiplier has it exactly), then the
    mechanism on a Poisson sample has at most `rdp([a])`.

    Args:
        sampling_probability: q in (0, 1]; 1 means no sampling.
        noise_multiplier: of the Gaussian with the same curve.

    Raises:
        ValueError: if an argument is out of range.
    """

    sampling_probability: float = attr.ib(
        converter=lambda value: _validate.probability("sampling_probability", value)
    )
    noise_multiplier: float = attr.ib(
        converter=lambda value: _validate.positive("noise_multiplier", value)
    )

    adjacencies = ("add_or_remove_one", "zero_out")

    def rdp(self, orders):
        """The Rényi curve; see `sampled_rdp`."""
        rho = 0.5 * self.noise_multiplier**-2
        return sampled_rdp(orders, rho, self.sampling_probability)


def sampled_rdp(orders, rho, sampling_probability):
    """Rényi divergence of a ρ-zCDP mechanism after Poisson sampling, an upper bound.

    Let P and Q be the outcomes with and without a record in the batch, and M = (1−q)·Q + q·P.
    One direction is a binomial sum for integer orders, and exact for a Gaussian:

        E_Q[(M/Q)^a] ≤ (1−q)^(a−1)·(1 + (a−1)·q) + Σ_{l=2..a} C(a,l)·(1−q)^(a−l)·q^l·e^((l−1)·l·ρ)

    Between integers the logarithm is convex in a, with value 0 at a = 1: its chord bounds it. The
    other direction is the mean of f(x) = (1 + x)^(1−a), where x = q·(P/Q − 1) ≥ −q has E_Q[x] = 0
    and E_Q[x²] ≤ q²·(e^(2ρ) − 1). Since f'' falls, (f(x) − 1 − f'(0)·x)/x² is largest at x = −q:

        E_Q[(Q/M)^(a−1)] ≤ 1 + (e^(2ρ) − 1)·((1−q)^(1−a) − 1 − (a−1)·q),

    or the bound of Zhu and Wang for both directions (the binomial sum with its terms from l = 3
    on counted three times), where that is smaller. Sampling never hurts: the result is at most
    a·ρ.

    Args:
        orders: numbers above 1.
        rho: ρ.
        sampling_probability: q in (0, 1].

    Returns:
        An array.

    Source: MATH.md section 3; Zhu and Wang (2019), "Poisson subsampled Rényi differential
    privacy", theorem 6.
    """
    a, q = np.asarray(orders, np.float64), sampling_probability
    if q == 1:
        return a * rho
    added = _chord(a, lambda n: _log_binomial_sum(n, rho, q, 1.0))
    of_both = _chord(a, lambda n: _log_binomial_sum(n, rho, q, 3.0))
    log_remainder = _log_expm1_minus((1 - a) * np.log1p(-q), (a - 1) * q)
    log_growth = 2 * rho + np.log(-np.expm1(-2 * rho))  # log(e^(2ρ) − 1)
    removed = np.minimum(np.logaddexp(0.0, log_growth + log_remainder), of_both)
    return np.minimum(np.maximum(added, removed) / (a - 1), a * rho)


def _chord(orders, log_moment):
    """A convex function known at integers, bounded from above between them."""
    low, high = np.floor(orders), np.ceil(orders)
    known = {int(n): log_moment(int(n)) for n in {*low, *high}}
    at_low, at_high = (np.array([known[int(n)] for n in side]) for side in (low, high))
    return at_low + (orders - low) * (at_high - at_low)


def _log_binomial_sum(a, rho, q, weight):
    """Logarithm of the sum in `sampled_rdp`, terms from l = 3 on counted `weight` times."""
    if a < 2:
        return 0.0
    orders = np.arange(2, a + 1)
    log_terms = (
        special.gammaln(a + 1) - special.gammaln(orders + 1) - special.gammaln(a - orders + 1)
        + (a - orders) * np.log1p(-q) + orders * np.log(q) + (orders - 1) * orders * rho
        + np.where(orders >= 3, np.log(weight), 0.0)
    )  # fmt: skip
    first = (a - 1) * np.log1p(-q) + np.log1p((a - 1) * q)
    return max(0.0, float(special.logsumexp([first, *log_terms])))


def _log_expm1_minus(x, y):
    """log(e^x − 1 − y) for 0 < y < x, without cancellation or overflow."""
    tail = np.where(x < 0.1, x**2 / 2 + x**3 / 6 + x**4 / 24 + x**5 / 110, 0.0)
    small = np.log(np.where(x < 0.1, tail + (x - y), 1.0))
    large = x + np.log(np.where(x < 0.1, 1.0, -np.expm1(-x) - y * np.exp(-x)))
    return np.where(x < 0.1, small, large)
