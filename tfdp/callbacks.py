"""Watching the privacy of a run while it trains."""

import keras

from tfdp.optimizers import DPOptimizer


class PrivacyMeter(keras.callbacks.Callback):
    """Shows ε in the progress bar and the logs (so in TensorBoard, too), and stops at a limit.

    ε is what the ledger composes to, everything charged before training included. It is computed
    once an epoch, and between epochs interpolated from above: the progress bar never shows less
    than was spent.

    Args:
        delta: δ at which ε is shown; defaults to the optimizer's.
        max_epsilon: training stops before a step would take ε beyond this.

    Raises:
        ValueError: at the start of training, for a model without a `DPOptimizer`, or if
            `max_epsilon` is already spent.
    """

    def __init__(self, delta=None, max_epsilon=None):
        super().__init__()
        if max_epsilon is not None and not max_epsilon > 0:
            raise ValueError(
                f"Argument `max_epsilon` must be positive. Received: max_epsilon={max_epsilon}"
            )
        self.delta = delta
        self.max_epsilon = max_epsilon

    def on_train_begin(self, logs=None):
        optimizer = self.model.optimizer
        if not isinstance(optimizer, DPOptimizer):
            raise ValueError(
                "PrivacyMeter needs a model compiled with a tfdp.optimizers.DPOptimizer. "
                f"Received: optimizer={optimizer}"
            )
        self._delta = optimizer.default_delta if self.delta is None else self.delta
        self._epsilon = optimizer.epsilon(self._delta) if len(optimizer.ledger) else 0.0
        self._allowed = None
        if self.max_epsilon is not None:
            self._allowed = self._steps_within(self.max_epsilon)
            if self._allowed <= 0:
                raise ValueError(
                    f"Argument `max_epsilon` is spent already: ε = {self._epsilon:.4g}. "
                    f"Received: max_epsilon={self.max_epsilon}"
                )
        self._done = 0

    def on_epoch_begin(self, epoch, logs=None):
        steps = (self.params or {}).get("steps") or 1
        self._epsilon = self._epsilon_after(steps)

    def on_train_batch_end(self, batch, logs=None):
        self._done += self.model.steps_per_execution
        if logs is not None:
            logs["epsilon"] = self._epsilon
        if self._allowed is not None:
            if self._done + self.model.steps_per_execution > self._allowed:
                self.model.stop_training = True

    def on_epoch_end(self, epoch, logs=None):
        self._epsilon = self.model.optimizer.epsilon(self._delta)
        if logs is not None:
            logs["epsilon"] = self._epsilon

    def _epsilon_after(self, steps):
        return self.model.optimizer.charging.epsilon_after(steps, self._delta)

    def _steps_within(self, limit):
        """The largest number of further steps that keeps ε within the limit, by bisection."""
        low, high = 0, 1
        while high < 1 << 40 and self._epsilon_after(high) <= limit:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._epsilon_after(middle) <= limit else (low, middle)
        return low
