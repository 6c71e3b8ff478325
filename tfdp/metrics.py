"""Ranking metrics over all items, without sampled negatives."""

import keras
import numpy as np
from keras import ops

from tfdp._validate import count

__all__ = ["HitRate", "NDCG"]


class _RankingMetric(keras.metrics.Metric):
    """Mean over labelled positions of a gain that depends on the target's rank.

    Args:
        k: only targets among the k best items gain anything.
        ignore_class: label of positions that do not count, and, where it is an item's index, an
            item that is never a candidate; `None` counts everything.
        name: name of the metric.
        dtype: dtype of the accumulators.
    """

    def __init__(self, k=10, ignore_class=0, name=None, dtype=None):
        k = count("k", k)
        super().__init__(name=name or f"{self._short_name}_{k}", dtype=dtype)
        self.k = k
        self.ignore_class = ignore_class
        # Entry r is the sum of the gains of the ranks before r.
        gains = self._gains(np.arange(k, dtype=np.float64))
        self._cumulative_gains = np.concatenate([[0.0], np.cumsum(gains)])
        self.total = self.add_variable(shape=(), initializer="zeros", name="total")
        self.count = self.add_variable(shape=(), initializer="zeros", name="count")

    def update_state(self, y_true, y_pred, sample_weight=None):
        """Adds a batch.

        Args:
            y_true: integer targets, (B,) or (B, T).
            y_pred: scores of all M items, (B, M) or (B, T, M).
            sample_weight: weights, (B,) or (B, T); `None` weighs every position 1.
        """
        y_pred = ops.convert_to_tensor(y_pred)
        y_true = ops.cast(ops.convert_to_tensor(y_true), "int64")
        if len(y_true.shape) == len(y_pred.shape) and y_true.shape[-1] == 1:
            y_true = ops.squeeze(y_true, axis=-1)
        if len(y_true.shape) != len(y_pred.shape) - 1:
            raise ValueError(
                f"Metric {self.name!r} needs one target for each vector of scores: `y_true` of "
                f"shape (B,) with `y_pred` (B, M), or (B, T) with (B, T, M). "
                f"Received: y_true.shape={tuple(y_true.shape)}, y_pred.shape={tuple(y_pred.shape)}"
            )
        weights = self._position_weights(y_true, sample_weight)
        self.update_ranks(*self._better_and_tied(y_true, y_pred), weights)

    def update_ranks(self, better, tied, weights=None):
        """As `update_state`, for targets whose ranks are known.

        Args:
            better: integers, how many other items score above each target.
            tied: how many score the same.
            weights: of the same shape; `None` weighs every target 1.
        """
        weights = ops.ones(ops.shape(better), self.dtype) if weights is None else weights
        gain = self._expected_gain(better, tied)
        gain = ops.where(weights > 0, gain * weights, ops.zeros_like(gain))
        self.total.assign_add(ops.sum(gain))
        self.count.assign_add(ops.sum(weights))

    def result(self):
        """The weighted mean gain; 0 before any labelled position was seen."""
        return ops.divide_no_nan(self.total, self.count)

    def get_config(self):
        config = super().get_config()
        config.update({"k": self.k, "ignore_class": self.ignore_class})
        return config

    def _position_weights(self, y_true, sample_weight):
        weights = ops.ones(ops.shape(y_true), dtype=self.dtype)
        if self.ignore_class is not None:
            weights = ops.cast(ops.not_equal(y_true, self.ignore_class), self.dtype)
        if sample_weight is not None:
            sample_weight = ops.cast(ops.convert_to_tensor(sample_weight), self.dtype)
            while len(sample_weight.shape) < len(weights.shape):
                sample_weight = ops.expand_dims(sample_weight, -1)
            weights = weights * sample_weight
        return weights

    def _better_and_tied(self, y_true, y_pred):
        """How many other candidates score above the target, and how many the same."""
        num_items = y_pred.shape[-1]
        target = ops.expand_dims(y_true, -1)
        score = ops.take_along_axis(y_pred, target, axis=-1)
        tied = ops.equal(y_pred, score)
        # "Not below" instead of "above": a score that is not a number then ranks its target last.
        not_below = ops.logical_not(ops.less(y_pred, score))
        others = ops.not_equal(ops.arange(num_items, dtype="int64"), target)
        if self.ignore_class is not None and 0 <= self.ignore_class < num_items:
            candidate = np.arange(num_items) != self.ignore_class
            others = ops.logical_and(others, candidate)

        def count(flags):
            return ops.sum(ops.cast(ops.logical_and(flags, others), "int32"), axis=-1)

        return count(not_below) - count(tied), count(tied)

    def _expected_gain(self, better, tied):
        """The mean gain over the ranks better … better + tied, all equally likely."""
        cumulative = ops.convert_to_tensor(self._cumulative_gains, dtype=self.dtype)
        first = ops.take(cumulative, ops.minimum(better, self.k))
        last = ops.take(cumulative, ops.minimum(better + tied + 1, self.k))
        return (last - first) / ops.cast(tied + 1, self.dtype)


@keras.saving.register_keras_serializable(package="tfdp")
class NDCG(_RankingMetric):
    """Normalized discounted cumulative gain of the one true item among all items.

    A target with r items above it gains 1/log2(r + 2) if r < k, and 0 otherwise. Ties are broken at
    random, in expectation: a model that gives all M items the same score gets the mean gain over
    all ranks, not 1. Padding rows and positions whose label is `ignore_class` do not count.

    Every score is compared with its target's, which needs temporaries as large as `y_pred`. If (B,
    T, M) is too large for sequences, evaluate on data in which only the last position is labelled,
    and predict that position alone.

    Example:

    ```python
    model.compile(optimizer, loss, metrics=[tfdp.metrics.NDCG(k=10), tfdp.metrics.HitRate(k=10)])
    ```

    Args:
        k: only targets among the k best items gain anything.
        ignore_class: label of positions that do not count, and, where it is an item's index, an
            item that is never a candidate; `None` counts everything.
        name: name of the metric. Default: `"ndcg_{k}"`.
        dtype: dtype of the accumulators.

    Raises:
        ValueError: `k` is not a positive integer; later, if targets and scores do not match.
    """

    _short_name = "ndcg"

    @staticmethod
    def _gains(rank):
        return 1 / np.log2(rank + 2)


@keras.saving.register_keras_serializable(package="tfdp")
class HitRate(_RankingMetric):
    """Share of targets that are among the k best of all items (HIT@k, recall@k).

    Ties, ignored positions and memory: as in `NDCG`.

    Args:
        k: number of items recommended.
        ignore_class: label of positions that do not count, and, where it is an item's index, an
            item that is never a candidate; `None` counts everything.
        name: name of the metric. Default: `"hit_rate_{k}"`.
        dtype: dtype of the accumulators.

    Raises:
        ValueError: `k` is not a positive integer; later, if targets and scores do not match.
    """

    _short_name = "hit_rate"

    @staticmethod
    def _gains(rank):
        return np.ones_like(rank)


def __dir__():
    return sorted(__all__)
