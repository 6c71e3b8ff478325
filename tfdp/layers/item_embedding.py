"""Where the noise of private training enters a sequence model: its embedding rows."""

import keras
import numpy as np
import tensorflow as tf

from tfdp import accounting
from tfdp.clipping import PerExampleGradients, Rule, register_rule
from tfdp.data.provenance.origins import Origin
from tfdp.layers.accounted_weights import EffectiveError, add_constant, add_setting


class ItemFrequency(EffectiveError):
    """A layer built from item frequencies, which are public or a charged release.

    Args:
        num_items: number of items; ids run from 1, 0 is padding.
        item_frequency: probability that a *sequence* contains each item: an array of
            num_items + 1 (index 0 is padding) that the caller declares public, or a
            `tfdp.data.private_frequency(...)` release, which is charged. `None` treats all items
            alike.
        error_scale: multiplies the effective error.
    """

    def __init__(self, num_items, item_frequency=None, error_scale=1.0, **kwargs):
        super().__init__(error_scale=error_scale, **kwargs)
        self.num_items = num_items
        self.item_frequency = item_frequency
        self.privacy_releases = []
        self.privacy_assumptions = []
        probabilities = np.ones(num_items + 1)
        if hasattr(item_frequency, "privacy_releases"):
            probabilities = np.asarray(item_frequency.probabilities, np.float64)
            self.privacy_releases = list(item_frequency.privacy_releases)
            self.privacy_assumptions = list(item_frequency.privacy_assumptions)
        elif item_frequency is not None:
            probabilities = np.asarray(item_frequency, np.float64)
            # An array that was made of a release carries its charge.
            origin = Origin.of(item_frequency)
            self.privacy_releases = list(origin.releases)
            self.privacy_assumptions = [
                *origin.assumptions,
                "the item frequencies given to the model are public",
            ]
        if probabilities.shape != (num_items + 1,):
            raise ValueError(
                "Argument `item_frequency` must hold num_items + 1 probabilities (index 0 is "
                f"padding). Received: shape {probabilities.shape} for num_items={num_items}"
            )
        if not np.all((probabilities[1:] >= 0) & (probabilities[1:] <= 1)):
            raise ValueError(
                "Argument `item_frequency` must hold probabilities in [0, 1], not counts. "
                f"Received: values from {probabilities.min()} to {probabilities.max()}"
            )
        self._probabilities = probabilities
        self.frequency = add_constant(self, "item_frequency", probabilities)
        # Never below 1/n: a row that nothing trains has no finite error.
        self.smallest = add_setting(self, "smallest_frequency")

    def bind_privacy(self, *, num_examples, **kwargs):
        super().bind_privacy(num_examples=num_examples, **kwargs)
        self.smallest.assign(1.0 / num_examples)

    def probabilities(self):
        """(num_items + 1,) float32: the frequencies, none below 1/n."""
        return tf.maximum(
            tf.convert_to_tensor(self.frequency.value), tf.convert_to_tensor(self.smallest.value)
        )

    def get_config(self):
        frequency = self.item_frequency
        if frequency is not None:
            frequency = [float(p) for p in self._probabilities]
        return {
            **super().get_config(),
            "num_items": self.num_items,
            "item_frequency": frequency,
            "releases": accounting.Ledger(self.privacy_releases).to_json(),
            "assumptions": self.privacy_assumptions,
        }

    @classmethod
    def from_config(cls, config):
        config = dict(config)
        releases = accounting.Ledger.from_json(config.pop("releases")).entries
        assumptions = config.pop("assumptions")
        layer = cls(**config)
        layer.privacy_releases, layer.privacy_assumptions = list(releases), list(assumptions)
        return layer


@keras.saving.register_keras_serializable(package="tfdp")
class EmbeddingError(ItemFrequency):
    """Variance of looked-up embeddings: (σ_W/p_j)² for item j (claim 5.4), plus σ_W² of positions.

    Takes the arguments of `ItemFrequency`.

    Call arguments:
        ids: (B, T) integers.

    Returns:
        (B, T) variances.
    """

    def call(self, ids):
        frequency = tf.gather(self.probabilities(), tf.cast(ids, tf.int64))
        row = tf.math.divide_no_nan(tf.convert_to_tensor(self.error.value), frequency)
        return tf.stop_gradient(tf.square(row) + tf.square(self.error))


@keras.saving.register_keras_serializable(package="tfdp")
class PopularityPrior(ItemFrequency):
    """Adds the logarithm of the item frequencies to logits (..., num_items + 1).

    Frequencies that are paid for already need not be learned again from noisy gradients. Takes the
    arguments of `ItemFrequency`.
    """

    def call(self, logits):
        prior = tf.math.log(tf.maximum(self.probabilities(), 1e-6))
        return logits + tf.cast(prior, logits.dtype)


@keras.saving.register_keras_serializable(package="tfdp")
class LearnedPositions(keras.layers.Layer):
    """Adds a learned vector to each position of a (B, T, d) sequence."""

    def __init__(self, max_length, initializer="zeros", **kwargs):
        super().__init__(**kwargs)
        self.max_length = max_length
        self.initializer = keras.initializers.get(initializer)

    def build(self, shape):
        self.table = self.add_weight(
            name="positions", shape=(self.max_length, shape[-1]), initializer=self.initializer
        )

    def call(self, x):
        # Right-aligned: the newest position is the last row, whatever the length.
        return x + self.table[self.max_length - x.shape[1] :]

    def compute_output_shape(self, shape):
        return shape

    def get_config(self):
        return {
            **super().get_config(),
            "max_length": self.max_length,
            "initializer": keras.initializers.serialize(self.initializer),
        }


@register_rule(LearnedPositions)
class LearnedPositionsRule(Rule):
    def variables(self, layer, args, kwargs):
        return [layer.table]

    def contributions(self, layer, args, kwargs, gradients):
        (s,) = gradients
        missing = layer.max_length - s.shape[1]
        return [(layer.table, PerExampleGradients(tf.pad(tf.cast(s, tf.float32),
                                               [[0, 0], [missing, 0], [0, 0]])))]  # fmt: skip
