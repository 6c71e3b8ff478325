"""Adam on rows."""

from __future__ import annotations

import keras
import tensorflow as tf

from tfdp.optimizers.rows.row_optimizer import RowOptimizer


@keras.saving.register_keras_serializable(package="tfdp")
class LazyAdam(RowOptimizer):
    """Adam on the rows of a `tf.IndexedSlices` gradient.

    Equal to `keras.optimizers.Adam` when all rows are given. A row that is not given keeps its
    moments and its value, while Keras' Adam would continue to move it. The bias corrections count
    all steps.

    Args:
        learning_rate: float or schedule.
        beta_1, beta_2: decay rates of the moments, in [0, 1).
        epsilon: added to the square root.
        weight_decay: see `RowOptimizer`; AdamW's, lazily.
        name: name of the optimizer.

    Raises:
        ValueError: if a decay rate is outside [0, 1).
    """

    def __init__(
        self,
        learning_rate: float | keras.optimizers.schedules.LearningRateSchedule = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        weight_decay: float | None = None,
        name: str = "lazy_adam",
        **kwargs,
    ):
        for argument, value in (("beta_1", beta_1), ("beta_2", beta_2)):
            if not 0 <= value < 1:
                raise ValueError(
                    f"Argument `{argument}` must lie in [0, 1). Received: {argument}={value}"
                )
        super().__init__(learning_rate, weight_decay, name, **kwargs)
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon

    def slots(self, variable):
        return [("momentum", tuple(variable.shape), 0.0), ("velocity", tuple(variable.shape), 0.0)]

    def row_update(self, gradient, slots, learning_rate):
        step = tf.cast(self.iterations + 1, gradient.dtype)
        momentum = slots[0] + (gradient - slots[0]) * (1 - self.beta_1)
        velocity = slots[1] + (tf.square(gradient) - slots[1]) * (1 - self.beta_2)
        bias_1 = 1 - tf.pow(tf.cast(self.beta_1, gradient.dtype), step)
        bias_2 = 1 - tf.pow(tf.cast(self.beta_2, gradient.dtype), step)
        rate = learning_rate * tf.sqrt(bias_2) / bias_1
        return rate * momentum / (tf.sqrt(velocity) + self.epsilon), [momentum, velocity]

    def get_config(self):
        return {
            **super().get_config(),
            "beta_1": self.beta_1,
            "beta_2": self.beta_2,
            "epsilon": self.epsilon,
        }
