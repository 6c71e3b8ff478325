"""Rows chosen anew in every step, from how many examples of the batch activate them."""

import math

import keras
import tensorflow as tf

from tfdp._validate import count, positive
from tfdp.runtime import ordering
from tfdp.selection.contribution_map import ContributionMap
from tfdp.selection.fest import FEST
from tfdp.selection.forecast import SelectionForecast
from tfdp.selection.padded import NO_ROW, padded_survivors
from tfdp.selection.row_selection import RowSelection
from tfdp.selection.tables import are_distinct, joint_rows, offsets, split_padded_rows, split_rows


@keras.saving.register_keras_serializable(package="tfdp")
class AdaFEST(RowSelection):
    """Adaptive filtering-enabled sparse training, DP-AdaFEST (MATH.md section 3).

    In each step, a row j of the sparse tables survives if V_j ≥ threshold, where

        V = Σ_i v_i·min(1, C₁/‖v_i‖₂) + N(0, (σ₁·C₁)²)

    and v_i marks the rows that example i activates, in all tables together. Only surviving rows
    are trained in the step and only they receive noise.

    Formal guarantees: with σ the noise multiplier of the `DPOptimizer`, rows are chosen with
    σ₁ = noise_ratio·σ₂ and gradients are released with σ₂ = σ·√(1 + 1/noise_ratio²), so that
    1/σ₁² + 1/σ₂² = 1/σ². A step costs as much as one Gaussian of noise multiplier σ, and the
    ledger charges that. Example: σ = 1 and noise_ratio = 5 give σ₂ = 1.0198, σ₁ = 5.099.

    Args:
        threshold: τ, positive. For a single feature, about τ examples must share a row for it to be
            trained. A row without examples survives with the probability that a normal variable
            exceeds τ/(σ₁·C₁).
        noise_ratio: σ₁/σ₂, positive. Large values spend the budget on gradients.
        contribution_norm: C₁, the largest ‖v_i‖₂ that counts fully. With p single-valued features,
            √p lets every feature of an example count fully.
        within: a `FEST`; only its rows may survive (DP-AdaFEST+). The v_i are restricted to them
            before they are clipped.
        capacity: the largest number of rows, over all tables, that a step may update. If there are
            more survivors, those with the largest V stay. The metric `capacity_reached` shows in
            which share of the steps the survivors filled the capacity. `jit_compile=True` needs a
            capacity, because it compiles a step for a fixed number of rows. A compiled step with a
            small capacity is the fastest way to train. `None` sets no limit.

    Raises:
        ValueError: for arguments out of range.

    Source: Ghazi et al. (2023), "Sparsity-Preserving Differentially Private Training of Large
    Embedding Models", algorithm 1 and appendix B.2.
    """

    fixed = ("threshold", "noise_ratio", "contribution_norm", "within", "capacity")

    def __init__(
        self,
        threshold: float,
        noise_ratio: float = 5.0,
        contribution_norm: float = 1.0,
        within: FEST | None = None,
        capacity: int | None = None,
    ):
        if within is not None and not isinstance(within, FEST):
            raise ValueError(
                "Argument `within` must be a tfdp.selection.FEST, or None for all rows. "
                f"Received: within={within}"
            )
        self.threshold = positive("threshold", threshold)
        self.noise_ratio = positive("noise_ratio", noise_ratio)
        self.contribution_norm = positive("contribution_norm", contribution_norm)
        self.within = within
        self.capacity = None if capacity is None else count("capacity", capacity)

    @property
    def is_static(self):
        return self.capacity is not None

    @property
    def privacy_releases(self):
        return [] if self.within is None else self.within.privacy_releases

    @property
    def privacy_assumptions(self):
        return [] if self.within is None else self.within.privacy_assumptions

    @property
    def version(self):
        return 0 if self.within is None else self.within.version

    def gradient_noise_multiplier(self, noise_multiplier):
        return noise_multiplier * math.sqrt(1.0 + self.noise_ratio**-2)

    def contribution_noise_multiplier(self, noise_multiplier):
        """σ₁, by which the contribution map is noised, from the step's total σ."""
        return self.noise_ratio * self.gradient_noise_multiplier(noise_multiplier)

    def explain(
        self,
        tables: dict[str, int],
        noise_multiplier: float,
        expected_batch_size: float | None = None,
    ) -> SelectionForecast:
        """Computes which rows the threshold passes, from settings only.

        ```python
        print(selection.explain(data.vocabulary_sizes, noise_multiplier=1.0,
                                expected_batch_size=2048))
        ```

        Args:
            tables: dict of table name to number of rows, one for each feature.
            noise_multiplier: σ of the `DPOptimizer`.
            expected_batch_size: B.

        Returns:
            A `tfdp.selection.SelectionForecast`: print it, or read its `rows_by_noise`,
            `threshold_in_stddevs` and `examples_needed`. It uses no data.
        """
        num_rows = sum(tables.values())
        if self.within is not None:
            num_rows = sum(len(self.within.rows(name, rows)) for name, rows in tables.items())
        return SelectionForecast(
            threshold=self.threshold,
            noise_stddev=self.contribution_noise_multiplier(noise_multiplier)
            * self.contribution_norm,
            weight=min(1.0, self.contribution_norm / math.sqrt(len(tables))),
            num_rows=num_rows,
            expected_batch_size=expected_batch_size,
        )

    def describe(self):
        within = None if self.within is None else self.within.describe()
        return {"name": "AdaFEST", **{n: getattr(self, n) for n in self.fixed}, "within": within}

    def check(self, tables):
        if self.within is not None:
            self.within.check(tables)

    def select(self, tables, example_mask, noise_multiplier, source):
        rows, num_rows, candidates = self._rows(tables)
        contributions = ContributionMap(
            rows, example_mask, num_rows, self.contribution_norm, are_distinct(tables)
        )
        rows = contributions.survivors(
            self.threshold, self.contribution_noise_multiplier(noise_multiplier), source
        )
        if candidates is not None:
            rows = tf.gather(candidates, rows)
        return split_rows(rows, tables)

    def select_padded(self, tables, example_mask, noise_multiplier, source):
        rows, num_rows, candidates = self._rows(tables)
        rows = padded_survivors(
            rows, example_mask, num_rows, self.contribution_norm, self.threshold,
            self.contribution_noise_multiplier(noise_multiplier), self.capacity, source,
            are_distinct(tables),
        )  # fmt: skip
        if candidates is not None:
            among = tf.gather(candidates, tf.minimum(rows, num_rows - 1))
            rows = tf.where(rows < NO_ROW, among, NO_ROW)
        return split_padded_rows(rows, tables)

    def _rows(self, tables):
        """Activated rows, how many there can be, and which those are (None: all)."""
        rows = joint_rows(tables)
        if self.within is None:
            return rows, offsets(tables)[-1], None
        candidates = tf.constant(self.within.joint_rows(tables), tf.int64)
        return _index_in(candidates, rows), candidates.shape[0], candidates

    def get_config(self):
        within = keras.saving.serialize_keras_object(self.within)  # None stays None
        return {n: getattr(self, n) for n in self.fixed} | {"within": within}

    @classmethod
    def from_config(cls, config):
        config = dict(config)
        config["within"] = keras.saving.deserialize_keras_object(config["within"])
        return cls(**config)


def _index_in(candidates, rows):
    """The place of each row among the sorted candidates, −1 for rows that are none."""
    place = ordering.search(candidates, tf.reshape(rows, [-1]))
    place = tf.reshape(place, tf.shape(rows))
    place = tf.minimum(place, candidates.shape[0] - 1)
    return tf.where(tf.gather(candidates, place) == rows, place, tf.constant(-1, tf.int64))
