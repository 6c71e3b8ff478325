"""From indices drawn in numpy to a `tf.data.Dataset` of padded, static batches."""

import tensorflow as tf

from tfdp.data.exits import ended_at_exit
from tfdp.data.padding import guard_padding
from tfdp.data.provenance import tag


def dataset_of_batches(records, sampling, draw_epoch, persons=None, source=None):
    """Makes the dataset that both samplers return.

    Args:
        records: `Records` to cut batches from.
        sampling: `tfdp.accounting.Sampling` to tag the dataset with; its `rows` is the
            number of rows of every batch, its `steps_per_epoch` the number of batches of one pass.
        draw_epoch: function without arguments, called once for each pass over the dataset, that
            returns an iterable of index arrays: of records, or of `persons`.
        persons: `Persons`, if they are what is drawn.
        source: `GeneratorSource` by which the records of persons are chosen.

    Returns:
        Tagged `tf.data.Dataset` of `(x, y, sample_weight)` with a known cardinality.
    """
    capacity = sampling.rows

    def one_epoch():
        generator = None if persons is None else source.fresh()
        for chosen in draw_epoch():
            places = None
            if persons is not None:
                chosen, places = persons.rows(generator, chosen)
            yield records.batch(chosen, capacity, places)

    dataset = tf.data.Dataset.from_generator(
        ended_at_exit(one_epoch), output_signature=records.signature(capacity)
    )
    steps = tf.data.experimental.assert_cardinality(sampling.steps_per_epoch)
    tagged = tag(dataset.apply(steps).prefetch(2), sampling, records.origin)
    return guard_padding(tagged, sampling.rows_per_unit)
