"""Passes over the data that are charged as a whole, in a `fit` that cuts them short."""

import keras

from tfdp.errors import PrivacyError


class WholePasses(keras.callbacks.Callback):
    """Lets `fit` begin no further pass after one that a callback has cut short.

    Shuffled and allocated batches are charged by passes, whose number is that of the steps over
    those of a pass. A callback that sets `model.stop_training` within an epoch, and takes it back
    at its end, would begin more of them.
    """

    def on_train_begin(self, logs=None):
        self._was_cut = False

    def on_train_batch_end(self, batch, logs=None):
        self._was_cut = bool(self.model.stop_training)

    def on_epoch_begin(self, epoch, logs=None):
        if self._was_cut:
            raise PrivacyError(
                f"A callback ended epoch {epoch} by `stop_training`, and another let `fit` go on: "
                "each pass over shuffled or allocated batches costs as a whole, and this one was "
                "charged by its steps. For shorter epochs give `fit` the batches' `take(steps)`, "
                "or draw them with `tfdp.data.poisson_batches`."
            )


def whole_passes(sampling):
    """The callbacks that batches of this `Sampling` (None: unknown) need."""
    return [] if sampling is None or sampling.is_poisson else [WholePasses()]
