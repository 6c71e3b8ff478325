"""What a private release of transitions says about the next item."""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras
import numpy as np
import tensorflow as tf

from tfdp import _validate, accounting
from tfdp.accounting.charges.participant import PrivacyParticipant
from tfdp.clipping import PerExampleGradients, Rule, register_rule
from tfdp.layers.accounted_weights import add_constant

if TYPE_CHECKING:
    from tfdp.data.releases.transitions import TransitionRelease

_SMALLEST = 1e-9
_FLOOR = 0.01  # least popularity of an item, relative to the mean


@keras.saving.register_keras_serializable(package="tfdp")
class TransitionPrior(PrivacyParticipant, keras.layers.Layer):
    """The probability of every item to be the next one, from a release and without training.

    The last items of a history vote, each by its row of the release:

        p(j) = Σ_k w_k · (v(i_k, j) + s·pop(j)) / (Σ_j v(i_k, j) + s),   w_k ∝ decay^k

    with i_0 the newest item, v the values that survived, pop the popularity with sum 1, and s the
    smoothing: popularity dominates if little is known about an item. If a history is shorter than
    `last_items`, popularity gets the weight of the missing items.

    Called as a layer, it adds gate·log p to logits, so that a model learns what the release does
    not contain. p at position t depends on the items up to t only.

    Args:
        release: a `tfdp.data.TransitionRelease`; it is charged to the model that holds the layer.
        last_items: number of items that vote.
        decay: w_(k+1)/w_k, in (0, 1].
        smoothing: s, positive, in units of the release's values.
        gate: factor of log p.
        train_gate: whether to train the gate; its gradient is one private scalar.

    Call arguments:
        logits: (B, T, num_items + 1).
        ids: (B, T) integers, right-aligned; 0 is padding.

    Raises:
        ValueError: if an argument is out of its range.
    """

    def __init__(
        self,
        release: TransitionRelease,
        last_items: int = 5,
        decay: float = 0.7,
        smoothing: float = 20.0,
        gate: float = 1.0,
        train_gate: bool = False,
        **kwargs,
    ):
        super().__init__(**kwargs)
        if not hasattr(release, "privacy_releases"):
            raise ValueError(
                "Argument `release` must be a `tfdp.data.TransitionRelease`, made by "
                f"`tfdp.data.private_transitions`. Received: release={release!r}"
            )
        self.supports_jit = False  # rows have as many entries as survived
        self.num_items = int(release.num_items)
        self.last_items = _validate.count("last_items", last_items)
        self.decay = _validate.probability("decay", decay)
        self.smoothing = _validate.positive("smoothing", smoothing)
        self.initial_gate = float(gate)
        self.train_gate = bool(train_gate)
        self.privacy_releases = list(release.privacy_releases)
        self.privacy_assumptions = list(release.privacy_assumptions)
        self._lags = self.decay ** np.arange(self.last_items)
        self._lags /= self._lags.sum()
        self._num_pairs = len(release.values)
        splits, columns, values = _by_row(release)
        row = np.repeat(np.arange(len(splits) - 1), np.diff(splits))
        sums = np.bincount(row, values, minlength=len(splits) - 1)
        popularity = np.asarray(release.popularity, np.float64)
        popularity = np.maximum(popularity, max(_FLOOR * popularity[1:].mean(), 1e-30))
        popularity[0] = 0.0
        popularity /= popularity.sum()
        rates = self.vote(values / (sums + self.smoothing)[row], popularity[columns])
        self.splits = add_constant(self, "splits", splits, "int64")
        self.columns = add_constant(self, "columns", columns, "int32")
        self.rates = add_constant(self, "rates", rates)
        self.known = add_constant(self, "known", sums / (sums + self.smoothing))
        self.popularity = add_constant(self, "popularity", popularity)
        self.gate = self.add_weight(
            name="gate",
            shape=(),
            initializer=keras.initializers.Constant(self.initial_gate),
            trainable=self.train_gate,
            dtype="float32",
            autocast=False,
        )

    def vote(self, share, popularity):
        """The weight of a pair (i, j) in the vote of i.

        Args:
            share: float64 (S,): v(i, j) / (Σ_j v(i, j) + s).
            popularity: float64 (S,): pop(j).
        """
        return share

    def build(self, *shapes):
        self.built = True

    def call(self, logits, ids):
        return logits + tf.cast(
            tf.convert_to_tensor(self.gate.value) * self.log_probabilities(ids), logits.dtype
        )

    def log_probabilities(self, ids):
        """float32 (B, T, num_items + 1): log p after each position."""
        ids = tf.cast(ids, tf.int64)
        batch, length = tf.shape(ids)[0], tf.shape(ids)[1]
        flat = tf.reshape(ids, [-1])
        every = tf.range(tf.size(flat), dtype=tf.int64)
        rows = self._rows(flat, every, tf.ones_like(flat, tf.float32), tf.size(flat))
        rows = tf.reshape(rows, [batch, length, self.num_items + 1])
        known = tf.gather(tf.convert_to_tensor(self.known.value), ids)
        # (T, T): what the item at s weighs in the prediction after position t ≥ s.
        lag = tf.range(length)[:, tf.newaxis] - tf.range(length)[tf.newaxis]
        weights = tf.constant(np.append(self._lags, 0.0), tf.float32)
        inside = (lag >= 0) & (lag < self.last_items)
        weights = tf.gather(weights, tf.where(inside, lag, self.last_items))
        return self.combine(
            tf.einsum("ts,bsm->btm", weights, rows), tf.einsum("ts,bs->bt", weights, known)
        )

    def next_log_probabilities(self, ids):
        """float32 (B, num_items + 1): log p after the last position, without the others."""
        ids = tf.cast(ids, tf.int64)[:, -self.last_items :]
        batch, length = tf.shape(ids)[0], tf.shape(ids)[1]
        weights = tf.constant(self._lags[::-1], tf.float32)[-length:]
        weights = tf.broadcast_to(weights, [batch, length])
        owners = tf.repeat(tf.range(batch, dtype=tf.int64), length)
        rows = self._rows(tf.reshape(ids, [-1]), owners, tf.reshape(weights, [-1]), batch)
        known = tf.gather(tf.convert_to_tensor(self.known.value), ids)
        return self.combine(rows, tf.reduce_sum(weights * known, axis=1))

    def _rows(self, ids, owners, weights, count):
        """(count, num_items + 1): the weighted rates of ids (N,), added up by owner (N,)."""
        splits = tf.convert_to_tensor(self.splits.value)
        entries = tf.ragged.range(tf.gather(splits, ids), tf.gather(splits, ids + 1))
        of = entries.value_rowids()
        columns = tf.gather(tf.convert_to_tensor(self.columns.value), entries.values)
        rates = tf.gather(tf.convert_to_tensor(self.rates.value), entries.values)
        width = self.num_items + 1
        places = tf.gather(owners, of) * width + tf.cast(columns, tf.int64)
        count = tf.cast(count, tf.int64)
        sums = tf.math.unsorted_segment_sum(rates * tf.gather(weights, of), places, count * width)
        return tf.reshape(sums, [count, width])

    def combine(self, rows, known):
        """Scores (..., num_items + 1) from the weighted votes, and the weight that they had."""
        unknown = tf.maximum(1.0 - known, 0.0)[..., tf.newaxis]
        rows += unknown * tf.convert_to_tensor(self.popularity.value)
        return tf.stop_gradient(tf.math.log(tf.maximum(rows, _SMALLEST)))

    def compute_output_shape(self, logits_shape, ids_shape=None):
        return logits_shape

    def get_config(self):
        return {
            **super().get_config(),
            "num_items": self.num_items,
            "num_pairs": self._num_pairs,
            "last_items": self.last_items,
            "decay": self.decay,
            "smoothing": self.smoothing,
            "gate": self.initial_gate,
            "train_gate": self.train_gate,
            "releases": accounting.Ledger(self.privacy_releases).to_json(),
            "assumptions": self.privacy_assumptions,
        }

    @classmethod
    def from_config(cls, config):
        config = dict(config)
        return cls(
            _Stored(
                config.pop("num_items"),
                config.pop("num_pairs"),
                list(accounting.Ledger.from_json(config.pop("releases")).entries),
                config.pop("assumptions"),
            ),
            **config,
        )


class _Stored:
    """Stands for a release whose numbers are in a file of weights."""

    def __init__(self, num_items, num_pairs, releases, assumptions):
        self.num_items = num_items
        self.indices = np.ones((num_pairs, 2), np.int64)
        self.values = np.zeros(num_pairs, np.float32)
        self.popularity = np.zeros(num_items + 1, np.float32)
        self.privacy_releases = releases
        self.privacy_assumptions = assumptions


def _by_row(release):
    """Row splits (M + 2,), columns (S,) and values (S,) of a matrix from id to id."""
    order = np.lexsort((release.indices[:, 1], release.indices[:, 0]))
    first, second = release.indices[order].T
    splits = np.searchsorted(first, np.arange(release.num_items + 2))
    return splits, second, np.asarray(release.values, np.float64)[order]


@register_rule(TransitionPrior)
class TransitionPriorRule(Rule):
    """The gate is one number: its gradient is the inner product with what it multiplies."""

    def variables(self, layer, args, kwargs):
        return [layer.gate]

    def contributions(self, layer, args, kwargs, gradients):
        (s,) = gradients
        ids = args[1] if len(args) > 1 else kwargs["ids"]
        product = tf.cast(s, tf.float32) * layer.log_probabilities(ids)
        return [(layer.gate, PerExampleGradients(tf.reduce_sum(product, axis=[1, 2])))]
