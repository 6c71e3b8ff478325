"""Layers that no private step can cover, refused by their names, and those to warn of."""

import warnings

import keras
import tensorflow as tf

from tfdp._compat.keras import all_layers
from tfdp.errors import PrivacyError

# keras_rs' name for the variable whose gradient function updates tables on the SparseCore.
_TRAP = "_gradient_trap_dummy"

_APART = (
    "Replace statistics of the batch by normalisation within each example (LayerNormalization, "
    "GroupNormalization). Sort examples, or augment each example by itself, before sampling. Do "
    "not mix examples before sampling either: a mixed record holds the data of several people."
)
#: Why gradients must be of single examples, and what to do in place of mixing, for error messages.
WAY_OUT = (
    "The gradient of one example then cannot be clipped separately. Replace in-batch negatives "
    "by negatives that are drawn once a step for all examples, from what is public: "
    "`tfdp.layers.SharedNegatives`, or the whole model, `tfdp.models.TwoTower`. "
    f"{_APART} Give labels the shape of the outputs, so that they do not broadcast."
)
#: The same for representations.
WAY_OUT_OF_NOISE = (
    "Forward noise clips the representation of each example. If other examples change it, too, "
    f"clipping does not bound what one example changes. {_APART}"
)

#: What a model does whose forward pass is not the one that was planned for, for error messages.
CALLS_DIFFER = (
    "calls different layers each time it runs. Python code decides which, perhaps by random "
    "numbers or a counter, and layers that are left out get no gradients. Decide with tensors "
    "instead: `tf.where`, `keras.ops.cond`, or a layer that draws from a "
    "`keras.random.SeedGenerator`."
)

# A step that takes more than so many times as long as without privacy is warned of.
_SLOW = 3.0
_MIXERS = (keras.layers.MixUp, keras.layers.CutMix)
# Layers that compute statistics along an axis, which must not be that of the examples.
_ALONG_AXIS = (
    keras.layers.GroupNormalization,
    keras.layers.LayerNormalization,
    keras.layers.RMSNormalization,
    keras.layers.Softmax,
    keras.layers.UnitNormalization,
)


def refuse_named_layers(model):
    """Refuses, by name, what breaks the independence of the examples (MATH.md section 2).

    Raises:
        PrivacyError: for BatchNormalization, MixUp, CutMix, statistics along axis 0, activity
            regularizers, and what `refuse_layers_beyond_reach` refuses.
    """
    refuse_layers_beyond_reach(model)
    refuse_kinds_of_weights(model)
    for layer in all_layers(model):
        where = f"Layer {layer.name!r} ({type(layer).__name__})"
        if isinstance(layer, keras.layers.BatchNormalization) and layer.trainable:
            raise PrivacyError(
                f"{where} mixes the examples of a batch: no gradient belongs to one example, and "
                "its moving statistics would publish raw data. Replace it by GroupNormalization "
                "or LayerNormalization (`tfdp.layers.replace_batch_norm(model)` does so), or "
                "freeze it with `layer.trainable = False`."
            )
        if isinstance(layer, keras.layers.SpectralNormalization):
            raise PrivacyError(
                f"{where} changes the weights of its layer during the forward pass, where tfdp "
                "cannot follow the gradients of single examples. Bound the weights by a "
                "`kernel_constraint` of the layer instead (`keras.constraints.MaxNorm`, "
                "`UnitNorm`)."
            )
        if getattr(layer, "stateful", False) and isinstance(layer, keras.layers.RNN):
            raise PrivacyError(
                f"{where} is stateful: it passes the state of one batch to the next, so examples "
                "change each other's gradients. Remove `stateful=True`, and pass each sequence "
                "as one example."
            )
        if isinstance(layer, _MIXERS):
            raise PrivacyError(f"{where} mixes the examples of a batch. {WAY_OUT}")
        if isinstance(layer, _ALONG_AXIS) and 0 in tf.nest.flatten(layer.axis):
            raise PrivacyError(
                f"{where} mixes the examples of a batch: its `axis` is {layer.axis}, and axis 0 "
                f"counts the examples. {WAY_OUT}"
            )
        if layer.activity_regularizer is not None:
            raise PrivacyError(
                f"{where} has an `activity_regularizer`, which is a loss of the whole batch. "
                "Remove it, or return the activity as a model output with its own loss."
            )


def refuse_kinds_of_weights(model):
    """Refuses weights whose gradients are no real numbers, or no gradients at all.

    Raises:
        PrivacyError: for complex weights, and those of float8 layers.
    """
    for variable in model.trainable_variables:
        if tf.as_dtype(variable.dtype).is_complex:
            raise PrivacyError(
                f"Variable {variable.path!r} is {variable.dtype}, but gradients are clipped and "
                "noised as real numbers. Keep its real and imaginary parts in two weights, and "
                "compute `tf.complex(real, imaginary)` in `call`."
            )
        if variable.overwrite_with_gradient:
            raise PrivacyError(
                f"Variable {variable.path!r} belongs to a float8 layer. Such a layer writes "
                "statistics of the batch into it in place of a gradient, without noise. Use the "
                "policy 'float32' or 'mixed_bfloat16'."
            )


def warn_of_still_variables(variables, from_whom):
    """Warns of variables that training would move by noise alone.

    Args:
        variables: those whose gradients are zero; none if there are none.
        from_whom: the examples whose gradients were looked at, and why they are zero.
    """
    if variables:
        names = sorted({v.path if hasattr(v, "path") else v.name for v in variables})
        warnings.warn(
            f"These variables get a gradient of exactly zero from {from_whom}: {names}. A private "
            "optimizer adds only noise to them. Check for a `stop_gradient`, a rounding or an "
            "argmax between them and the loss, or for units that are never active. Or freeze "
            "them: `layer.trainable = False`.",
            stacklevel=2,
        )


def warn_of_plan(plan):
    """Warns of variables that are not trained, and of layers without a rule that take very long.

    Args:
        plan: a `ClippingPlan`.
    """
    behind = {id(v) for v in plan.behind}
    unused = [v.path for v in plan.unused if id(v) not in behind]
    if unused:
        warnings.warn(
            "These variables do not affect the model's outputs and will not be trained: "
            f"{unused}. Use them in `call`, or freeze or remove their "
            "layers.",
            stacklevel=2,
        )
    slow = {c.layer.name: c.slowdown for c in plan.calls.values() if c.rule is None}
    times = 1.0 + sum(slowdown - 1.0 for slowdown in slow.values())
    if times > _SLOW:
        warnings.warn(
            f"Layers {sorted(slow)} have no clipping rule. tfdp runs them again for each example, "
            f"which is exact but slow: a step on 64 examples may take about {times:.0f} times as "
            "long as without privacy. Build them from Keras' own layers, or write a rule "
            "(`tfdp.clipping.register_rule`). If the `call` of a model itself reads weights, such "
            "as those of a tied table, move this read into a small layer. The other layers then "
            "keep their rules. `tfdp.clipping.explain(model)` shows the cost of each layer.",
            stacklevel=2,
        )


def refuse_named_losses(losses):
    """Refuses, by name, losses that compare the examples of a batch, or sum over all of them.

    Args:
        losses: argument `loss` of `compile`.

    Raises:
        PrivacyError: for `keras.losses.Circle`, and `Dice` and `Tversky` without an `axis`.
    """
    for one in tf.nest.flatten(losses):
        loss = None if one is None else keras.losses.get(one)
        for name in ("Dice", "Tversky"):
            whole = isinstance(loss, getattr(keras.losses, name)) and loss.axis is None
            if whole or loss is getattr(keras.losses, name.lower()):
                raise PrivacyError(
                    f"Argument `loss` is {name} over the whole batch: it returns one number for "
                    "all examples, which cannot be clipped per example. Give it the axes of one "
                    f"example: `keras.losses.{name}(axis=(1, 2, 3))` for images with channels, "
                    f"`axis=(1, 2)` without. Received: loss={one}"
                )
        if isinstance(loss, keras.losses.Circle) or loss is keras.losses.circle:
            raise PrivacyError(
                "Argument `loss` mixes the examples of a batch: keras.losses.Circle compares each "
                f"example with the others. {WAY_OUT}"
            )


def refuse_layers_beyond_reach(model):
    """Refuses layers that train past the model's optimizer, whichever it is.

    Raises:
        PrivacyError: for tables that keras_rs puts on the SparseCore, and layers of tf_keras or
            tensorflow_recommenders.
    """
    for layer in all_layers(model):
        where = f"Layer {layer.name!r} ({type(layer).__name__})"
        held = list(_held(layer))
        if any(_updates_itself(one) for one in held):
            raise PrivacyError(
                f"{where} keeps tables on the SparseCore. Its backward pass updates them with "
                "gradients that are neither clipped nor noised, and that no DPOptimizer sees. "
                'Use `tfdp.layers.SparseEmbedding(..., placement="tpu")`, or '
                '`placement="default_device"` in each keras_rs.layers.TableConfig.'
            )
        for one in held:
            if is_tf_keras(one):
                raise PrivacyError(f"{where} holds {describe_tf_keras(one)}")


def is_tf_keras(thing):
    """Whether this is a layer or model of Keras 2 (tf_keras), as those of tfrs are."""
    return any(c.__name__ == "Layer" and _root(c) == "tf_keras" for c in type(thing).__mro__)


def describe_tf_keras(thing):
    """What such a thing is, and what to use instead, for an error message."""
    kind = f"{type(thing).__module__}.{type(thing).__name__}"
    return (
        f"{kind}, which is of tf_keras (Keras 2), as are all layers and models of "
        "tensorflow_recommenders. tfdp does not support them: a Keras 3 model does not track their "
        "variables, and tfrs' TPUEmbedding updates its tables in its own backward pass, without "
        "clipping and noise. Build the model with Keras 3. Instead of tfrs.layers.embedding use "
        "tfdp.layers.SparseEmbedding, or keras_rs.layers.DistributedEmbedding with "
        '`placement="default_device"`.'
    )


def _updates_itself(thing):
    """Whether this is a TPU embedding that a layer holds, or the trap that updates it."""
    embedding = tf.tpu.experimental.embedding
    if isinstance(thing, (embedding.TPUEmbedding, embedding.TPUEmbeddingV2)):
        return True
    return isinstance(thing, keras.Variable) and thing.name == _TRAP


def _held(layer):
    """The values of a layer's attributes, and what lists and dicts among them hold."""
    for value in vars(layer).values():
        yield value
        if isinstance(value, dict):
            yield from value.values()
        elif isinstance(value, (list, tuple)):
            yield from value


def _root(cls):
    return cls.__module__.split(".")[0]
