"""Masses of a privacy loss on a grid: dp_accounting's, composed and inverted with whole arrays.

dp_accounting bounds the tails of a composition by forty calls of `logsumexp`, takes powers of
complex transforms, and inverts δ in a loop over 1e5 losses: most of what a calibration would cost.
"""

import math

import numpy as np
from dp_accounting.pld import pld_pmf
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from scipy import fft, signal

from tfdp._compat.dp_accounting import parts_of, pmfs_of

_ORDERS = 20  # Chernoff bounds are taken at exp(±i/n), i = 1 … 20, n the number of losses


class LossMasses(pld_pmf.DensePLDPmf):
    """A pessimistic `DensePLDPmf`: masses of the losses (lowest + i)·interval and of infinity.

    Args:
        interval: distance of neighbouring losses.
        lowest: the lowest loss over `interval`, an integer.
        masses: float64 array of at least one mass.
        infinity: mass of an infinite loss.
    """

    def __init__(self, interval, lowest, masses, infinity):
        super().__init__(interval, lowest, masses, infinity, True)

    @classmethod
    def of_divergences(cls, interval, lowest, deltas):
        """Connects the dots between hockey-stick divergences, as dp_accounting does.

        Args:
            interval: distance d of neighbouring losses.
            lowest: the lowest loss over `interval`.
            deltas: float64 array of δ at the losses (lowest + i)·interval, at least two.

        Source: Doroshenko et al. 2022, algorithm 1.
        """
        falls = -np.diff(np.minimum.accumulate(deltas))
        masses = np.empty(len(falls) + 1)
        masses[0] = 1 - deltas[0] - falls[0] / math.expm1(interval)
        masses[1:-1] = (math.exp(interval) * falls[:-1] - falls[1:]) / math.expm1(interval)
        masses[-1] = falls[-1] / -math.expm1(-interval)
        return cls(interval, lowest, np.maximum(masses, 0), np.min(deltas))

    def compose(self, other, tail_mass_truncation=0):
        interval, lowest, masses, infinity = parts_of(self)
        other_interval, other_lowest, other_masses, other_infinity = parts_of(other)
        if interval != other_interval:
            raise ValueError(
                "Privacy losses are composed on one grid. Received: grids of distances "
                f"{interval} and {other_interval}"
            )
        offset, masses, tail = _without_tails(
            signal.fftconvolve(masses, other_masses), tail_mass_truncation
        )
        infinity += other_infinity - infinity * other_infinity
        return LossMasses(interval, lowest + other_lowest + offset, masses, infinity + tail)

    def self_compose(self, num_times, tail_mass_truncation=1e-15):
        interval, lowest, masses, infinity = parts_of(self)
        offset, masses = _power(masses, num_times, tail_mass_truncation)
        infinity = tail_mass_truncation - math.expm1(num_times * math.log1p(-infinity))
        return LossMasses(interval, lowest * num_times + offset, masses, infinity)

    def get_epsilon_for_delta(self, delta):
        interval, lowest, masses, infinity = parts_of(self)
        if infinity > delta:
            return math.inf
        first = max(-lowest, 0)  # the first loss that is not negative
        losses = (lowest + np.arange(first, len(masses))) * interval
        if not len(losses):
            return 0.0
        masses = masses[first:]
        # [i]: of the losses from the i-th on, under the upper and the lower distribution.
        upper = _sums_from(masses) + infinity
        lower = _sums_from(np.exp(-losses) * masses)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            solutions = np.where(upper > delta, np.log((upper - delta) / lower), -math.inf)
        reached = np.flatnonzero(solutions[1:] >= losses)  # ε is at least the last of these
        i = reached[-1] + 1 if len(reached) else 0
        if upper[i] <= lower[i] + delta:
            return 0.0
        if lower[i] == 0:  # so large a loss that its e^-loss is 0
            return float(losses[min(i, len(losses) - 1)])
        return float(solutions[i])


def with_arrays(losses):
    """A `PrivacyLossDistribution` as one of `LossMasses`, which compose with any other."""
    return PrivacyLossDistribution(*(LossMasses(*parts_of(pmf)) for pmf in pmfs_of(losses)))


def _sums_from(values):
    return np.append(np.cumsum(values[::-1])[::-1], 0.0)


def _without_tails(masses, truncated):
    """(number cut below, masses, mass cut above); at most half of `truncated` on either side."""
    if truncated == 0:
        return 0, masses, 0.0
    first = int(np.argmax(np.cumsum(masses) > truncated / 2))
    last = len(masses) - int(np.argmax(np.cumsum(masses[::-1]) > truncated / 2))
    last = max(last, first + 1)
    kept = masses[first:last].copy()
    kept[0] += masses[:first].sum()  # a lower loss counts as a higher one: pessimistic
    return first, kept, max(masses[last:].sum(), 0.0)


def _power(masses, count, truncated):
    """(offset, masses of the sum of `count` losses from there on)."""
    low, high = _range_of_sum(masses, count, truncated)
    size = fft.next_fast_len(max(high - low + 1, len(masses)), real=True)
    transform = _to_the(fft.rfft(masses, size), count)
    return low, np.roll(fft.irfft(transform, size), -low)[: high - low + 1]


def _to_the(transform, count):
    """transform ** count by squaring: some ten products of arrays instead of as many logarithms."""
    result = None
    while True:
        if count % 2:
            result = transform if result is None else result * transform
        count //= 2
        if not count:
            return result
        transform = transform * transform


def _range_of_sum(masses, count, truncated):
    """Outside of this range the sum of `count` losses has at most the mass `truncated` (Chernoff).

    E[s^loss] at s = exp(±i/n) for losses 0 … n-1 stays within exp(±20): no logarithms are needed
    before the sums.
    """
    low, high = 0, (len(masses) - 1) * count
    if truncated == 0:
        return low, high
    steps = np.arange(len(masses)) / len(masses)
    for sign in (1, -1):
        factor = np.exp(sign * steps)
        weighted = masses
        for i in range(1, _ORDERS + 1):
            weighted = weighted * factor
            moment = weighted.sum()
            if not moment > 0:
                continue
            bound = count * math.log(moment) + math.log(2 / truncated)
            bound *= sign * len(masses) / i
            if sign > 0:
                high = min(high, math.ceil(bound))
            else:
                low = max(low, math.floor(bound))
    return low, high
