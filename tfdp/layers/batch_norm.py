"""Batch normalization replaced by group normalization, which looks at one example at a time."""

import keras

from tfdp._compat.keras import all_layers
from tfdp.data.provenance.variable_values import hand_on
from tfdp.errors import PrivacyError


def replace_batch_norm(model: keras.Model, groups: int = 32) -> keras.Model:
    """The same model with `GroupNormalization` in place of every trainable `BatchNormalization`.

    Batch normalization mixes the examples of a batch, so no gradient belongs to one of them, and
    private training refuses it. Group normalization computes mean and variance over one example (Wu
    and He 2018, "Group Normalization"). Gains, shifts and all other weights are copied. But the
    network now computes something else, so you must train it.

    Args:
        model: a functional or sequential Keras model, models nested in it included.
        groups: the largest number of groups into which channels are divided. A layer gets the
            largest number up to it that divides its channels and leaves at least four channels in
            each group, or one group.

    Returns:
        A new model, which shares no weights with `model`.

    Raises:
        ValueError: for any other model.
        PrivacyError: for a batch normalization inside another layer, where it cannot be replaced.

    Example:

    ```python
    base = keras.applications.MobileNetV2(weights=None, input_shape=(96, 96, 3), classes=10)
    model = tfdp.make_private(tfdp.layers.replace_batch_norm(base))
    ```
    """
    if not isinstance(model, (keras.Sequential, keras.Model)) or not hasattr(model, "inputs"):
        raise ValueError(
            "Argument `model` must be a functional or sequential Keras model, because other "
            "models create their layers in their own code. Replace BatchNormalization by "
            f"`keras.layers.GroupNormalization(groups)` there. Received: model={model}"
        )
    copies = []

    def copy(layer):
        if not isinstance(layer, keras.layers.Layer):
            return layer  # an operation, such as a sum, which holds nothing
        if _is_replaced(layer):
            new = keras.layers.GroupNormalization(
                _groups(layer.moving_mean.shape[0], groups), axis=layer.axis, epsilon=layer.epsilon,
                center=layer.center, scale=layer.scale, name=layer.name, dtype=layer.dtype_policy,
            )  # fmt: skip
        else:
            new = type(layer).from_config(layer.get_config())
            new.trainable = layer.trainable
        copies.append((layer, new))
        return new

    def call(layer, *args, **kwargs):
        if isinstance(layer, keras.layers.GroupNormalization):  # takes neither mode nor mask
            return layer(args[0] if args else kwargs["inputs"])
        return layer(*args, **kwargs)

    functional = not isinstance(model, keras.Sequential)
    made = keras.models.clone_model(
        model, clone_function=copy, call_function=call if functional else None, recursive=True
    )
    for layer in all_layers(made):
        if _is_replaced(layer):
            raise PrivacyError(
                f"Layer {layer.name!r} (BatchNormalization) is inside another layer, where tfdp "
                "cannot replace it. Build that layer with `keras.layers.GroupNormalization`."
            )
    pairs = []
    for old, new in copies:
        if _is_replaced(old):
            names = [name for name in ("gamma", "beta") if getattr(old, name, None) is not None]
            pairs += [(getattr(old, name), getattr(new, name)) for name in names]
        else:
            pairs += zip(old.weights, new.weights, strict=True)
    for old, new in pairs:
        new.assign(old)
    hand_on(pairs)  # what training cost goes with the weights
    return made


def _is_replaced(layer):
    return isinstance(layer, keras.layers.BatchNormalization) and layer.trainable


def _groups(channels, most):
    most = min(most, max(1, channels // 4))
    return max(count for count in range(1, most + 1) if channels % count == 0)
