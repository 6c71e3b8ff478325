"""One progress bar for a whole training."""

import sys

import keras

_SECONDS_BETWEEN_LINES = 30  # where a line cannot be written over: in a file or a pipe


class TrainingProgress(keras.callbacks.Callback):
    """Says what will run, and shows the time that is left over all epochs.

    Keras's own bar begins again in every epoch, so it does not say when training ends.
    """

    def on_train_begin(self, logs=None):
        epochs, self._steps = self.params["epochs"], self.params["steps"]
        self._epoch = self._done = 0
        every = 0.1 if sys.stdout.isatty() else _SECONDS_BETWEEN_LINES
        total = None if self._steps is None else epochs * self._steps
        self._bar = keras.utils.Progbar(total, interval=every)
        steps = "" if total is None else f" of {self._steps:,} steps"
        print(f"Training: {epochs} epochs{steps}. The bar shows the time that is left.")

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        self._done = self._epoch * (self._steps or 0) + batch + 1
        self._show(logs, finalize=False)

    def on_train_end(self, logs=None):
        self._show(logs, finalize=True)

    def _show(self, logs, finalize):
        values = {name: value for name, value in (logs or {}).items() if name != "gradient_size"}
        self._bar.stateful_metrics |= set(values)  # they are means already
        self._bar.update(self._done, sorted(values.items()), finalize=finalize)
