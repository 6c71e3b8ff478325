"""The entries of a huge noisy array that exceed a threshold, without making the array."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf

from tfdp.noise import draws
from tfdp.noise.gaussian import normal_of_tail
from tfdp.noise.grid import spread, tail_and_even

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from tfdp.noise import NoiseSource
    from tfdp.noise.grid import Grid

_PART = 1 << 20


def entries_above(
    source: NoiseSource, places: ArrayLike, sums: ArrayLike, size: int, grid: Grid, threshold: float
) -> tuple[np.ndarray, np.ndarray]:
    """Those entries of a dense release of `size` sums that are at least `threshold`.

    Most sums are 0 and are not given. The result has the distribution of: release all of them,
    `source.release`, and forget what is below the threshold. So it is post-processing
    of the Gaussian mechanism on all `size` coordinates, whichever of them were given.

    Formal guarantees: an entry whose sum is 0 becomes r(z) + γ·w (`tfdp.noise.grid`), independent
    of all others. It can only reach the threshold if z ≥ z₀, the threshold less the largest γ·w and
    half a step. So the candidates are a Binomial number, each with probability Q(z₀/σ), at uniform
    places; their z has the normal law above z₀, and w its own law; those below the threshold are
    dropped.

    Args:
        source: a `tfdp.noise.NoiseSource`.
        places: int64 (m,) sorted and distinct, in [0, size): which sums are given.
        sums: float64 (m,).
        size: number of entries of the dense array, at most 2^53.
        grid: the `Grid` of the release; its noise must not be 0.
        threshold: number.

    Returns:
        int64 (S,) places, sorted, and float64 (S,) noisy values. Time and memory are those of the
        places given and of the survivors.
    """
    step, stddev, window = (float(t) for t in grid.tensors)
    noisy = source.release_any(tf.constant(sums, tf.float64), grid, tf.float64).numpy()
    kept = noisy >= threshold
    fresh = _places(source, places, size, probability_above(grid, threshold))
    values = _values(source, len(fresh), step, stddev, window, _lowest(grid, threshold))
    kept_fresh = values >= threshold
    found = np.concatenate([places[kept], fresh[kept_fresh]])
    values = np.concatenate([noisy[kept], values[kept_fresh]])
    order = np.argsort(found)  # the order tells nothing about which sums were given
    return found[order], values[order]


def probability_above(grid: Grid, threshold: float) -> float:
    """The probability that noise alone comes close enough to a threshold to be looked at."""
    stddev = float(grid.tensors[1])
    return 0.5 * math.erfc(_lowest(grid, threshold) / stddev / math.sqrt(2.0))


def _lowest(grid, threshold):
    """z₀: below it, r(z) + γ·w is below the threshold for every w."""
    step, _, window = (float(t) for t in grid.tensors)
    units = math.ceil(threshold / step)
    largest = window - 1.0 - math.floor(0.5 * window)
    return (units - largest - 0.5) * step


def _places(source, places, size, probability):
    given = tf.constant(places, tf.int64)
    untouched = tf.constant(size - len(places), tf.int64)
    count = draws.binomial(source, untouched, tf.constant(probability, tf.float64))
    return draws.distinct_outside(source, count, given, size).numpy()


def _values(source, count, step, stddev, window, lowest):
    """float64 (count,): r(z) + γ·w of normal z ≥ `lowest`."""
    tail = 0.5 * math.erfc(lowest / stddev / math.sqrt(2.0))
    window = tf.constant(window, tf.float64)
    parts = [np.zeros(0)]
    for start in range(0, count, _PART):
        size = min(_PART, count - start)
        bits = draws.random_bits(source, 2 * size)
        half, even = tail_and_even(bits[:size], bits[size:])
        above = 2.0 * half * tail  # uniform in (0, tail]
        reflected = above > 0.5
        z = normal_of_tail(tf.where(reflected, 1.0 - above, above))
        z = tf.where(reflected, -z, z) * (stddev / step)
        parts.append(((tf.round(z) + spread(even, window)) * step).numpy())
    return np.concatenate(parts)
