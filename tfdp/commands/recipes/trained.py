"""What the recipes of `tfdp train` share: what they return, δ, and the run of `fit`."""

import dataclasses
from collections.abc import Callable

import keras

import tfdp
from tfdp.accounting.budget import check_delta
from tfdp.commands.progress import working
from tfdp.commands.recipes.training_progress import TrainingProgress


@dataclasses.dataclass
class Trained:
    """A private model, and how to compare it with the same model without privacy.

    Attributes:
        model: the trained `DPModel`.
        delta: δ of its statement.
        quality: function of a model -> its quality on held-out records, in words. It is computed
            on raw data.
        without_privacy: function () -> the same model, trained on the same data with the same
            settings, without clipping and noise. Neither this model nor its quality is private.
        curve: the `PrivacyCurve` of the training; None where no step has a cost.
        items: names of the items in the order of their ids, or None.
    """

    model: keras.Model
    delta: float
    quality: Callable[[keras.Model], str]
    without_privacy: Callable[[], keras.Model]
    curve: tfdp.callbacks.PrivacyCurve | None = None
    items: tuple | None = None


def fit_private(model, batches, epochs):
    """Fits, shows ε, and returns its curve."""
    curve = tfdp.callbacks.PrivacyCurve()
    shown = [tfdp.callbacks.PrivacyMeter(), curve, TrainingProgress()]
    model.fit(batches, epochs=epochs, verbose=0, callbacks=shown)
    return curve


def fit_plain(model, batches, epochs):
    """Fits a model whose steps cost nothing: without privacy, or on a release."""
    model.fit(batches, epochs=epochs, verbose=0, callbacks=[TrainingProgress()])
    return model


def delta_of(arguments, num_examples):
    """δ as given or 1/(10 n); what the statement would refuse is refused before any release."""
    if not num_examples:
        raise ValueError(
            f"--data must leave records to train on, but all records of {arguments.data} are held "
            "out. Give a file with more distinct rows"
        )
    if arguments.delta is None:
        return 0.1 / num_examples
    try:
        check_delta(arguments.delta, num_examples)
    except ValueError as error:
        raise ValueError(
            f"--delta must be at most 1/n = {1 / num_examples:.6g}, where n = {num_examples} are "
            f"protected; choose a smaller one. Received: {arguments.delta}"
        ) from error
    return arguments.delta


def print_size(what, count, more=""):
    print(f"{count:,} {what}{more}; n is taken to be public.")


def quality_on(held_out, what, batch_size):
    """Function of a model -> its metrics on (x, y), in words; the loss comes last."""

    def quality(model):
        if not len(held_out[1]):
            return f"no {what} are held out"
        with working(f"Evaluating the held-out {what}"):
            found = model.evaluate(*held_out, batch_size=batch_size, verbose=0, return_dict=True)
        shown = sorted(found.items(), key=lambda named: named[0] == "loss")
        return ", ".join(f"{name} {value:.4f}" for name, value in shown)

    return quality
