"""Rows chosen anew in every step by the exponential mechanism, from the size of their gradients."""

import math

import keras
import tensorflow as tf

from tfdp._validate import count, positive
from tfdp.noise import draws
from tfdp.selection.row_selection import RowSelection
from tfdp.selection.tables import joint_rows, offsets, split_rows


@keras.saving.register_keras_serializable(package="tfdp")
class ExponentialSelection(RowSelection):
    """DP-SGD with exponential selection: the comparator of DP-FEST and DP-AdaFEST.

    In each step `num_rows` rows are drawn, over all sparse tables together and without
    replacement, with probabilities proportional to exp(ε_s·u_j), where

        u_j = Σ_i min(1, ‖g_i[j]‖₂ / clip_norm)

    and g_i[j] is row j of example i's gradient. Only these rows are trained and noised.

    Formal guarantees: adding or removing an example moves each utility by at most 1, and all of
    them in the same direction. The privacy loss of one draw therefore lies in an interval of length
    ε_s, and the draw is ε_s²/8-zCDP (log E[e^{sL}] has second derivative at most ε_s²/4 and
    vanishes at s = 0 and s = 1). With σ the noise multiplier of the `DPOptimizer`, `num_rows` draws
    get ε_s = 2/(σ₁·√num_rows) and gradients σ₂, where σ₁ = noise_ratio·σ₂ and 1/σ₁² + 1/σ₂² = 1/σ².
    A step is 1/(2σ²)-zCDP, and the *joint* Rényi curve is amplified by sampling (MATH.md section
    3). PLD has no rule for this, so ε is by RDP.

    Args:
        num_rows: rows to draw in a step, at most the rows of all tables together.
        noise_ratio: σ₁/σ₂, positive: how the budget of a step is split, as for `AdaFEST`.

    Raises:
        ValueError: for arguments out of range.

    Source: Zhang, Mironov and Hejazinia (2021), "Wide network learning with differential
    privacy", with utilities that are monotone and an accounting that is joint.
    """

    step_mechanism = "concentrated"
    reads_gradients = True
    fixed = ("num_rows", "noise_ratio")

    def __init__(self, num_rows: int, noise_ratio: float = 1.0):
        self.num_rows = count("num_rows", num_rows)
        self.noise_ratio = positive("noise_ratio", noise_ratio)

    def gradient_noise_multiplier(self, noise_multiplier):
        return noise_multiplier * math.sqrt(1.0 + self.noise_ratio**-2)

    def utility_noise_scale(self, noise_multiplier):
        """1/ε_s, the scale of the Gumbel noise on the utilities, from the step's total σ."""
        of_choice = self.noise_ratio * self.gradient_noise_multiplier(noise_multiplier)
        return of_choice * math.sqrt(self.num_rows) / 2.0

    def describe(self):
        return {"name": "ExponentialSelection", **self.get_config()}

    def check(self, tables):
        total = sum(tables.values())
        if self.num_rows > total:
            raise ValueError(
                f"Argument `num_rows` must be at most the {total} rows of all sparse tables. "
                f"Received: num_rows={self.num_rows}"
            )

    def select(self, tables, example_mask, noise_multiplier, source):
        rows, total = joint_rows(tables), offsets(tables)[-1]
        norms = tf.concat([table.relative_norms() for table in tables], axis=1)
        activates = (rows >= 0) & example_mask[:, tf.newaxis]
        utility = tf.where(tf.math.is_finite(norms), tf.minimum(norms, 1.0), 0.0)
        touched, index = tf.unique(tf.boolean_mask(rows, activates))
        sums = tf.math.unsorted_segment_sum(
            tf.boolean_mask(utility, activates), index, tf.size(touched)
        )
        scale = self.utility_noise_scale(tf.cast(noise_multiplier, tf.float64))
        # The largest of utilities with Gumbel noise are draws without replacement, in this order.
        noisy = sums - scale * tf.math.log(draws.standard_exponential(source, tf.size(sums)))
        others = -scale * tf.math.log(self._smallest_of_untouched(source, total, tf.size(sums)))
        count = min(self.num_rows, total)
        place = tf.math.top_k(tf.concat([noisy, others], 0), count, sorted=False).indices
        is_touched = place < tf.size(sums)
        chosen = tf.gather(touched, tf.boolean_mask(place, is_touched))
        number = tf.reduce_sum(tf.cast(~is_touched, tf.int64))
        more = draws.distinct_outside(source, number, tf.sort(touched), total)
        return split_rows(tf.sort(tf.concat([chosen, more], 0)), tables)

    def _smallest_of_untouched(self, source, total, num_touched):
        """The smallest `num_rows` of independent exponentials, one for each untouched row.

        Rows that no example touched have utility 0 and are alike: it is enough to know how large
        their largest Gumbel values are. The i-th smallest of N exponentials exceeds the one
        before by an exponential of mean 1/(N − i + 1).
        """
        untouched = total - tf.cast(num_touched, tf.int64)
        count = tf.minimum(tf.constant(self.num_rows, tf.int64), untouched)
        left = tf.cast(untouched - tf.range(count), tf.float64)
        return tf.cumsum(draws.standard_exponential(source, count) / left)

    def get_config(self):
        return {"num_rows": self.num_rows, "noise_ratio": self.noise_ratio}

    @classmethod
    def from_config(cls, config):
        return cls(**config)
