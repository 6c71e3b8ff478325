"""What a privacy statement must add about a run: not covered, assumed, remarks."""

import keras
import numpy as np

from tfdp._compat.keras import all_layers, schedule_of
from tfdp.accounting.charges.notes import Notes
from tfdp.accounting.charges.participant import assumptions_of
from tfdp.data.provenance.origins import Origin
from tfdp.training.checks import own_steps
from tfdp.training.weights import held_constants

_ADAPTED = (
    "Tokenizer", "Normalization", "Discretization", "StringLookup", "IntegerLookup",
    "TextVectorization",
)  # fmt: skip
TRAINING_METRICS = "the losses and metrics shown during training: they are computed on raw data"


def of_model(model):
    """What was taken to be public in the making of a model."""
    declared = assumptions_of(all_layers(model))
    own = (*_adapted(model), *_of_weights(model), *own_steps.assumptions(model))
    own += held_constants.sentences_of_graphs(model)
    own += held_constants.origin_held(model).assumptions
    return Notes(assumptions=(*declared, *own))


def of_optimizer(optimizer):
    """What was taken to be public by a `DPOptimizer`, and whether its noise is a test's."""
    assumptions = assumptions_of([optimizer.selection])
    inner = optimizer.inner_optimizer
    schedule = schedule_of(inner)
    if not _is_known(inner):
        name = type(inner).__name__
        assumptions += (f"optimizer {name} uses the records only through their noised gradients",)
    if schedule is not None and not _is_known(schedule):
        name = getattr(schedule, "__name__", type(schedule).__name__)
        assumptions += (f"the schedule {name} does not follow losses or metrics",)
    if optimizer.gradient_scales:
        scales = ", ".join(f"{name} by {s:g}" for name, s in optimizer.gradient_scales.items())
        assumptions += (
            f"the scales of gradients before clipping are no function of the records: {scales}",
        )
    if optimizer.seed is None:
        return Notes(assumptions=assumptions)
    return Notes(
        assumptions=assumptions,
        remarks=(
            f"The noise was drawn from the fixed seed {optimizer.seed}: anybody who knows the "
            "seed can remove the noise. This run is a test, not a private one.",
        ),
    )


def _of_weights(model):
    """Regularizers and constraints of the user's, which act on weights past the noise."""
    found = {}
    for variable in model.trainable_variables:
        for kind in ("regularizer", "constraint"):
            one = getattr(variable, kind, None)
            if one is not None and not _is_known(one):
                name = getattr(one, "__name__", type(one).__name__)
                found[f"{kind} {name} does not use the records"] = None
    return tuple(found)


def _is_known(one):
    """Whether this is the code of Keras or of tfdp."""
    own = one if hasattr(one, "__qualname__") else type(one)
    return own.__module__.startswith(("keras.", "tfdp."))


def _adapted(model):
    """Layers whose state was read from data, or given, or that come with a vocabulary (keras_hub).

    One number for all features, such as 1/255, is taken for a setting.
    """
    layers = all_layers(model)
    # The look-up inside a TextVectorization holds what its layer is named for.
    inner = {
        id(one) for layer in layers if _is_adapted(layer) for one in all_layers(layer)
        if one is not layer
    }  # fmt: skip
    return tuple(
        sentence.format(f"layer {layer.name!r} ({type(layer).__name__})")
        for layer in layers
        if id(layer) not in inner
        for sentence in _given_to(layer)
    )


def _is_adapted(layer):
    return any(base.__name__ in _ADAPTED for base in type(layer).__mro__)


def _given_to(layer):
    if _is_adapted(layer):
        yield f"the {_state(layer)} {{}} is public"
    scales = isinstance(layer, keras.layers.Rescaling)
    if scales and (np.ndim(layer.scale) or np.ndim(layer.offset)):
        yield "the scale and offset given to {} are public"


def _state(layer):
    config = layer.get_config()
    given = [name for name in ("vocabulary", "mean") if config.get(name) is not None]
    if config.get("bin_boundaries") is not None and config.get("num_bins") is None:
        given.append("bin_boundaries")
    return f"{given[0]} given to" if given else "adapted state of"


def _is_of_the_user(callback):
    own = isinstance(callback, keras.callbacks.LambdaCallback)  # Keras' class, the user's code
    return own or not type(callback).__module__.startswith(("keras.", "tfdp."))


def of_class_weight(class_weight):
    """Weights of classes that no release was charged for: many compute them from the labels."""
    given = {
        int(label): float(weight)
        for label, weight in (class_weight or {}).items()
        if not Origin.of(weight).releases
    }
    if not given:
        return Notes()
    weights = ", ".join(f"{label} by {given[label]:g}" for label in sorted(given))
    return Notes(assumptions=(f"the class weights are no function of the records: {weights}",))


def of_held_out(sampling, kwargs):
    """What is taken for granted where `fit` parts arrays by their number.

    Without a record the split moves, and the first record that was held out may be trained on. Only
    a record that is blanked out keeps its place.
    """
    from tfdp.accounting.events.adjacency import FEATURES  # here: it loads dp_accounting

    is_parted = kwargs.get("validation_split") and kwargs.get("validation_data") is None
    if not is_parted or sampling.rule.adjacency in FEATURES:
        return Notes()
    return Notes(
        assumptions=(
            "it is public which records `validation_split` held out: the last ones, by number",
        )
    )


def of_callbacks(callbacks):
    """Decisions that callbacks take from metrics of private data, and what is assumed of others."""
    found, trusted = [], []
    if isinstance(callbacks, keras.callbacks.CallbackList):
        callbacks = callbacks.callbacks
    for callback in callbacks if isinstance(callbacks, (list, tuple)) else [callbacks]:
        if callback is not None and _is_of_the_user(callback):
            trusted.append(
                f"callback {type(callback).__name__} does not give the model anything that "
                "learned from these records"
            )
        if isinstance(callback, keras.callbacks.LearningRateScheduler):
            trusted.append(
                "the schedule of LearningRateScheduler does not follow losses or metrics"
            )
        nan = isinstance(callback, keras.callbacks.TerminateOnNaN)
        monitor = "loss" if nan else getattr(callback, "monitor", None)
        if not isinstance(monitor, str):
            continue
        if not getattr(callback, "save_best_only", True):
            continue  # every file is written
        source = "validation data" if monitor.startswith("val_") else "the training data"
        found.append(
            f"decisions of {type(callback).__name__}, which follows {monitor!r} (from {source})"
        )
    return Notes(not_covered=tuple(dict.fromkeys(found)), assumptions=tuple(dict.fromkeys(trusted)))
