"""Noisy sums of transitions, in rounds that look at ever fewer pairs."""

import math

import numpy as np
import tensorflow as tf
from scipy import special

from tfdp.noise import Grid, entries_above

_LARGEST_GAIN = 16.0


class TransitionRounds:
    """Measures transitions, and those again that stood out from the noise.

    The attributes are released: they depend on noisy sums only.

    Args:
        histories: `Histories`, or another object with its sums; raw data.
        settings: dict of `window`, `gap_power`, `threshold` and `symmetric`.
        source: a `tfdp.noise.NoiseSource`.
        most_survivors: how many entries noise alone may be expected to leave in the first round.

    Attributes:
        places: int64 (S,), sorted: pairs that are looked at, as `transition_sums` numbers them.
        values: float64 (S,): their noisy weights, in the scale of the first round.
        stddev: of the noise of `values` before anything was selected by them.
        thresholds: list of float: of every round, in standard deviations.
    """

    def __init__(self, histories, settings, source, most_survivors):
        self._histories, self._source = histories, source
        self._window, self._power = settings["window"], settings["gap_power"]
        self._symmetric, self._threshold = settings["symmetric"], settings["threshold"]
        self._most = most_survivors
        self.places = self.values = None
        self.stddev, self.thresholds = math.inf, []

    def run(self, noise_multiplier):
        """One more round: one Gaussian mechanism of this multiplier on all the pairs looked at."""
        # One user reaches no more entries than this: rounding to the grid moves no others.
        reached = self._window * self._histories.longest + 2
        grid = Grid(noise_multiplier, 1.0, reached, rounding=0.0)
        if self.places is None:
            self._first(grid)
        else:
            self._again(grid)

    def _sums(self, within=None):
        settings = self._window, self._power, self._symmetric, within
        return self._histories.transition_sums(*settings)

    def _first(self, grid):
        size = self._histories.num_items**2
        self.stddev = float(grid.stddev)
        fits = -special.ndtri(min(1.0, self._most / size)) if size > self._most else -math.inf
        threshold = max(self._threshold, float(fits))
        self.thresholds.append(threshold)
        places, sums, _ = self._sums()
        self.places, self.values = entries_above(
            self._source, places, sums, size, grid, threshold * self.stddev
        )
        if self._symmetric:  # the half that no pair can reach was noise alone
            first, second = np.divmod(self.places, self._histories.num_items)
            kept = first <= second
            self.places, self.values = self.places[kept], self.values[kept]

    def _again(self, grid):
        places, sums, kept = self._sums(self.places)
        dense = np.zeros(len(self.places))
        dense[np.searchsorted(self.places, places)] = sums
        everything = tf.constant(np.concatenate([dense, kept]))
        noisy = self._source.release_any(everything, grid, tf.float64).numpy()
        noisy, kept = np.split(noisy, [len(dense)])
        gain = _gain(*kept, float(grid.stddev))
        before, now = self.stddev**-2, (gain / float(grid.stddev)) ** 2
        self.values = (before * self.values + now * noisy / gain) / (before + now)
        self.stddev = (before + now) ** -0.5
        survives = self.values > self._threshold * self.stddev
        self.thresholds.append(self._threshold)
        self.places, self.values = self.places[survives], self.values[survives]


def _gain(before, after, stddev):
    """How much more a pair is worth now that users spend on fewer, from two noisy sums.

    Args:
        before, after: what the pairs that are left add up to: as if all counted, and as it is.
        stddev: of the noise of both. Where it is as large as they are, the gain is near 1.
    """
    before, after = (max(x, 0.0) + 2.0 * stddev for x in (before, after))
    return float(np.clip(after / before, 1.0, _LARGEST_GAIN))
