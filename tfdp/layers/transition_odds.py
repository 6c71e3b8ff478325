"""A sharper ranking by a private release of transitions, which is no probability."""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras
import numpy as np
import tensorflow as tf

from tfdp import _validate
from tfdp.layers.transition_prior import TransitionPrior

if TYPE_CHECKING:
    from tfdp.data.releases.transitions import TransitionRelease


@keras.saving.register_keras_serializable(package="tfdp")
class TransitionOdds(TransitionPrior):
    """Scores the next item by how much more likely the last items make it than its popularity.

        score(j) = Σ_k w_k · log(1 + r(i_k, j) / (a·pop(j) + b)) + g·log pop(j)

    with r(i, j) = v(i, j) / (Σ_j v(i, j) + s), and i_k, w_k, v, pop and s as in `TransitionPrior`.
    It can replace that layer: `TransitionRecommender(TransitionOdds(release))`. An item to which
    several of the last items lead scores higher than one to which a single item leads often. b
    limits the effect of noisy rates of rare items.

    Only the order of the scores has a meaning. Around an encoder give the layer a `gate`, or train
    one.

    Args:
        release: a `tfdp.data.TransitionRelease`; it is charged to the model that holds the layer.
        last_items, decay, smoothing, gate, train_gate: as for `TransitionPrior`.
        popularity_factor: a, of at least 0.
        offset: b, positive.
        popularity_weight: g, of at least 0.

    Raises:
        ValueError: if an argument is out of its range.
    """

    def __init__(
        self,
        release: TransitionRelease,
        last_items: int = 8,
        decay: float = 0.7,
        smoothing: float = 20.0,
        popularity_factor: float = 10.0,
        offset: float = 0.02,
        popularity_weight: float = 0.03,
        **kwargs,
    ):
        self._odds = (
            _validate.not_negative("popularity_factor", popularity_factor),
            _validate.positive("offset", offset),
            _validate.not_negative("popularity_weight", popularity_weight),
        )
        super().__init__(release, last_items, decay, smoothing, **kwargs)

    def vote(self, share, popularity):
        factor, offset, _ = self._odds
        return np.log1p(share / (factor * popularity + offset))

    def combine(self, rows, known):
        popularity = tf.maximum(tf.convert_to_tensor(self.popularity.value), 1e-30)
        return tf.stop_gradient(rows + self._odds[2] * tf.math.log(popularity))

    def get_config(self):
        factor, offset, weight = self._odds
        return {
            **super().get_config(),
            "popularity_factor": factor,
            "offset": offset,
            "popularity_weight": weight,
        }
