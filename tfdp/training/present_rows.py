"""Metrics see the examples that are present, as in Keras; never the padding of a batch.

A batch tells three things apart. Presence: a row whose weights are all 0 is padding, or counts as
absent. Weights: what `weighted_metrics` see, and `metrics` do not. Masks: what Keras keeps on the
outputs. So the rows that are present are handed to Keras' own metrics, with their weights and
masks: what these do with them is what they do in Keras.
"""

import functools
import inspect

import keras
import tensorflow as tf

from tfdp._compat.keras import in_stateless_scope, logits_of, mask_of, set_logits, set_mask
from tfdp.clipping.losses import example_mask_of


class MetricsOfPresentRows(keras.Model):
    """A Keras model whose metrics see the examples of a batch that are present."""

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        """As Keras', of the examples whose sample weight is not 0.

        A `compute_metrics` of your own that updates other metrics than those of `compile` gets the
        batch as it is, padding included: weigh by `sample_weight`.
        """
        compute = super().compute_metrics
        if sample_weight is None or not has_metrics(self):
            return compute(x, y, y_pred, sample_weight)
        example_mask = example_mask_of(sample_weight, tf.shape(tf.nest.flatten(y_pred)[0])[0])

        def update():
            rows = tf.where(example_mask)[:, 0]
            outputs = _rows(y_pred, rows)
            weights = _weights(_rows(sample_weight, rows), outputs)
            compute(None, _rows(y, rows), outputs, weights)
            return True

        if in_stateless_scope():  # Keras makes the variables of metrics, and nothing is computed
            update()
        else:
            # Many metrics have no value for no rows at all, and would keep what is not a number.
            tf.cond(tf.reduce_any(example_mask), update, lambda: False)
        return self.get_metrics_result()


def has_metrics(model):
    """Whether a model was compiled with metrics."""
    given = model._compile_arguments
    return bool(given["metrics"] or given["weighted_metrics"])


def accept_no_weights(metrics, weighted_metrics):
    """Lets metrics without an argument `sample_weight` take the None that Keras gives them.

    Args:
        metrics, weighted_metrics: as for `compile`.

    Raises:
        ValueError: for such a metric among `weighted_metrics`.
    """
    for metric in _without_weights(weighted_metrics):
        raise ValueError(
            f"The metric {metric.name!r} is one of `weighted_metrics`, but its `update_state` "
            "takes no `sample_weight`. Pass it as one of `metrics`, which get no weights, or add "
            f"the argument `sample_weight` to its `update_state`. Received: {metric}"
        )
    for metric in _without_weights(metrics):
        vars(metric)["update_state"] = _ignoring_none(metric.update_state)


def _without_weights(metrics):
    for metric in keras.tree.flatten(metrics):
        if isinstance(metric, keras.metrics.Metric):
            known = inspect.signature(metric.update_state).parameters.values()
            any_name = any(p.kind is p.VAR_KEYWORD for p in known)
            if not any_name and "sample_weight" not in {p.name for p in known}:
                yield metric


def _ignoring_none(update_state):
    @functools.wraps(update_state)
    def update(*args, sample_weight=None):
        return update_state(*args)

    del update.__wrapped__  # whose signature would be taken for this one's
    return update


def _rows(structure, rows):
    return tf.nest.map_structure(lambda t: None if t is None else _selected(t, rows), structure)


def _selected(tensor, rows):
    selected = tf.gather(tensor, rows)
    mask, logits = mask_of(tensor), logits_of(tensor)
    if mask is not None:
        set_mask(selected, tf.gather(mask, rows))
    if logits is not None:
        set_logits(selected, tf.gather(logits, rows))
    return selected


def _weights(weights, outputs):
    """The weights of each output; one for each example becomes one for each of its positions."""
    if not tf.nest.is_nested(weights):
        return tf.nest.map_structure(lambda output: _of_positions(weights, output), outputs)
    given, outputs = tf.nest.flatten(weights), tf.nest.flatten(outputs)
    if len(given) != len(outputs):
        return weights  # Keras says what is wrong
    return tf.nest.pack_sequence_as(weights, list(map(_of_positions, given, outputs)))


def _of_positions(weights, output):
    """Weights (B,) as (B, T), where a mask (B, T) is to be multiplied with them."""
    mask = mask_of(output)
    if mask is None or weights is None or len(weights.shape) >= len(mask.shape):
        return weights
    missing = len(mask.shape) - len(weights.shape)
    shape = tf.concat([tf.shape(weights), [1] * missing], 0)
    return tf.reshape(weights, shape) * tf.ones_like(mask, weights.dtype)
