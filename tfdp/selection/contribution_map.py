"""How much a batch contributes to each row of the sparse tables, and which rows survive."""

import tensorflow as tf

from tfdp.noise import draws
from tfdp.runtime import ordering


def activations(rows, example_mask, contribution_norm, distinct=False):
    """What each example contributes to which rows.

    Args:
        rows, example_mask, contribution_norm, distinct: as for `ContributionMap`.

    Returns:
        (B, T) int64 rows, in any order within examples; (B, T) bool, which of them count: each row
        once for an example that is there; (B, T) float64 contributions, min(1, C₁/‖v_i‖₂).
    """
    rows = tf.cast(rows, tf.int64)
    if not distinct:
        rows = ordering.sort(rows)
    active = (rows >= 0) & example_mask[:, tf.newaxis]
    if not distinct:
        once = tf.ones_like(active[:, :1])
        active &= tf.concat([once, rows[:, 1:] != rows[:, :-1]], axis=1)
    activated = tf.reduce_sum(tf.cast(active, tf.float64), axis=1)
    bound = tf.constant(contribution_norm, tf.float64)
    weight = tf.minimum(tf.constant(1.0, tf.float64), bound / tf.sqrt(activated))
    return rows, active, tf.broadcast_to(weight[:, tf.newaxis], tf.shape(active))


class ContributionMap:
    """V̂ = Σ_i v_i·min(1, C₁/‖v_i‖₂), where v_i marks the rows that example i activates.

    It holds only the rows that some example activates. They and their values are raw data: only the
    output of `survivors` may be released (MATH.md section 3, steps 1 and 2).

    Formal guarantees: adding or removing one example changes V̂ by at most `contribution_norm` in
    l2 norm, however many rows it activates; a row that it activates several times counts once.
    Computed in float64.

    Args:
        rows: (B, T) int64, the rows that each example activates, over all tables together; in any
            order, repetitions allowed. Negative entries are padding.
        example_mask: (B,) bool, false for the padding of a batch.
        num_rows: total number of rows, at most 2^53.
        contribution_norm: C₁.
        distinct: whether no example can contain a row twice, whatever its ids (see
            `tables.are_distinct`); repetitions are then not searched.
    """

    def __init__(
        self,
        rows: tf.Tensor | tf.RaggedTensor,
        example_mask: tf.Tensor,
        num_rows: int,
        contribution_norm: float,
        distinct: bool = False,
    ):
        self.num_rows = num_rows
        self.contribution_norm = contribution_norm
        rows, active, weights = activations(rows, example_mask, contribution_norm, distinct)
        self._rows = tf.boolean_mask(rows, active)
        self._weights = tf.boolean_mask(weights, active)

    def survivors(self, threshold, noise_multiplier, source):
        """The rows with V_j ≥ threshold, where V = V̂ + N(0, (noise_multiplier·C₁)²) on every row.

        A row survives with probability Ψ((threshold − V̂_j)/(noise_multiplier·C₁)), independently
        of the others, where Ψ is the survival function of a normal variable. Rows that no example
        activates are not visited: all of them survive with the same probability (appendix B.2; the
        paper prints σ₁²C₁² where the standard deviation is σ₁·C₁).

        Args:
            threshold: τ.
            noise_multiplier: σ₁, scalar float64 tensor or float.
            source: a `tfdp.noise.NoiseSource`.

        Returns:
            (S,) int64, the surviving rows, sorted, which reveals nothing about who activated them.
        """
        return self._survivors(threshold, noise_multiplier, source)[0]

    def _survivors(self, threshold, noise_multiplier, source):
        """`survivors`, and for tests alone a function that gives their noisy V, (S,) float64.

        These lie on no grid, so that their low bits tell V̂ (docs/noise.md).
        """
        threshold = tf.constant(threshold, tf.float64)
        stddev = tf.cast(noise_multiplier, tf.float64) * self.contribution_norm
        words = draws.AtOnce(source, 8)
        by_noise = _survival(threshold / stddev)
        # Also of rows that are touched, which have draws of their own: there these are ignored.
        untouched = draws.each_with_probability(words, by_noise, self.num_rows)
        rows, index = tf.unique(tf.concat([self._rows, untouched], 0))
        sums = tf.math.unsorted_segment_sum(
            self._weights, index[: tf.size(self._weights)], tf.size(rows)
        )
        uniform = draws.uniform(words, tf.size(sums))
        # The survival function at the noise; of an untouched row, given that it survives.
        uniform = tf.where(sums > 0.0, uniform, by_noise * uniform)
        # Without noise the quotient may be 0/0: V̂_j = threshold survives.
        # SELECTS: a row whose noisy sum stays below the threshold is not updated.
        survives = ~(uniform > _survival((threshold - sums) / stddev))
        rows = tf.boolean_mask(rows, survives)
        order = tf.argsort(rows)

        def contributions():
            noisy = tf.boolean_mask(sums - stddev * tf.math.ndtri(uniform), survives)
            return tf.gather(tf.maximum(threshold, noisy), order)

        return tf.gather(rows, order), contributions


def _survival(z):
    """Ψ(z), the probability that a standard normal variable is larger."""
    return 0.5 * tf.math.erfc(z * 0.5**0.5)
