"""Noisy sums of transitions, in rounds that look at ever fewer pairs."""

import math

import numpy as np
import tensorflow as tf
from scipy import special

from tfdp.data.transition_counts import transition_sums
from tfdp.noise import Grid, entries_above

_LARGEST_GAIN = 16.0


class TransitionRounds:
    """Measures transitions, and those again that stood out from the noise.

    The attributes are released: they depend on noisy sums only.

    Args:
        histories: `Histories`; raw data.
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
        return transition_sums(self._histories, self._window, self._power, self._symmetric, within)

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
        (noisy,) = self._source.release([everything], grid, dtype=tf.float64)
        noisy, kept = np.split(noisy.numpy(), [len(dense)])
        gain = _gain(*kept)
        before, now = self.stddev**-2, (gain / float(grid.stddev)) ** 2
        self.values = (before * self.values + now * noisy / gain) / (before + now)
        self.stddev = (before + now) ** -0.5
        survives = self.values > self._threshold * self.stddev
        self.thresholds.append(self._threshold)
        self.places, self.values = self.places[survives], self.values[survives]


def _gain(share, square):
    """How much more a pair is worth now that users spend on fewer pairs, from two noisy sums.

    A user that keeps the share k of its norm gives each pair that is left 1/k times as much, and
    the number of pairs that it has left grows with k²: the mean gain of a pair is Σk / Σk².
    """
    if share <= 0 or square <= 0:
        return 1.0
    return float(np.clip(share / square, 1.0, _LARGEST_GAIN))
