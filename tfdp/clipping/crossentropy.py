"""Sparse cross-entropy from logits for XLA, holding one tensor of the logits' size.

TensorFlow's operation makes the loss and its gradient together. Compiled by XLA in full float32
precision, five tensors of the logits' size are alive where its gradient is needed for norms; here
it is made from logits and two numbers for each position.
"""

import keras
import tensorflow as tf

from tfdp._compat.keras import logits_of


def is_sparse_crossentropy(loss, y_true, y_pred):
    """Whether `sparse_crossentropy` gives what this loss gives."""
    return (
        type(loss) is keras.losses.SparseCategoricalCrossentropy
        and loss.get_config()["from_logits"]
        and loss.get_config().get("axis", -1) == -1
        and isinstance(y_pred, tf.Tensor)
        and logits_of(y_pred) is None
        and tf.convert_to_tensor(y_true).dtype.is_integer
        and len(_labels(y_true, y_pred).shape) == len(y_pred.shape) - 1
    )


def sparse_crossentropy(loss, y_true, y_pred):
    """Values of a `keras.losses.SparseCategoricalCrossentropy(from_logits=True)`.

    Args:
        loss: the loss; its `ignore_class` is honoured.
        y_true: (B, ...) or (B, ..., 1) integer labels. As under XLA in TensorFlow, labels out of
            range give NaN.
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

    @tf.custom_gradient
    def values(logits):
        at_label = tf.equal(tf.range(logits.shape[-1], dtype=labels.dtype), labels[..., None])
        top = tf.reduce_max(logits, axis=-1, keepdims=True)
        log_sum = tf.math.log(tf.reduce_sum(tf.exp(logits - top), axis=-1, keepdims=True))
        # A select, not a product: other logits may be −inf.
        label_logit = tf.reduce_sum(tf.where(at_label, logits - top, 0.0), axis=-1)

        def gradient(upstream):
            # −(top − logits), or XLA would keep logits − top from the loss until here.
            p = tf.exp(-((top - logits) + log_sum))
            z = (upstream + spoil)[..., None] * tf.where(at_label, p - 1.0, p)
            return tf.where(counts[..., None], z, 0.0)

        return log_sum[..., 0] - label_logit + spoil, gradient

    return tf.where(counts, values(y_pred), 0.0), counts


def _labels(y_true, y_pred):
    labels = tf.convert_to_tensor(y_true)
    if len(labels.shape) == len(y_pred.shape) and labels.shape[-1] == 1:
        labels = tf.squeeze(labels, -1)
    return labels
