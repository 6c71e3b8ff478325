"""Correlated noise that sampling amplifies: a strategy matrix of few bands.

Step t releases y_t = x_t + σ·C·s·w_t with C₀w = z, z standard normal and C₀ lower triangular and
Toeplitz, of first column c (c_0 = 1), which has b entries: w_t = z_t − Σ_{0<i<b} c_i·w_{t−i}. All y
are post-processing of C₀x + σ·C·s·z with s = ‖c‖. A record that is sampled in step t moves b
entries of C₀x, by s·C at most. If its next chance to be sampled is b steps later, its chances move
disjoint entries, so that each is a sampled Gaussian mechanism of its own (Choquette-Choo et al.
2023, arXiv 2306.08153; MATH.md section 13). Only numbers; nothing here is private.
"""

import dataclasses
import functools
import math

import numpy as np

from tfdp import _validate
from tfdp.accounting.correlated_noise import (
    LARGEST_SUM,
    PREFIX_SUMS,
    filtered,
    inverse,
    noise_in_weights,
)


@dataclasses.dataclass(frozen=True)
class BandedCorrelation:
    """The noise of one chain of steps on cyclic Poisson samples. All fields are public.

    Args:
        strategy: c, of which c[0] = 1; as many as there are bands.
        steps: T, the most steps of the chain.

    Attributes:
        sensitivity: s = ‖c‖; the noise of step t is σ·C·s·w_t.

    Raises:
        ValueError: for a field out of range, or if w would grow from step to step.
    """

    strategy: tuple
    steps: int

    #: Whether all steps of a chain cost as much as its first one.
    is_one_event = False

    def __post_init__(self):
        object.__setattr__(self, "steps", _validate.count("steps", self.steps))
        c = tuple(float(one) for one in self.strategy)
        object.__setattr__(self, "strategy", c)
        if not c or c[0] != 1.0 or not _largest(c, self.steps) <= LARGEST_SUM:
            raise ValueError(
                "Argument `strategy` must begin with 1, and the absolute values of the inverse's "
                f"coefficients must add up to at most {LARGEST_SUM:g} over {self.steps} steps. "
                "Take smaller coefficients, or leave them out. Received: "
                f"strategy={self.strategy}"
            )

    @property
    def bands(self):
        """b: the noise of a step depends on that of the b − 1 steps before it."""
        return len(self.strategy)

    @property
    def sensitivity(self):
        return math.sqrt(math.fsum(one * one for one in self.strategy))

    @property
    def largest(self):
        """Σ|m_i|: how many times the largest draw the noise of a step can be."""
        return _largest(self.strategy, self.steps)

    def noise_in_weights(self, workload=PREFIX_SUMS):
        """As `correlated_noise.noise_in_weights` of the inverse, times s."""
        return self.sensitivity * noise_in_weights(
            inverse(self.strategy, self.steps), self.steps, workload
        )

    def check(self, sampling, mechanism):
        """Refuses steps whose cost is not that of cyclic Poisson samples.

        Args:
            sampling: the `Sampling` of the steps, or None.
            mechanism: what a step is, as for `training_event`.

        Raises:
            ValueError: if a record could be sampled again before b steps have passed.
        """
        steps = None if sampling is None else sampling.chain_steps
        covered = steps is not None and steps <= self.steps and sampling.bands == self.bands
        # A pass begins with the first part: it must have ended with the last one.
        whole = covered and (sampling.passes == 1 or sampling.steps_per_epoch % self.bands == 0)
        if not whole or mechanism != "gaussian":
            raise ValueError(
                "Noise of a banded matrix is accounted for on batches of "
                "`tfdp.data.cyclic_poisson_batches` with as many `bands`, in passes of a multiple "
                "of `bands` steps, for as many steps as it was made for, and where a step is "
                f"Gaussian. Received: correlation={self}, sampling={sampling}, "
                f"mechanism={mechanism!r}"
            )


def steps_of_pass(num_examples, batch_size, bands):
    """n/B, rounded to whole rounds of b steps, at least one.

    Args:
        num_examples: n.
        batch_size: B, expected.
        bands: b.
    """
    return bands * max(1, math.floor(num_examples / batch_size / bands + 0.5))


def steps_of_epochs(num_examples, epochs, batch_size, bands=1):
    """Steps that `fit` takes on Poisson batches, or on cyclic ones, whose passes are whole rounds.

    Args:
        num_examples: n.
        epochs: passes over the data, positive.
        batch_size: B, expected.
        bands: b.
    """
    return math.ceil(epochs * steps_of_pass(num_examples, batch_size, bands) - 1e-9) or 1


def _largest(c, steps):
    # A record of the last step is still in the noise of as many steps as there are bands.
    with np.errstate(all="ignore"):
        found = float(np.abs(inverse(c, steps + len(c))).sum())
    return found if math.isfinite(found) else math.inf


@functools.lru_cache(maxsize=64)
def optimized_strategy(bands, steps, workload=PREFIX_SUMS):
    """(bands,) tuple of c, c[0] = 1, that leaves little noise in the weights at the same ε.

    Args:
        bands: b.
        steps: T.
        workload: a `Workload`.
    """
    from scipy import optimize

    if bands == 1 or steps == 1:
        return (1.0,) + (0.0,) * (bands - 1)
    # Entries beyond the last step touch nothing.
    free = min(bands, steps) - 1
    start = np.cumprod([(2 * k - 1) / (2 * k) for k in range(1, free + 1)])
    cost = _cost if workload.learning_rates is None else _cost_by_numbers
    found = optimize.minimize(
        cost, start, (steps, workload), method="L-BFGS-B", jac=workload.learning_rates is None
    )
    return _damped((1.0, *map(float, found.x)), steps) + (0.0,) * (bands - 1 - free)


def _cost(rest, steps, workload):
    """log of s times the noise in the weights, and its gradient; of a constant learning rate."""
    c = np.concatenate([[1.0], rest])
    with np.errstate(all="ignore"):
        # g = 1/((1 − x)(1 − momentum·x)·c(x)): what a draw leaves in the weights, step by step.
        g = np.cumsum(filtered(inverse(c, steps), [1.0], [1.0, -workload.momentum]))
        counted = g * np.arange(steps, 0, -1)
        square = float(counted @ g)
        if not (np.isfinite(square) and square > 0.0):
            return 50.0, np.zeros_like(rest)
        # ∂g/∂c_k is −g/c, k steps later.
        later = filtered(g, [1.0], c)
        moved = np.array([counted[k:] @ later[: steps - k] for k in range(1, len(c))])
    value = 0.5 * math.log(c @ c) + 0.5 * math.log(square / steps)
    return value, rest / (c @ c) - moved / square


def _cost_by_numbers(rest, steps, workload):
    c = np.concatenate([[1.0], rest])
    with np.errstate(all="ignore"):
        left = noise_in_weights(inverse(c, steps), steps, workload)
    left *= math.sqrt(c @ c)
    return math.log(left) if math.isfinite(left) and left > 0 else 50.0


def _damped(c, steps):
    """c_k·r^k, with the largest r ≤ 1 for which no step has more noise than draws may have."""

    def damped(ratio):
        return tuple(float(one) for one in np.array(c) * ratio ** np.arange(len(c)))

    if _largest(c, steps) <= LARGEST_SUM:
        return c
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = 0.5 * (low + high)
        fits = _largest(damped(middle), steps) <= LARGEST_SUM
        low, high = (middle, high) if fits else (low, middle)
    return damped(low)
