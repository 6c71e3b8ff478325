"""Weights of layers that are not trained: what was released, and what follows from settings."""

import keras

from tfdp.accounting.charges.participant import PrivacyParticipant
from tfdp.data.provenance.variable_values import mark_released


def add_constant(layer, name, values, dtype="float32"):
    """A weight that holds what is public, or released and charged by the layer."""
    weight = layer.add_weight(
        name=name, shape=values.shape, trainable=False, dtype=dtype, autocast=False,
        initializer=lambda shape, dtype: keras.ops.convert_to_tensor(values, dtype),
    )  # fmt: skip
    mark_released(weight, layer)
    return weight


def add_setting(layer, name):
    """A number that follows from the optimizer's settings and the public n; 0 until it is set."""
    weight = layer.add_weight(
        name=name, shape=(), initializer="zeros", trainable=False, dtype="float32", autocast=False
    )
    weight.is_accounted_for = True
    return weight


class EffectiveError(PrivacyParticipant, keras.layers.Layer):
    """A layer that knows how noisy private training makes its parameters (claim 5.3).

    `error` is σ_W = noise_multiplier·clip_norm/expected_batch_size, a standard deviation, times
    `error_scale`. It is zero until a model that holds the layer is compiled with a `DPOptimizer`,
    and it is saved with the model, since inference corrects by it too.

    Args:
        error_scale: multiplies the error.
    """

    def __init__(self, error_scale=1.0, **kwargs):
        super().__init__(**kwargs)
        if not 0 <= error_scale < float("inf"):
            raise ValueError(
                "Argument `error_scale` must be a finite number ≥ 0. "
                f"Received: error_scale={error_scale}"
            )
        self.error_scale = float(error_scale)
        self.error = add_setting(self, "effective_error")

    def bind_privacy(self, *, noise_multiplier, clip_norm, expected_batch_size, num_examples):
        """Called by `DPModel.compile`."""
        self.error.assign(self.error_scale * noise_multiplier * clip_norm / expected_batch_size)

    def get_config(self):
        return {**super().get_config(), "error_scale": self.error_scale}
