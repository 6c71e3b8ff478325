"""What a privacy statement must add about a model: uncovered, asserted, remarks."""

import keras

from tfdp.clipping.recording import all_layers

_ADAPTED = (
    "Normalization", "Discretization", "StringLookup", "IntegerLookup", "TextVectorization",
)  # fmt: skip
_TRAINING_METRICS = "the losses and metrics shown during training: they are computed on raw data"


def uncovered(model):
    """What the guarantee does not cover."""
    return [_TRAINING_METRICS, *sorted(model._uncovered)]


def uncovered_of_plain_training(model):
    """What forward noise and releases do not cover, beside what their charges name."""
    return sorted(model._uncovered)


def asserted_of_plain_training(model):
    """What was taken to be public, without a DPOptimizer."""
    return [*_adapted_layers(model), *sorted(model._asserted)]


def asserted(model):
    """What was taken to be public."""
    selection = model.optimizer.selection
    chosen = [] if selection is None else selection.privacy_asserted
    return [
        *chosen,
        *_adapted_layers(model),
        *sorted(model._asserted),
    ]


def _adapted_layers(model):
    return [
        f"the adapted state of layer {layer.name!r} ({type(layer).__name__}) is public"
        for layer in all_layers(model)
        if type(layer).__name__ in _ADAPTED
    ]


def remarks(model):
    """Anything else a reader must know."""
    if model.optimizer.seed is None:
        return []
    return [
        f"The noise was drawn from the fixed seed {model.optimizer.seed}: whoever knows it can "
        "remove the noise. This run is a test, not a private one."
    ]


def of_callbacks(callbacks):
    """Decisions that callbacks take from metrics of the training data."""
    found = set()
    if isinstance(callbacks, keras.callbacks.CallbackList):
        callbacks = callbacks.callbacks
    for callback in callbacks if isinstance(callbacks, (list, tuple)) else [callbacks]:
        monitor = getattr(callback, "monitor", None)
        if not isinstance(monitor, str):
            continue
        if isinstance(callback, keras.callbacks.ModelCheckpoint) and not callback.save_best_only:
            continue
        source = "validation data" if monitor.startswith("val_") else "the training data"
        found.add(
            f"decisions of {type(callback).__name__}, which follows {monitor!r} (from {source})"
        )
    return found
