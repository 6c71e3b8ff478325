"""The entries of a huge noisy array that exceed a threshold, without making the array."""

from __future__ import annotations

import functools
import math
import threading
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf

from tfdp.noise import draws
from tfdp.noise.gaussian import halves, normal_of_tail
from tfdp.noise.grid import spread, tail_and_even
from tfdp.noise.training_source import NoiseSource

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from tfdp.noise.grid import Grid

_PART = 1 << 20


def entries_above(
    source: NoiseSource, places: ArrayLike, sums: ArrayLike, size: int, grid: Grid, threshold: float
) -> tuple[np.ndarray, np.ndarray]:
    """The entries of a dense release of `size` sums that are at least `threshold`.

    Most sums are 0 and are not given. The result has the same distribution as this procedure:
    release all sums by `source.release`, and discard values below the threshold. It is therefore
    post-processing of the Gaussian mechanism on all `size` coordinates, whichever of them were
    given.

    Formal guarantees: an entry whose sum is 0 becomes r(z) + γ·w (`tfdp.noise.grid`), independent
    of all others. It can only reach the threshold if z ≥ z₀, where z₀ is the threshold minus the
    largest γ·w and minus half a step. The number of candidates is therefore Binomial, each with
    probability Q(z₀/σ), at uniform positions. Their z has the normal distribution above z₀, and w
    its own distribution; values below the threshold are dropped.

    Args:
        source: a `tfdp.noise.NoiseSource`.
        places: int64 (m,) sorted and distinct, in [0, size): the positions of the given sums.
        sums: float64 (m,).
        size: number of entries of the dense array, at most 2^53.
        grid: the `Grid` of the release; its noise must not be 0.
        threshold: number.

    Returns:
        int64 (S,) positions, sorted, and float64 (S,) noisy values. Time and memory grow with the
        given positions and the survivors.
    """
    lowest, likely = _lowest(grid, threshold), probability_above(grid, threshold)
    step, stddev, window = (float(t) for t in grid.tensors)
    tail = 0.5 * math.erfc(lowest / stddev / math.sqrt(2.0))
    numbers = tf.constant([likely, tail, stddev / step, window, step], tf.float64)
    noisy = source.release_any(tf.constant(sums, tf.float64), grid, tf.float64).numpy()
    others, lock = _others()
    with lock:
        found = others(
            tf.constant(places, tf.int64), tf.constant(size, tf.int64), numbers, source.bits((3,))
        )
    fresh, values = (tensor.numpy() for tensor in found)
    kept, kept_fresh = noisy >= threshold, values >= threshold
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


@functools.cache
def _others():
    """A tf.function that draws the entries whose sums are not given, and the lock of its source.

    Their number depends on how many are given, which is private: in one call as much runs eagerly
    and is traced whatever it is. TensorFlow counts both for the whole process.
    """
    source = NoiseSource()

    def run(places, size, numbers, words):
        for variable, of in zip(source.variables, (words[:1], words[1:]), strict=True):
            variable.assign(tf.bitcast(of, tf.int64))
        likely, tail, stddev, window, step = tf.unstack(numbers)
        count = draws.binomial(source, size - tf.size(places, tf.int64), likely)
        fresh = draws.distinct_outside(source, count, places, size)
        return fresh, _values(source, count, tail, stddev, window) * step

    signature = [
        tf.TensorSpec([None], tf.int64), tf.TensorSpec([], tf.int64),
        tf.TensorSpec([5], tf.float64), tf.TensorSpec([3], tf.uint64),
    ]  # fmt: skip
    return tf.function(run, signature, autograph=False), threading.Lock()


def _values(source, count, tail, stddev, window):
    """float64 (count,): r(z) + γ·w, in steps, of normal z that a share `tail` of all z exceeds."""

    def part(size):
        bits = draws.random_bits(source, 2 * size)
        half, even = tail_and_even([*halves(bits[:size]), *halves(bits[size:])])
        above = 2.0 * half * tail  # uniform in (0, tail]
        reflected = above > 0.5
        z = normal_of_tail(tf.where(reflected, 1.0 - above, above))
        return tf.round(tf.where(reflected, -z, z) * stddev) + spread(even, window)

    def one(i, parts):
        return i + 1, parts.write(i, part(tf.minimum(count - tf.cast(i, tf.int64) * _PART, _PART)))

    number = tf.cast(-(-count // _PART), tf.int32)
    parts = tf.TensorArray(tf.float64, number, infer_shape=False, element_shape=[None])
    _, parts = tf.while_loop(
        lambda i, _: i < number, one, (0, parts), parallel_iterations=1
    )  # fmt: skip
    return parts.concat()
