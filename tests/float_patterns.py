"""What an attacker reads from the low bits of released numbers, and how sure of it one may be."""

import math

import numpy as np
from scipy import stats

FALSE_ALARM = 1e-6


def lowest_bits(values):
    """Exponents of values and of their lowest bit that is set: both -2000 where a value is 0."""
    mantissa, exponent = np.frexp(np.asarray(values, np.float64))
    digits = np.abs(np.ldexp(mantissa, 53)).astype(np.int64)
    lowest = np.where(digits == 0, 1, digits & -digits)
    place = exponent - 53 + np.log2(lowest).astype(np.int64)
    return np.where(digits == 0, -2000, exponent), np.where(digits == 0, -2000, place)


def patterns(values):
    """One number for each value: its sign, its exponent and its lowest bit."""
    exponent, lowest = lowest_bits(values)
    return (np.signbit(values) * 5000 + (exponent + 2000)) * 5000 + (lowest + 2000)


def leaked_delta(without, with_one, epsilon):
    """A lower bound of δ at ε, from one event that the low bits define.

    The event is the patterns that are more frequent by e^ε in the first half of the draws; both
    probabilities are bounded on the second half (Clopper and Pearson). Both directions are tried.
    By chance it exceeds the true δ with a probability below 1e-6.
    """
    found = []
    for one, other in ((without, with_one), (with_one, without)):
        half = len(one) // 2
        p, q = patterns(one), patterns(other)
        kinds, inverse = np.unique(np.concatenate([p[:half], q[:half]]), return_inverse=True)
        counts = np.bincount(inverse[:half], minlength=len(kinds))
        others = np.bincount(inverse[half:], minlength=len(kinds))
        event = kinds[counts > math.exp(epsilon) * others]
        hits, misses = (np.isin(v[half:], event).sum() for v in (p, q))
        rest = len(one) - half
        level = FALSE_ALARM / 4
        low = stats.beta.ppf(level, hits, rest - hits + 1) if hits else 0.0
        high = stats.beta.isf(level, misses + 1, rest - misses) if misses < rest else 1.0
        found.append(low - math.exp(epsilon) * high)
    return max(found)


def low_bits_pvalue(without, with_one):
    """Whether the lowest bits are distributed alike, among values of one sign and exponent.

    A chi-square test of all tables together; where noise and sums share a grid they are alike but
    for the slope of the density within one exponent.
    """
    statistic, degrees = 0.0, 0
    groups, lows = [], []
    for values in (without, with_one):
        exponent, lowest = lowest_bits(values)
        groups.append(exponent * 2 + np.signbit(values))
        lows.append(lowest)
    for group in np.unique(np.concatenate(groups)):
        both = [low[g == group] for low, g in zip(lows, groups, strict=True)]
        kinds = np.unique(np.concatenate(both))
        table = np.array([[np.sum(low == kind) for kind in kinds] for low in both])
        rare = table.sum(0) < 20
        table = np.concatenate([table[:, ~rare], table[:, rare].sum(1, keepdims=True)], 1)
        table = table[:, table.sum(0) >= 20]
        if table.shape[1] > 1 and table.sum(1).min() > 0:
            result = stats.chi2_contingency(table, correction=False)
            statistic, degrees = statistic + result.statistic, degrees + result.dof
    return stats.chi2.sf(statistic, degrees) if degrees else 1.0


def gaussian_delta(sigma, epsilon):
    """δ of one Gaussian mechanism of noise multiplier sigma, exactly."""
    shift = 1 / (2 * sigma)
    return stats.norm.cdf(shift - epsilon * sigma) - math.exp(epsilon) * stats.norm.cdf(
        -shift - epsilon * sigma
    )
