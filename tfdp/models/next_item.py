"""What every model that recommends a next item shares: how it is asked."""

import keras
import tensorflow as tf

from tfdp.data.datasets.sequences import UNIT_OF_PRIVACY
from tfdp.distribution.multi_worker import as_results
from tfdp.models.endpoint import Endpoint, number_of_best
from tfdp.training.dp_model import DPModel


class NextItemModel(DPModel):
    """A model of sequences of item ids that scores every item as the next one.

    A subclass has the attributes `num_items`, M, and `max_length`, and defines `score_next`.
    `evaluate(*data.held_out)` ranks all items after each history, as
    `compile(metrics=[tfdp.metrics.NDCG(10)])` asks; what is seen in evaluation is not private.
    """

    privacy_unit = UNIT_OF_PRIVACY

    def score_next(self, ids):
        """Scores of every item as the next one after the last position.

        Args:
            ids: (B, T) item ids, right-aligned, 0 is padding.

        Returns:
            (B, num_items + 1) float32; what is never recommended, such as padding, scores −inf.
        """
        raise NotImplementedError

    def evaluate(self, x=None, y=None, *args, **kwargs):
        """As `keras.Model.evaluate`; targets (B, T) of all positions, or (B,) of the next item."""
        rank = _rank_of_targets(x, y)
        if vars(self).setdefault("_evaluated_rank", rank) != rank:
            self.test_function = None  # one for both would be traced without a rank
            vars(self)["_evaluated_rank"] = rank
        return super().evaluate(x, y, *args, **kwargs)

    def test_step(self, data):
        """As Keras'; or the metrics alone, where targets are (B,): the items that come next.

        Scoring the last position alone takes T times less memory than all of them.
        """
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        if y is None or tf.nest.is_nested(y) or len(y.shape) != 1:
            return super().test_step(data)
        if not self.built:  # `score_next` builds layers, and not the model
            self.build(tuple(x.shape))
        results = self.compute_metrics(x, y, self.score_next(x), sample_weight)
        results = {name: value for name, value in results.items() if name != "loss"}
        return as_results(results, self.distribute_strategy)

    def serving_endpoint(self, k):
        """From raw histories to the k best next items (`number_of_best`)."""
        k = number_of_best(k, self.num_items)

        def serve(sequences):
            scores, items = tf.math.top_k(self.score_next(newest(sequences, self.max_length)), k)
            return {"items": items, "scores": scores}

        signature = [tf.TensorSpec([None, None], tf.int64, name="sequences")]
        return Endpoint(serve, signature, [self])


def _rank_of_targets(x, y):
    """Axes of the targets, or None where they are not known."""
    if isinstance(x, tf.data.Dataset):
        spec = x.element_spec
        y = spec[1] if isinstance(spec, tuple) and len(spec) > 1 else None
    shape = getattr(y, "shape", None)
    return None if shape is None else tf.TensorShape(shape).rank


def without_padding(scores):
    """(B, M + 1) scores in float32, with −inf for item 0."""
    width = scores.shape[-1]
    never = tf.one_hot(0, width, on_value=True, off_value=False, dtype=tf.bool)
    return tf.where(never, tf.constant(float("-inf")), tf.cast(scores, tf.float32))


def without_seen(scores, ids):
    """(B, M + 1) scores, with −inf for the items of each history (B, T)."""
    rows = tf.repeat(tf.range(tf.shape(ids, tf.int64)[0]), tf.shape(ids)[1])
    places = tf.stack([rows, tf.reshape(tf.cast(ids, tf.int64), [-1])], axis=1)
    lowest = tf.fill([tf.shape(places)[0]], tf.constant(float("-inf"), scores.dtype))
    return tf.tensor_scatter_nd_min(scores, places, lowest)


def newest(sequences, length):
    """The newest `length` items of each row, right-aligned; zeros are dropped wherever they are.

    Args:
        sequences: (B, any length) item ids, oldest first, 0 is padding.
        length: number of positions.

    Returns:
        int64 (B, length).
    """
    ragged = tf.ragged.boolean_mask(sequences, tf.not_equal(sequences, 0))
    reversed_rows = tf.reverse(ragged.to_tensor(), [1])
    # Rows shorter than the longest have their zeros in front now: drop and count again.
    reversed_ragged = tf.ragged.boolean_mask(reversed_rows, tf.not_equal(reversed_rows, 0))
    kept = reversed_ragged.to_tensor(shape=[None, length])
    return tf.cast(tf.reverse(kept, [1]), tf.int64)
