"""Losses that belong to one example each."""

import keras
import tensorflow as tf

from tfdp._compat.keras import mask_of
from tfdp._validate import one_of
from tfdp.clipping.crossentropy import is_sparse_crossentropy, sparse_crossentropy
from tfdp.data.provenance.padding_guard import example_mask_of

REDUCTIONS = ("mean", "sum")

_WEIGHTED = "Argument `sample_weight` has more axes than the loss."
_MASKED = (
    "The outputs have a mask of positions (`mask_zero=True`, a Masking layer), but the loss has "
    "no axis of positions any more, so masked positions would count. Return the losses of all "
    "positions, (batch, positions); tfdp takes the mean over the valid ones. Or end the model by a "
    "function of `keras.ops`, such as `keras.ops.softmax(x)`, which passes no mask on."
)


@keras.saving.register_keras_serializable(package="tfdp")
class PerExampleLoss(keras.losses.Loss):
    """Gives a loss of shape (B,): example i's own loss, from i's own positions alone.

    With positions (B, T), the loss is the mean over i's *own* valid positions (or their sum),
    never divided by a count over the batch (MATH.md section 1). Keras masks and a sample weight
    of shape (B,) or (B, T) are honoured as Keras does.

    Args:
        loss: a Keras loss, the name of one, or a function `(y_true, y_pred) -> (B, ...)`.
        per_example_reduction: "mean" or "sum" over an example's positions.

    Raises:
        ValueError: for an unknown reduction, or a loss object whose own reduction contradicts it;
            "none" leaves it to this one.
    """

    def __init__(self, loss, per_example_reduction="mean", name=None):
        super().__init__(name=name or "per_example_loss", reduction="none")
        one_of("per_example_reduction", per_example_reduction, REDUCTIONS)
        loss = loss.loss if isinstance(loss, PerExampleLoss) else loss  # `loss=model.loss`
        self.loss = loss
        self.per_example_reduction = per_example_reduction
        self._function = keras.losses.get(loss)
        is_loss = isinstance(self._function, keras.losses.Loss)
        if is_loss and type(self._function).__call__ is not keras.losses.Loss.__call__:
            raise ValueError(
                "Argument `loss` has its own `__call__`, so tfdp cannot take the losses of "
                "single examples from it. Define `call` instead, and return one loss for each "
                f"example. Received: loss={self._function}"
            )
        own = getattr(self._function, "reduction", "sum_over_batch_size")
        if own == "sum" and per_example_reduction != "sum":
            raise ValueError(
                f"Argument `loss` has reduction={own!r}, but private training reduces each "
                f"example's loss by per_example_reduction={per_example_reduction!r}. Leave the "
                "loss's reduction at its default, or pass `per_example_reduction='sum'` to the "
                "DPOptimizer."
            )

    def __call__(self, y_true, y_pred, sample_weight=None):
        in_mask = mask_of(y_pred)
        y_pred = tf.nest.map_structure(_float, y_pred)
        if is_sparse_crossentropy(self._function, y_true, y_pred):
            values, out_mask = sparse_crossentropy(self._function, y_true, y_pred)
            return self.reduce(values, sample_weight, in_mask, out_mask)
        if not _is_of_keras(self._function):
            y_true = _labels_as_numbers(y_true, y_pred)
        if _power_of_hinge(self._function):
            values = _hinge(y_true, y_pred, _power_of_hinge(self._function))
        elif isinstance(self._function, keras.losses.Loss):
            values = self._function.call(y_true, y_pred)
        else:
            values = self._function(*_same_rank(y_true, y_pred))
        out_mask = mask_of(values)
        return self.reduce(_float(values), sample_weight, in_mask, out_mask)

    def reduce(self, values, sample_weight=None, *masks):
        """(B, ...) values to (B,)."""
        if len(values.shape) == 0:
            raise ValueError(
                f"The loss {_name(self._function)} returned a scalar, from which tfdp cannot "
                "separate the losses of single examples. Return a tensor of shape (batch, ...): "
                "leave the last mean out, or reduce the axes of one example alone, as in "
                "`keras.ops.mean(x, axis=-1)`. tfdp divides by the number of examples itself."
            )
        valid = tf.ones_like(values)
        for mask in masks:
            if mask is not None:
                valid *= _align(tf.cast(mask, values.dtype), values, _MASKED)
        # Select: the loss of an invalid position, or of padding, may be anything, as infinite.
        values = tf.where(valid > 0, values, 0.0)
        if sample_weight is not None:
            weights = _align(tf.cast(sample_weight, values.dtype), values, _WEIGHTED)
            values = tf.where(weights != 0.0, weights * values, 0.0)
        batch = tf.shape(values)[0]
        total = tf.reduce_sum(tf.reshape(values, [batch, -1]), axis=1)
        if self.per_example_reduction == "sum":
            return total
        count = tf.reduce_sum(tf.reshape(valid, [batch, -1]), axis=1)
        return tf.math.divide_no_nan(total, count)

    def get_config(self):
        return {
            "loss": keras.saving.serialize_keras_object(self.loss),
            "per_example_reduction": self.per_example_reduction,
            "name": self.name,
        }

    @classmethod
    def from_config(cls, config):
        config = dict(config)
        config["loss"] = keras.saving.deserialize_keras_object(config["loss"])
        return cls(**config)


@keras.saving.register_keras_serializable(package="tfdp")
class MeanExampleLoss(PerExampleLoss):
    """The mean of `PerExampleLoss` over the examples present: the same loss without privacy.

    On several replicas each gets its share of the mean over all of them: Keras' optimizers sum
    gradients over replicas.
    """

    def __call__(self, y_true, y_pred, sample_weight=None):
        return share_of_mean(super().__call__(y_true, y_pred, sample_weight), sample_weight)


def share_of_mean(losses, sample_weight):
    """What the losses (B,) of this replica's examples add to the mean over those present.

    Returns:
        A scalar; the mean itself if there is one replica.
    """
    example_mask = example_mask_of(sample_weight, tf.shape(losses)[0])
    count = of_all_replicas(tf.reduce_sum(tf.cast(example_mask, losses.dtype)))
    return tf.math.divide_no_nan(tf.reduce_sum(losses), count)


def of_all_replicas(count):
    """The sum of a number over the replicas; the number itself where none is running."""
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return count
    return context.all_reduce(tf.distribute.ReduceOp.SUM, count)


def _name(loss):
    return repr(getattr(loss, "__name__", type(loss).__name__))


def _float(x):
    x = tf.convert_to_tensor(x)
    return tf.cast(x, tf.float32) if x.dtype in (tf.float16, tf.bfloat16) else x


def _power_of_hinge(loss):
    """1 or 2 for Keras' hinge losses, which look at all labels of a batch; 0 for others."""
    if type(loss) is keras.losses.Hinge or loss is keras.losses.hinge:
        return 1
    return 2 * (type(loss) is keras.losses.SquaredHinge or loss is keras.losses.squared_hinge)


def _hinge(y_true, y_pred, power):
    """(B, ...) hinge losses of labels -1 and 1, or 0 and 1; each label is looked at by itself."""
    y_true, y_pred = _same_rank(y_true, y_pred)
    labels = tf.cast(y_true, y_pred.dtype)
    labels = tf.where(labels == 0, -tf.ones_like(labels), labels)
    return tf.reduce_mean(tf.maximum(1.0 - labels * y_pred, 0.0) ** power, axis=-1)


def _is_of_keras(loss):
    """Whether Keras wrote a loss: those convert labels as they need them."""
    made_by = loss if hasattr(loss, "__module__") and not isinstance(loss, keras.losses.Loss) else (
        type(loss))  # fmt: skip
    return made_by.__module__.split(".")[0] == "keras"


def _labels_as_numbers(y_true, y_pred):
    """Labels in the dtype of the outputs, as Keras hands them to losses of one's own."""
    dtype = next((t.dtype for t in tf.nest.flatten(y_pred) if t.dtype.is_floating), tf.float32)

    def convert(label):
        label = tf.convert_to_tensor(label)
        numeric = label.dtype.is_floating or label.dtype.is_integer or label.dtype.is_bool
        return tf.cast(label, dtype) if numeric else label

    return tf.nest.map_structure(convert, y_true)


def _align(weights, values, wrong):
    """Gives weights the rank of values by trailing axes of size 1, as Keras does."""
    if len(weights.shape) == len(values.shape) + 1 and weights.shape[-1] == 1:
        weights = tf.squeeze(weights, -1)
    missing = len(values.shape) - len(weights.shape)
    if missing < 0:
        raise ValueError(f"{wrong} Received: {weights.shape} for a loss of shape {values.shape}")
    return tf.reshape(weights, tf.concat([tf.shape(weights), [1] * missing], axis=0))


def _same_rank(y_true, y_pred):
    y_true = tf.convert_to_tensor(y_true)
    if len(y_true.shape) == len(y_pred.shape) - 1 and y_pred.shape[-1] == 1:
        y_true = tf.expand_dims(y_true, -1)
    elif len(y_true.shape) == len(y_pred.shape) + 1 and y_true.shape[-1] == 1:
        y_true = tf.squeeze(y_true, -1)
    return y_true, y_pred
