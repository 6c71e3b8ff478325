"""The end of a `fit` at its budget, and the callbacks that tfdp adds to the user's."""

import warnings

import keras


class BudgetStop(keras.callbacks.Callback):
    """Ends `fit` when the budget, or a `PrivacyMeter`, allows no further step."""

    def __init__(self, optimizer):
        super().__init__()
        self._optimizer = optimizer

    def on_train_begin(self, logs=None):
        # After the user's callbacks, one of which may have restored a backup.
        self._allowed = self._optimizer.charging.allowed
        self._first = self._optimizer.charging.steps_of_run
        self._seen = self._begun = 0

    def on_epoch_begin(self, epoch, logs=None):
        self._seen = self._begun = self._steps()

    def on_train_batch_begin(self, batch, logs=None):
        self._optimizer.charging.look_again()

    def on_train_batch_end(self, batch, logs=None):
        # Counted here without touching the step counter: `batch` restarts in every epoch.
        self._seen += self.model.steps_per_execution
        if self._seen >= self._allowed:
            self._seen = self._steps()  # the last execution of an epoch may have fewer
        if self._seen >= self._allowed:
            self.model.stop_training = True

    def _steps(self):
        return self._optimizer.charging.steps_of_run - self._first

    def on_epoch_end(self, epoch, logs=None):
        params = self.params or {}
        epochs, of_epoch = params.get("epochs") or 1, params.get("steps") or 0
        is_early = epoch + 1 < epochs or self._seen - self._begun < of_epoch
        if self._seen >= self._allowed and is_early:
            warnings.warn(
                f"Training ends after {self._seen} steps, in epoch {epoch + 1} of {epochs}: the "
                "privacy budget, or `max_epsilon`, allows no more. To train longer, give the "
                "DPOptimizer `steps=` (epochs times steps per epoch). Each step then gets more "
                "noise.",
                stacklevel=2,
            )


def with_callbacks(callbacks, own):
    """The user's callbacks and then those of tfdp."""
    if isinstance(callbacks, keras.callbacks.CallbackList):
        for callback in own:
            callback.set_params(callbacks.params)
            callback.set_model(callbacks.model)
            callbacks.callbacks.append(callback)
        return callbacks
    # What writes into the logs comes before what reads them, CSVLogger for one.
    first = sorted(_as_list(callbacks), key=lambda one: not getattr(one, "writes_logs", False))
    return [*first, *own]


def _as_list(value):
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]
