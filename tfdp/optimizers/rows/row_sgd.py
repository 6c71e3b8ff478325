"""Stochastic gradient descent on rows."""

from __future__ import annotations

import keras

from tfdp.optimizers.rows.row_optimizer import RowOptimizer


@keras.saving.register_keras_serializable(package="tfdp")
class RowSGD(RowOptimizer):
    """Plain SGD on the rows of a `tf.IndexedSlices` gradient, as the paper trains its tables.

    Equal to `keras.optimizers.SGD` when all rows are given. It has no momentum: momentum would
    move rows long after their last gradient.

    Args:
        learning_rate: float or schedule.
        weight_decay: see `RowOptimizer`.
        name: name of the optimizer.

    Example:

    ```python
    table = keras.Variable(keras.ops.ones((1_000_000, 16)))
    rows = tf.IndexedSlices(tf.ones((2, 16)), tf.constant([3, 7]))
    tfdp.optimizers.RowSGD(0.1).apply([rows], [table])
    ```
    """

    def __init__(
        self,
        learning_rate: float | keras.optimizers.schedules.LearningRateSchedule = 0.01,
        weight_decay: float | None = None,
        name: str = "row_sgd",
        **kwargs,
    ):
        super().__init__(learning_rate, weight_decay, name, **kwargs)

    def row_update(self, gradient, slots, learning_rate):
        return learning_rate * gradient, []
