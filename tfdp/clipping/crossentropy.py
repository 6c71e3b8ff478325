"""Sparse cross-entropy from logits of many classes, faster and smaller than TensorFlow's.

TensorFlow's operation makes the loss and its gradient together. On a CPU it takes 24 ms for
64·50·3,417 logits; here a few whole-tensor operations take 11 ms. Compiled by XLA in full float32
precision, five tensors of the logits' size would be alive where its gradient is needed for norms;
here it is made from logits and two numbers for each position.
"""

import keras
import tensorflow as tf

from tfdp._compat.keras import logits_of
from tfdp.runtime.xla import is_compiling, platform

_MANY_CLASSES = 256


def is_sparse_crossentropy(loss, y_true, y_pred):
    """Whether `sparse_crossentropy` gives what this loss gives, and is worth its operations."""
    return (
        type(loss) is keras.losses.SparseCategoricalCrossentropy
        and loss.get_config()["from_logits"]
        and loss.get_config().get("axis", -1) == -1
        and isinstance(y_pred, tf.Tensor)
        and (is_compiling() or (y_pred.shape[-1] or 0) >= _MANY_CLASSES)
        and logits_of(y_pred) is None
        and tf.convert_to_tensor(y_true).dtype.is_integer
        and len(_labels(y_true, y_pred).shape) == len(y_pred.shape) - 1
    )


def sparse_crossentropy(loss, y_true, y_pred):
    """Values of a `keras.losses.SparseCategoricalCrossentropy(from_logits=True)`.

    Args:
        loss: the loss; its `ignore_class` is honoured.
        y_true: (B, ...) or (B, ..., 1) integer labels. As under XLA in TensorFlow, labels out of
            range give NaN; on a CPU they are refused, as by TensorFlow.
        y_pred: (B, ..., V) logits.

    Returns:
        (B, ...) losses, 0 where ignored, and (B, ...) bool, whether each one counts.
    """
    labels = _labels(y_true, y_pred)
    ignored = loss.get_config()["ignore_class"]
    counts = tf.ones_like(labels, tf.bool) if ignored is None else tf.not_equal(labels, ignored)
    known = (labels >= 0) & (labels < y_pred.shape[-1])
    nan = tf.constant(float("nan"), y_pred.dtype)
    spoil = tf.where(known | ~counts, tf.zeros([], y_pred.dtype), nan)
    if is_compiling():
        values = _fused(y_pred, labels, counts, spoil)
    else:
        with tf.control_dependencies([_in_range(labels, known | ~counts, y_pred.shape[-1])]):
            values = _in_passes(y_pred, tf.where(known, labels, 0), counts, spoil, ignored is None)
    return tf.where(counts, values, 0.0), counts


def _fused(logits, labels, counts, spoil):
    """(B, ...) losses, by expressions that XLA writes to no memory."""

    @tf.custom_gradient
    def values(logits):
        at_label = tf.equal(tf.range(logits.shape[-1], dtype=labels.dtype), labels[..., None])
        top = tf.reduce_max(logits, axis=-1, keepdims=True)
        total = _sum(tf.exp(logits - top))
        log_sum = tf.math.log(total)
        if platform() == "CPU":
            label_logit = tf.gather(logits, labels, axis=-1, batch_dims=len(labels.shape))
            label_logit -= top[..., 0]
        else:  # a select, not a product: other logits may be −inf
            label_logit = tf.reduce_sum(tf.where(at_label, logits - top, 0.0), axis=-1)

        def gradient(upstream):
            weight, counted = upstream + spoil, counts[..., None]
            # −(top − logits), or XLA would keep logits − top from the loss until here.
            if platform() == "CPU":
                # A quotient in the end: XLA would compute all else for each product that reads it.
                p = tf.exp(-(top - logits))
                p = tf.where(at_label, p - total[..., None], p)
                per_weight = tf.where(counted, (total / weight)[..., None], 1.0)
                return tf.where(counted, p, 0.0) / per_weight
            p = tf.exp(-((top - logits) + log_sum[..., None]))
            z = weight[..., None] * tf.where(at_label, p - 1.0, p)
            return tf.where(counted, z, 0.0)

        return log_sum - label_logit + spoil, gradient

    return values(logits)


def _sum(powers):
    """(...) sums over the last axis."""
    if platform() != "CPU":
        return tf.reduce_sum(powers, axis=-1)
    # XLA for CPUs writes all powers to memory before it sums them up; not before a product.
    rows = tf.reshape(powers, [-1, powers.shape[-1]])
    return tf.reshape(
        tf.linalg.matvec(rows, tf.ones(rows.shape[1:], rows.dtype)), tf.shape(powers)[:-1]
    )


def _in_passes(logits, labels, counts, spoil, all_count):
    """(B, ...) losses, by few passes over memory; the exponentials are kept for the gradient."""
    rows = tf.reshape(logits, [-1, logits.shape[-1]])
    labels, counted = tf.reshape(labels, [-1]), tf.reshape(counts, [-1])
    places = tf.stack([tf.range(tf.size(labels), dtype=labels.dtype), labels], axis=1)

    @tf.custom_gradient
    def values(rows):
        top = tf.reduce_max(rows, axis=1, keepdims=True)
        at_label = tf.gather_nd(rows, places)
        with tf.control_dependencies([at_label]):  # read for the last time: the memory is reused
            powers = tf.exp(rows - top)
        total = tf.reduce_sum(powers, axis=1, keepdims=True)
        label_logit = at_label - top[:, 0]

        def gradient(upstream):
            upstream = upstream + tf.reshape(spoil, [-1])  # 0 where ignored, both
            z = powers * (upstream[:, None] / total)
            if not all_count:  # what is ignored may be NaN
                z = tf.where(counted[:, None], z, 0.0)
            # Unlike tf.tensor_scatter_nd_sub, it writes into the memory of z.
            return tf.raw_ops.ScatterNdNonAliasingAdd(input=z, indices=places, updates=-upstream)

        return tf.math.log(total)[:, 0] - label_logit, gradient

    return tf.reshape(values(rows), tf.shape(counts)) + spoil


def _in_range(labels, allowed, classes):
    if tf.config.list_logical_devices("GPU"):  # as TensorFlow: NaN there
        return tf.no_op()
    return tf.debugging.Assert(
        tf.reduce_all(allowed),
        [f"Received labels outside the valid range of [0, {classes}): pass labels in this range, "
         "or name the label that stands for padding as the loss's `ignore_class`. Labels:", labels],
    )  # fmt: skip


def _labels(y_true, y_pred):
    labels = tf.convert_to_tensor(y_true)
    if len(labels.shape) == len(y_pred.shape) and labels.shape[-1] == 1:
        labels = tf.squeeze(labels, -1)
    if labels.dtype not in (tf.int32, tf.int64):
        # Neither the number of classes nor that of rows need fit into what holds a label.
        labels = tf.cast(labels, tf.int64)
    return labels
