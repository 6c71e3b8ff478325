"""Watching the privacy of a run while it trains."""

from __future__ import annotations

import math

import keras

from tfdp.accounting.budget import check_delta
from tfdp.accounting.statement_text import round_up_to
from tfdp.optimizers import DPOptimizer

__all__ = ["PrivacyMeter"]

_DECIMALS = 4  # as many as Keras' progress bar shows; it would round down


class PrivacyMeter(keras.callbacks.Callback):
    """Shows ε in the progress bar and the logs (so in TensorBoard, too), and stops at a limit.

    ε is what the ledger composes to, everything charged before training included, rounded up to
    four decimals. It is computed for some steps ahead, an epoch where its length is known: during
    an epoch the progress bar shows the ε at its end, and never less than was spent.

    Args:
        delta: δ at which ε is shown; defaults to the optimizer's, or 1/(10·n).
        max_epsilon: training stops before a step would take ε beyond this.

    Raises:
        ValueError: at the start of training, for a model whose training is not private, if δ is
            above 1/n, or if `max_epsilon` is already spent.
    """

    #: `fit` calls it before the callbacks that read the logs, wherever it stands in the list.
    writes_logs = True

    def __init__(self, delta: float | None = None, max_epsilon: float | None = None):
        super().__init__()
        if max_epsilon is not None and not 0 < max_epsilon < math.inf:
            raise ValueError(
                "Argument `max_epsilon` must be positive and finite. "
                f"Received: max_epsilon={max_epsilon}"
            )
        self.delta = delta
        self.max_epsilon = max_epsilon

    def on_train_begin(self, logs=None):
        self._charging = self._charging_of_model()
        self._done = self._known_until = 0
        self._allowed = None
        if self.max_epsilon is not None:
            if isinstance(self.model.optimizer, DPOptimizer):
                # In the step itself, and again whenever a backup brings more charges.
                self._charging.limit_epsilon(self.max_epsilon, self._delta)
            self._allowed = self._charging.steps_within(self.max_epsilon, self._delta)
            if self._allowed < self.model.steps_per_execution:
                raise ValueError(
                    "Argument `max_epsilon` is spent already: the next step would end at ε = "
                    f"{self._charging.epsilon_after(1, self._delta):.4g}. "
                    f"Received: max_epsilon={self.max_epsilon}"
                )

    def on_epoch_begin(self, epoch, logs=None):
        if self._allowed is not None:  # a backup may have brought more charges
            within = self._charging.steps_within(self.max_epsilon, self._delta)
            self._allowed = min(self._allowed, self._done + within)
        self._look_ahead((self.params or {}).get("steps") or 1)

    def on_train_batch_end(self, batch, logs=None):
        self._done += self.model.steps_per_execution
        if self._done > self._known_until:
            self._look_ahead(self._done)  # twice as many steps as there were
        if logs is not None:
            logs["epsilon"] = self._epsilon
        if self._allowed is not None:
            if self._done + self.model.steps_per_execution > self._allowed:
                self.model.stop_training = True

    def on_epoch_end(self, epoch, logs=None):
        self._epsilon = self._epsilon_after(0)
        self._known_until = self._done
        if logs is not None:
            logs["epsilon"] = self._epsilon

    def _charging_of_model(self):
        charging = getattr(self.model, "charging", None)
        mechanism = getattr(charging, "mechanism", None)
        num_examples = getattr(mechanism, "num_examples", None)
        ledger = None if charging is None else charging.history.ledger()
        if num_examples is None and (ledger is None or ledger.num_examples is None):
            raise ValueError(
                "PrivacyMeter needs a model compiled with a tfdp.optimizers.DPOptimizer, or one "
                "with DPForwardNoise layers or trained on released data. "
                f"Received: optimizer={getattr(self.model, 'optimizer', None)}"
            )
        largest = max(n for n in (num_examples, ledger.num_examples) if n is not None)
        default = getattr(self.model.optimizer, "default_delta", 0.1 / largest)
        self._delta = default if self.delta is None else self.delta
        check_delta(self._delta, largest)
        return charging

    def _look_ahead(self, steps):
        """Shows ε as it will be after `steps` more steps, until there are more."""
        self._epsilon = self._epsilon_after(steps)
        self._known_until = self._done + steps

    def _epsilon_after(self, steps):
        return round_up_to(self._charging.epsilon_after(steps, self._delta), _DECIMALS)


def __dir__():
    return sorted(__all__)
