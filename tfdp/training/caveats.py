"""What a privacy statement must add about a run: not covered, assumed, remarks."""

import keras

from tfdp._compat.keras import all_layers
from tfdp.accounting.notes import Notes
from tfdp.accounting.participant import assumptions_of
from tfdp.training import own_steps

_ADAPTED = (
    "Tokenizer", "Normalization", "Discretization", "StringLookup", "IntegerLookup",
    "TextVectorization",
)  # fmt: skip
TRAINING_METRICS = "the losses and metrics shown during training: they are computed on raw data"


def of_model(model):
    """What was taken to be public in the making of a model."""
    declared = assumptions_of(all_layers(model))
    return Notes(assumptions=(*declared, *_adapted(model), *own_steps.assumptions(model)))


def of_optimizer(optimizer):
    """What was taken to be public by a `DPOptimizer`, and whether its noise is a test's."""
    assumptions = assumptions_of([optimizer.selection])
    if optimizer.seed is None:
        return Notes(assumptions=assumptions)
    return Notes(
        assumptions=assumptions,
        remarks=(
            f"The noise was drawn from the fixed seed {optimizer.seed}: whoever knows it can "
            "remove the noise. This run is a test, not a private one.",
        ),
    )


def _adapted(model):
    """Layers whose state was read from data, or that come with a vocabulary (keras_hub)."""
    return tuple(
        f"the adapted state of layer {layer.name!r} ({type(layer).__name__}) is public"
        for layer in all_layers(model)
        if any(base.__name__ in _ADAPTED for base in type(layer).__mro__)
    )


def _is_of_the_user(callback):
    own = isinstance(callback, keras.callbacks.LambdaCallback)  # Keras' class, the user's code
    return own or not type(callback).__module__.startswith(("keras.", "tfdp."))


def of_callbacks(callbacks):
    """Decisions that callbacks take from metrics of private data, and what is assumed of others."""
    found, trusted = [], []
    if isinstance(callbacks, keras.callbacks.CallbackList):
        callbacks = callbacks.callbacks
    for callback in callbacks if isinstance(callbacks, (list, tuple)) else [callbacks]:
        if callback is not None and _is_of_the_user(callback):
            trusted.append(
                f"callback {type(callback).__name__} gives the model no weights that learned from "
                "these records"
            )
        if isinstance(callback, keras.callbacks.LearningRateScheduler):
            trusted.append("the schedule of LearningRateScheduler follows no losses or metrics")
        nan = isinstance(callback, keras.callbacks.TerminateOnNaN)
        monitor = "loss" if nan else getattr(callback, "monitor", None)
        if not isinstance(monitor, str):
            continue
        if isinstance(callback, keras.callbacks.ModelCheckpoint) and not callback.save_best_only:
            continue
        source = "validation data" if monitor.startswith("val_") else "the training data"
        found.append(
            f"decisions of {type(callback).__name__}, which follows {monitor!r} (from {source})"
        )
    return Notes(not_covered=tuple(dict.fromkeys(found)), assumptions=tuple(dict.fromkeys(trusted)))
