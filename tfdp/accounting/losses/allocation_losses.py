"""Privacy losses of random allocation over Gaussian steps, rounded up (MATH.md section 10).

A = (1/T)·Σ X_t, of T independent log-normal X_t of mean 1, is the likelihood ratio of an epoch with
a record and without it, as it is distributed without. Both hockey-stick divergences, E[(A − e^ε)₊]
and E[(1 − e^ε·A)₊], are expectations of convex functions of A: whatever spreads the distribution of
an X_t, or of a partial sum, and keeps its mean can only raise them. Every rounding here is such a
spread.
"""

import dataclasses
import functools
import math

import numpy as np
from dp_accounting.pld import pld_pmf
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from scipy import special

_POINTS = 4096  # of the lattice of a partial sum; at least half as many after each addition
_DEVIATIONS = 10.0  # of ln X_t, beyond which it is 0 or infinite
_TAIL = 1e-18  # probability that an addition may move to 0, and again to infinity
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(8)
_LARGEST_LOG = 600.0  # of X_t; e^709 is the largest float64
_UNIT = 2.0**-53
_SHIFT = 1e-12  # of a loss: more than the roundings of all weights of spreads together


@dataclasses.dataclass(frozen=True)
class _Sum:
    """A random variable that is 0 or on a lattice, in place of a sum of `count` of the X_t.

    Args:
        count: number of X_t.
        low: index of the first point; point i is e^(i·spacing).
        mass: probabilities of the points.
        zero: probability of 0.
        lost: what was moved to infinity, where it has no probability: a part of the mean.
    """

    count: int
    low: int
    mass: np.ndarray
    zero: float
    lost: float


@functools.lru_cache(maxsize=8)
def allocation_losses(noise_multiplier, num_steps, value_discretization_interval):
    """Losses of T Gaussian steps of which a record joins one, uniformly chosen.

    Formal guarantees: at every ε, both hockey-stick divergences are at least those of
    P = (1/T)·Σ_t N(e_t, σ²·I) and Q = N(0, σ²·I), which dominate an epoch of adaptive steps
    (MATH.md section 10, with the proofs). Roundings of float64 are bounded and included.

    Args:
        noise_multiplier: σ > 0, the noise's standard deviation over the sensitivity.
        num_steps: T ≥ 1.
        value_discretization_interval: distance of neighbouring privacy losses.

    Returns:
        A `dp_accounting.pld.privacy_loss_distribution.PrivacyLossDistribution`.

    Raises:
        ValueError: for a noise multiplier below about 0.04.

    Source: the pair is Chua et al. 2025 (arXiv:2412.16802), the sums on a geometric lattice are
    Feldman and Shenfeld 2026 (arXiv:2602.17284); spreads that keep the mean are in the place of
    their one-sided roundings.
    """
    if 0.5 / noise_multiplier**2 + _DEVIATIONS / noise_multiplier > _LARGEST_LOG:
        raise ValueError(
            "With so little noise, the privacy losses of random allocation exceed the range of "
            'float64. Use accountant="rdp", or more noise. Received: '
            f"noise_multiplier={noise_multiplier}"
        )
    total, spacing = _sum_of(num_steps, noise_multiplier)
    losses = (total.low + np.arange(len(total.mass))) * spacing - math.log(num_steps)
    # Errors of masses double with every addition, as the number of summands does.
    inflation = 1 + 4 * num_steps * (2 * _POINTS + 64) * _UNIT
    interval = value_discretization_interval
    low, mass = _on_grid(losses + _SHIFT, total.mass * inflation, interval)
    grid = (low + np.arange(len(mass))) * interval
    remove = pld_pmf.DensePLDPmf(
        interval, low, mass * np.exp(grid), total.lost / num_steps * inflation, True
    )
    low, mass = _on_grid(losses - _SHIFT, total.mass * inflation, interval)
    high = low + len(mass) - 1
    add = pld_pmf.DensePLDPmf(interval, -high, mass[::-1], total.zero * inflation, True)
    return PrivacyLossDistribution(remove, add)


def _sum_of(count, sigma):
    """(`_Sum` of `count` variables, spacing of its lattice), by halves of about equal size."""
    spacing = (sigma**-2 + 2 * _DEVIATIONS / sigma) / _POINTS
    one = _single(sigma, spacing)
    # Of m and m + 1, so that no sum is ever added to one of another width.
    less, more = one, None
    for place in reversed(range(count.bit_length() - 1)):
        odd, needed = (count >> place) & 1, count & ((1 << place) - 1)
        more = _twice(one, spacing) if more is None and (odd or needed) else more
        middle = _added(less, more, spacing) if odd or needed else None
        less, more = (
            (middle, _twice(more, spacing) if needed else None)
            if odd
            else (_twice(less, spacing), middle)
        )
        while len(less.mass) <= _POINTS // 2:
            spacing /= 2
            less, more = _refined(less), None if more is None else _refined(more)
    return less, spacing


def _single(sigma, spacing):
    """X = exp(z/σ − 1/(2σ²)), z standard normal, spread between neighbouring points."""
    half = 0.5 / sigma**2
    low = math.floor((-half - _DEVIATIONS / sigma) / spacing)
    high = math.ceil((half + _DEVIATIONS / sigma) / spacing)
    # Integrals over cells, of positive terms only: nothing cancels.
    inside = (_NODES + 1) / 2 * spacing
    logs = np.arange(low, high)[:, np.newaxis] * spacing + inside
    density = np.exp(-0.5 * ((logs + half) * sigma) ** 2) * sigma / math.sqrt(2 * math.pi)
    density *= _WEIGHTS * spacing / 2
    up = np.expm1(inside) / math.expm1(spacing)
    down = np.exp(inside) * np.expm1(spacing - inside) / math.expm1(spacing)
    mass = np.zeros(high - low + 1)
    mass[:-1] += density @ down
    mass[1:] += density @ up
    # Below: to 0, and its mean to infinity. Above: to the last point, and its whole mean beyond.
    lowest, highest = ((edge * spacing + half) * sigma for edge in (low, high))
    mass[-1] += special.ndtr(-highest)
    lost = special.ndtr(lowest - 1 / sigma) + special.ndtr(1 / sigma - highest)
    return _Sum(1, low, mass, float(special.ndtr(lowest)), float(lost))


def _spread(spacing, length):
    """How e^0 + e^(−d·spacing) lies between points: (index of the lower, weight of the upper)."""
    logs = np.log1p(np.exp(-np.arange(length) * spacing))
    lower = np.floor(logs / spacing).astype(int)
    weight = np.expm1(logs - lower * spacing) / math.expm1(spacing)
    return lower, np.clip(weight, 0, 1)


def _added(a, b, spacing):
    """The sum of two independent variables. On the lattice, its shape depends on i − j alone."""
    last = max(a.low + len(a.mass), b.low + len(b.mass))
    furthest = max(a.low + len(a.mass) - b.low, b.low + len(b.mass) - a.low)
    lower, weight = _spread(spacing, max(furthest, 1))
    start = min(a.low, b.low)
    out = np.zeros(last - start + int(lower[0]) + 2)
    for d in range(b.low - a.low - len(a.mass) + 1, b.low + len(b.mass) - a.low):
        first = max(a.low, b.low - d)
        end = min(a.low + len(a.mass), b.low + len(b.mass) - d)
        both = a.mass[first - a.low : end - a.low] * b.mass[first + d - b.low : end + d - b.low]
        _put(out, first + max(d, 0) - start, both, lower[abs(d)], weight[abs(d)])
    for one, other in ((a, b), (b, a)):
        out[one.low - start : one.low - start + len(one.mass)] += one.mass * other.zero
    summed = _Sum(a.count + b.count, start, out, a.zero * b.zero, a.lost + b.lost)
    return _trimmed(summed, spacing)


def _twice(a, spacing):
    """The sum of two independent variables of the same distribution, in half the time."""
    size = len(a.mass)
    lower, weight = _spread(spacing, size)
    out = np.zeros(size + int(lower[0]) + 2)
    for d in range(size):
        both = a.mass[: size - d] * a.mass[d:]
        _put(out, d, both * 2 if d else both, lower[d], weight[d])
    out[:size] += 2 * a.mass * a.zero
    return _trimmed(_Sum(2 * a.count, a.low, out, a.zero**2, 2 * a.lost), spacing)


def _put(out, place, mass, lower, weight):
    place += lower
    upper = mass * weight
    out[place : place + len(mass)] += mass - upper
    out[place + 1 : place + 1 + len(mass)] += upper


def _trimmed(summed, spacing):
    """Moves what has next to no probability to 0, and what has next to no mean to infinity."""
    mass = summed.mass
    means = mass * np.exp((summed.low + np.arange(len(mass))) * spacing)
    first = int(np.searchsorted(np.cumsum(mass), _TAIL, side="right"))
    above = np.cumsum(means[::-1])
    last = len(mass) - int(np.searchsorted(above, _TAIL * summed.count, side="right"))
    kept = mass[first:last].copy()
    kept[-1] += mass[last:].sum()
    lost = summed.lost + means[:first].sum() + means[last:].sum()
    zero = summed.zero + mass[:first].sum()
    return _Sum(summed.count, summed.low + first, kept, float(zero), float(lost))


def _refined(summed):
    """The same on a lattice of half the spacing."""
    mass = np.zeros(2 * len(summed.mass) - 1)
    mass[::2] = summed.mass
    return dataclasses.replace(summed, low=2 * summed.low, mass=mass)


def _on_grid(losses, mass, interval):
    """Spreads e^loss, with its probability, between grid points: (first index, probabilities)."""
    lower = np.floor(losses / interval).astype(int)
    weight = np.clip(np.expm1(losses - lower * interval) / math.expm1(interval), 0, 1)
    low = int(lower[0])
    spread = np.zeros(int(lower[-1]) - low + 2)
    np.add.at(spread, lower - low, mass * (1 - weight))
    np.add.at(spread, lower - low + 1, mass * weight)
    return low, spread
