"""The effective error of a layer's parameters, set when the model is compiled."""

import keras

from tfdp.accounting.charges.participant import PrivacyParticipant


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
        self.error = self.add_weight(
            name="effective_error", shape=(), initializer="zeros", trainable=False, dtype="float32",
            autocast=False,
        )  # fmt: skip
        self.error.is_accounted_for = True  # computed from the optimizer's settings

    def bind_privacy(self, *, noise_multiplier, clip_norm, expected_batch_size, num_examples):
        """Called by `DPModel.compile`."""
        self.error.assign(self.error_scale * noise_multiplier * clip_norm / expected_batch_size)

    def get_config(self):
        return {**super().get_config(), "error_scale": self.error_scale}
