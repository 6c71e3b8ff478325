"""Recommendations from a private release of transitions, without training."""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras

from tfdp.layers.transition_prior import TransitionPrior
from tfdp.models.next_item import NextItemModel, without_padding, without_seen

if TYPE_CHECKING:
    from tfdp.data.releases.transitions import TransitionRelease


@keras.saving.register_keras_serializable(package="tfdp")
class TransitionRecommender(NextItemModel):
    """Scores the next item by a `TransitionRelease`, without `fit` and without further cost.

    Args:
        release: a `tfdp.data.TransitionRelease`; or a layer around one, `TransitionPrior` or
            `TransitionOdds`, which then holds the settings.
        max_length: largest number of items of a history that are used.
        last_items, decay, smoothing: as for `tfdp.layers.TransitionPrior`, which has the formula.
        exclude_seen: whether to exclude items of the given history from the recommendations.

    Call arguments:
        inputs: (B, T) item ids, right-aligned, 0 is padding.

    Returns:
        float32 (B, T, num_items + 1): the logarithm of each item's probability after each position.

    Example:

    ```python
    release = tfdp.data.private_transitions(data.train, epsilon=8, delta=1e-4)
    model = tfdp.models.TransitionRecommender(release)
    print(model.privacy_statement())
    tfdp.serving.export(model, "exported/")
    ```
    """

    def __init__(
        self,
        release: TransitionRelease | keras.Layer,
        max_length: int = 200,
        last_items: int = 5,
        decay: float = 0.7,
        smoothing: float = 20.0,
        exclude_seen: bool = False,
        **kwargs,
    ):
        super().__init__(**kwargs)
        if isinstance(release, TransitionPrior):
            last_items = release.last_items
        if max_length != int(max_length) or max_length < last_items:
            raise ValueError(
                "Argument `max_length` must be an integer of at least `last_items`. "
                f"Received: max_length={max_length!r}, last_items={last_items!r}"
            )
        self.max_length = int(max_length)
        self.exclude_seen = bool(exclude_seen)
        if not isinstance(release, TransitionPrior):
            release = TransitionPrior(release, last_items, decay, smoothing, name="transitions")
        self.transitions = release
        self.num_items = release.num_items
        self.built = True
        self.charge_releases()

    def build(self, input_shape):
        self.built = True

    def call(self, inputs):
        return self.transitions.log_probabilities(inputs)

    def score_next(self, ids):
        scores = without_padding(self.transitions.next_log_probabilities(ids))
        return without_seen(scores, ids) if self.exclude_seen else scores

    def compute_output_shape(self, input_shape):
        return (*input_shape, self.num_items + 1)

    def get_config(self):
        return {
            "release": keras.saving.serialize_keras_object(self.transitions),
            "max_length": self.max_length,
            "last_items": self.transitions.last_items,
            "exclude_seen": self.exclude_seen,
            "name": self.name,
        }

    @classmethod
    def from_config(cls, config, custom_objects=None):
        config = dict(config)
        config["release"] = keras.saving.deserialize_keras_object(
            config["release"], custom_objects=custom_objects
        )
        return cls(**config)
