"""From indices drawn in numpy to a `tf.data.Dataset` of padded, static batches."""

import tensorflow as tf

from tfdp.data.padding import guard_padding
from tfdp.data.provenance import tag


def dataset_of_batches(records, sampling, draw_epoch):
    """Makes the dataset that both samplers return.

    Args:
        records: `Records` to cut batches from.
        sampling: `tfdp.accounting.Sampling` to tag the dataset with; its `max_batch_size` is the
            number of rows of every batch, its `steps_per_epoch` the number of batches of one pass.
        draw_epoch: function without arguments, called once for each pass over the dataset, that
            returns an iterable of index arrays.

    Returns:
        Tagged `tf.data.Dataset` of `(x, y, sample_weight)` with a known cardinality.
    """
    capacity = sampling.max_batch_size

    def one_epoch():
        for chosen in draw_epoch():
            yield records.batch(chosen, capacity)

    dataset = tf.data.Dataset.from_generator(
        one_epoch, output_signature=records.signature(capacity)
    )
    steps = tf.data.experimental.assert_cardinality(sampling.steps_per_epoch)
    return guard_padding(tag(dataset.apply(steps).prefetch(2), sampling, records.origin))
