"""Adagrad on rows."""

from __future__ import annotations

import keras
import tensorflow as tf

from tfdp.optimizers.rows.row_optimizer import RowOptimizer


@keras.saving.register_keras_serializable(package="tfdp")
class RowAdagrad(RowOptimizer):
    """Adagrad on the rows of a `tf.IndexedSlices` gradient.

    Element-wise it is equal to `keras.optimizers.Adagrad` when all rows are given. Row-wise it
    keeps one accumulator for each row, the sum of the mean squares of the row's gradients. This
    takes 1/d of the memory, for tables that hardly fit.

    Args:
        learning_rate: float or schedule.
        initial_accumulator_value: initial value of the accumulators.
        epsilon: added under the square root.
        row_wise: one accumulator for each row instead of one for each element.
        weight_decay: see `RowOptimizer`.
        name: name of the optimizer.

    Raises:
        ValueError: if `initial_accumulator_value` or `epsilon` is negative.
    """

    def __init__(
        self,
        learning_rate: float | keras.optimizers.schedules.LearningRateSchedule = 0.001,
        initial_accumulator_value: float = 0.1,
        epsilon: float = 1e-7,
        row_wise: bool = False,
        weight_decay: float | None = None,
        name: str = "row_adagrad",
        **kwargs,
    ):
        for argument, value in (
            ("initial_accumulator_value", initial_accumulator_value),
            ("epsilon", epsilon),
        ):
            if value < 0:
                raise ValueError(
                    f"Argument `{argument}` must not be negative. Received: {argument}={value}"
                )
        super().__init__(learning_rate, weight_decay, name, **kwargs)
        self.initial_accumulator_value = initial_accumulator_value
        self.epsilon = epsilon
        self.row_wise = row_wise

    def slots(self, variable):
        shape = tuple(variable.shape)
        if self.row_wise:
            # Without further axes: XLA for TPUs copies a slot of shape (V, 1) to write rows of it.
            shape = shape[:1]
        return [("accumulator", shape, self.initial_accumulator_value)]

    def row_update(self, gradient, slots, learning_rate):
        square = tf.square(gradient)
        axes = range(1, len(square.shape))
        if self.row_wise:
            square = tf.reduce_mean(square, axis=list(axes))
        accumulator = slots[0] + square
        root = tf.sqrt(accumulator + self.epsilon)
        for axis in axes if self.row_wise else ():
            root = tf.expand_dims(root, axis)
        return learning_rate * gradient / root, [accumulator]

    def get_config(self):
        return {
            **super().get_config(),
            "initial_accumulator_value": self.initial_accumulator_value,
            "epsilon": self.epsilon,
            "row_wise": self.row_wise,
        }
