"""How much a batch contributes to each row of the sparse tables, and which rows survive."""

from __future__ import annotations

import functools
from collections.abc import Callable

import tensorflow as tf

from tfdp.noise import draws


class Survivors:
    """What a step may release about its rows: private, and all that may be shown of them.

    Args:
        rows: (S,) int64, the surviving rows, sorted.
        contributions: function that gives the attribute of this name, when it is first read: to
            train the rows nobody needs it.

    Attributes:
        rows: as given.
        contributions: (S,) float64, their noisy contributions V, each at least the threshold.
    """

    def __init__(self, rows: tf.Tensor, contributions: Callable[[], tf.Tensor]):
        self.rows = rows
        self._contributions = contributions

    @functools.cached_property
    def contributions(self) -> tf.Tensor:
        return self._contributions()


def activations(rows, example_mask, contribution_norm):
    """What each example contributes to which rows.

    Args:
        rows, example_mask, contribution_norm: as for `ContributionMap`.

    Returns:
        (B, T) int64 rows, sorted within examples; (B, T) bool, which of them count: each row once
        for an example that is there; (B, T) float64 contributions, min(1, C₁/‖v_i‖₂).
    """
    ordered = tf.sort(tf.cast(rows, tf.int64), axis=1)
    first = tf.concat(
        [tf.ones_like(ordered[:, :1], tf.bool), ordered[:, 1:] != ordered[:, :-1]], axis=1
    )
    active = first & (ordered >= 0) & example_mask[:, tf.newaxis]
    activated = tf.reduce_sum(tf.cast(active, tf.float64), axis=1)
    bound = tf.constant(contribution_norm, tf.float64)
    weight = tf.minimum(tf.constant(1.0, tf.float64), bound / tf.sqrt(activated))
    return ordered, active, tf.broadcast_to(weight[:, tf.newaxis], tf.shape(active))


class ContributionMap:
    """V̂ = Σ_i v_i·min(1, C₁/‖v_i‖₂), where v_i marks the rows that example i activates.

    Only the rows that some example touches are held. They and their values are raw data: nothing
    but `survivors` gives anything out (MATH.md section 3, steps 1 and 2).

    Formal guarantees: adding or removing one example changes V̂ by at most `contribution_norm`
    in l2 norm, whatever rows and however many of them it activates; a row that it activates
    several times counts once. Computed in float64.

    Args:
        rows: (B, T) int64, the rows that each example activates, over all tables together; in any
            order, repetitions allowed. Negative entries are padding.
        example_mask: (B,) bool, false for the padding of a batch.
        num_rows: total number of rows, at most 2^53.
        contribution_norm: C₁.
    """

    def __init__(
        self,
        rows: tf.Tensor | tf.RaggedTensor,
        example_mask: tf.Tensor,
        num_rows: int,
        contribution_norm: float,
    ):
        self.num_rows = num_rows
        self.contribution_norm = contribution_norm
        ordered, active, weights = activations(rows, example_mask, contribution_norm)
        touched, index = tf.unique(tf.boolean_mask(ordered, active))
        sums = tf.math.unsorted_segment_sum(
            tf.boolean_mask(weights, active), index, tf.size(touched)
        )
        order = tf.argsort(touched)
        self._touched = tf.gather(touched, order)
        self._sums = tf.gather(sums, order)

    def survivors(self, threshold, noise_multiplier, source):
        """The rows with V_j ≥ threshold, where V = V̂ + N(0, (noise_multiplier·C₁)²) on every row.

        Rows that no example touched are not visited: their survivors are a Binomial number of
        uniform positions, and their V a Gaussian above the threshold (appendix B.2). The paper
        prints σ₁²C₁² where the standard deviation is σ₁·C₁.

        Args:
            threshold: τ.
            noise_multiplier: σ₁, scalar float64 tensor or float.
            source: a `tfdp.noise.NoiseSource`.

        Returns:
            `Survivors`, in the order of their rows, which tells nothing about who touched them.
        """
        threshold = tf.constant(threshold, tf.float64)
        stddev = tf.cast(noise_multiplier, tf.float64) * self.contribution_norm
        noisy = self._sums + stddev * draws.standard_normal(source, tf.size(self._sums))
        survives = noisy >= threshold
        tail = 0.5 * tf.math.erfc(threshold / stddev / tf.sqrt(tf.constant(2.0, tf.float64)))
        untouched = self._untouched_survivors(tail, source)
        rows = tf.concat([tf.boolean_mask(self._touched, survives), untouched], 0)
        order = tf.argsort(rows)

        def contributions():
            above = _above(threshold, stddev, tail, tf.size(untouched), source)
            return tf.gather(tf.concat([tf.boolean_mask(noisy, survives), above], 0), order)

        return Survivors(tf.gather(rows, order), contributions)

    def _untouched_survivors(self, probability, source):
        num_touched = tf.size(self._touched, out_type=tf.int64)
        num_untouched = self.num_rows - num_touched
        count = draws.binomial(source, num_untouched, probability)
        return draws.distinct_outside(source, count, self._touched, self.num_rows)


def _above(threshold, stddev, tail, count, source):
    """(count,) values of N(0, stddev²) given that they are at least `threshold`."""
    bits = tf.bitwise.right_shift(draws.random_bits(source, count), tf.constant(1, tf.uint64))
    uniform = (tf.cast(tf.cast(bits, tf.int64), tf.float64) + 0.5) * 2.0**-63
    return tf.maximum(threshold, -stddev * tf.math.ndtri(tail * uniform))
