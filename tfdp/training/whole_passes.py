"""Passes over the data that are charged as a whole, in a `fit` that cuts them short."""

import keras

from tfdp.errors import PrivacyError


class WholePasses(keras.callbacks.Callback):
    """Lets `fit` begin no further pass after one that was cut short.

    Shuffled and allocated batches are charged by passes, whose number is that of the steps over
    those of a pass. A callback that sets `model.stop_training` within an epoch, and takes it back
    at its end, would begin more of them. So would one that raises StopIteration, as `next()` does:
    Keras takes it for the end of the data, and begins anew.

    Args:
        steps_of_pass: batches of one pass; None where it is not known, and each epoch is charged as
            a pass.
    """

    def __init__(self, steps_of_pass):
        super().__init__()
        self._steps_of_pass = steps_of_pass

    def on_train_begin(self, logs=None):
        # After the user's callbacks, one of which may have restored a backup.
        self._was_cut = self._is_open = False
        self._first = self._begun = self._steps()

    def on_train_batch_begin(self, batch, logs=None):
        self._is_open = True

    def on_train_batch_end(self, batch, logs=None):
        self._is_open = False
        self._was_cut = bool(self.model.stop_training)

    def on_epoch_begin(self, epoch, logs=None):
        if self._was_cut:
            self._refuse(f"A callback ended epoch {epoch} by `stop_training`, and another callback")
        steps, of_pass = self._steps(), self._steps_of_pass
        if of_pass is not None and (steps - self._first) % of_pass:  # not at the end of a pass
            wanted = (self.params or {}).get("steps") or of_pass
            if self._is_open or steps - self._begun < wanted:
                self._refuse(f"Something raised StopIteration in epoch {epoch}, and Keras")
        self._begun, self._is_open = steps, False

    def _steps(self):
        return self.model.charging.steps_of_run

    def _refuse(self, what):
        raise PrivacyError(
            f"{what} continued `fit`. tfdp counts passes over shuffled or allocated batches by "
            "their steps, so after an incomplete pass it would count too few. For shorter epochs, "
            "pass `batches.take(steps)` to `fit`, or sample with `tfdp.data.poisson_batches`."
        )


def refuse_longer_epochs(sampling, steps_per_epoch):
    """Refuses an epoch of more steps than a pass has, which Keras would cut, and advise to repeat.

    Args:
        sampling: the `Sampling` of a run that is about to begin, or None.
        steps_per_epoch: as given to `fit`.

    Raises:
        ValueError: if there are more of them.
    """
    of_pass = None if sampling is None else sampling.steps_per_epoch
    if of_pass is not None and steps_per_epoch is not None and steps_per_epoch > of_pass:
        raise ValueError(
            f"Argument `steps_per_epoch` must be at most {of_pass}, the number of batches of one "
            "pass. For longer epochs give it to the sampler, `tfdp.data.poisson_batches(..., "
            f"steps_per_epoch={steps_per_epoch})`, or use more `epochs`; you do not need "
            f"`repeat`. Received: steps_per_epoch={steps_per_epoch}"
        )


def whole_passes(sampling):
    """The callbacks that batches of this `Sampling` (None: unknown) need."""
    if sampling is None or sampling.rule.charged_by == "step":
        return []
    return [WholePasses(sampling.steps_per_epoch)]
