"""What a private release of click statistics says about a click."""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras
import numpy as np
import tensorflow as tf

from tfdp import accounting
from tfdp.accounting.charges.participant import PrivacyParticipant
from tfdp.data.releases.count_values import INTEGERS, value_of_count
from tfdp.layers.accounted_weights import add_constant

if TYPE_CHECKING:
    from tfdp.data.releases.click_statistics import ClickStatistics


@keras.saving.register_keras_serializable(package="tfdp")
class ClickOdds(PrivacyParticipant, keras.layers.Layer):
    """The log odds of a click by each feature of an example, from `ClickStatistics`.

    It trains nothing. A model that adds up its outputs is naive Bayes. A model that weights them
    learns K numbers, where embedding tables have millions.

    Args:
        statistics: `ClickStatistics` from `tfdp.data.private_click_statistics`; they are charged to
            the model that holds the layer.

    Call arguments:
        inputs: dict of feature name to integer ids (B,), and "integers", (B, m), if the statistics
            contain them. Other features are ignored.

    Returns:
        float32 (B, K), in the order of `feature_names`; 0 for ids outside [0, V).

    Raises:
        ValueError: if `statistics` has another type, or a feature is missing.
    """

    def __init__(self, statistics: ClickStatistics, **kwargs):
        super().__init__(**kwargs)
        if not hasattr(statistics, "privacy_releases") or not hasattr(statistics, "log_odds"):
            raise ValueError(
                "Argument `statistics` must be `tfdp.data.ClickStatistics`, made by "
                f"`tfdp.data.private_click_statistics`. Received: statistics={statistics!r}"
            )
        odds = statistics.log_odds
        self.feature_names = tuple(odds)
        self.vocabulary_sizes = {name: len(values) for name, values in odds.items()}
        self.rate = float(statistics.rate)
        self.privacy_releases = list(statistics.privacy_releases)
        self.privacy_assumptions = list(statistics.privacy_assumptions)
        self._starts = np.concatenate([[0], np.cumsum(list(self.vocabulary_sizes.values()))[:-1]])
        table = np.concatenate([np.asarray(values) for values in odds.values()])
        self.table = add_constant(self, "log_odds", table)

    @property
    def has_integers(self):
        """Whether the statistics have counts."""
        return f"{INTEGERS}_0" in self.vocabulary_sizes

    def build(self, *shapes):
        self.built = True

    def call(self, inputs):
        if not isinstance(inputs, dict):
            raise ValueError(
                "`ClickOdds` takes a dict of feature name to ids. "
                f"Received: {type(inputs).__name__}"
            )
        ids = [self._ids(name, inputs) for name in self.feature_names]
        sizes = list(self.vocabulary_sizes.values())
        inside = tf.stack([(i >= 0) & (i < v) for i, v in zip(ids, sizes, strict=True)], axis=1)
        places = tf.where(inside, tf.stack(ids, axis=1) + self._starts, 0)
        return tf.where(inside, tf.gather(tf.convert_to_tensor(self.table.value), places), 0.0)

    def _ids(self, name, inputs):
        prefix, _, column = name.rpartition("_")
        if prefix == INTEGERS and prefix in inputs:
            counts = inputs[INTEGERS]
            if len(counts.shape) != 2 or counts.shape[1] <= int(column):
                raise ValueError(
                    f"The statistics have {name!r}: the inputs must have {INTEGERS!r} with more "
                    f"than {column} columns. Received: shape {tuple(counts.shape)}"
                )
            return value_of_count(counts[:, int(column)])
        if name not in inputs:
            raise ValueError(
                f"The statistics contain feature {name!r}, which the inputs lack. Pass it, too. "
                f"Received: {sorted(inputs)}"
            )
        ids = tf.convert_to_tensor(inputs[name])
        if ids.shape.rank != 1 and ids.shape[1:] != (1,):
            raise ValueError(
                f"The statistics have one value of {name!r} for each record: ids must be (B,). "
                f"Received: shape {tuple(ids.shape)}"
            )
        return tf.cast(tf.reshape(ids, [-1]), tf.int64)

    def compute_output_spec(self, inputs):
        batch = next(iter(inputs.values())).shape[0]
        return keras.KerasTensor((batch, len(self.feature_names)), dtype="float32")

    def get_config(self):
        return {
            **super().get_config(),
            "vocabulary_sizes": self.vocabulary_sizes,
            "rate": self.rate,
            "releases": accounting.Ledger(self.privacy_releases).to_json(),
            "assumptions": self.privacy_assumptions,
        }

    @classmethod
    def from_config(cls, config):
        config = dict(config)
        stored = StoredStatistics(
            **{name: config.pop(name)
               for name in ("vocabulary_sizes", "rate", "releases", "assumptions")}
        )  # fmt: skip
        return cls(stored, **config)


class StoredStatistics:
    """Stands for statistics whose numbers are in a file of weights.

    Args:
        vocabulary_sizes, rate, releases, assumptions: as in the configuration of `ClickOdds`;
            what else a configuration holds is left alone.
    """

    def __init__(self, vocabulary_sizes, rate, releases, assumptions, **others):
        sizes = vocabulary_sizes.items()
        self.log_odds = {name: np.zeros(size, np.float32) for name, size in sizes}
        self.rate = rate
        self.privacy_releases = list(accounting.Ledger.from_json(releases).entries)
        self.privacy_assumptions = assumptions
