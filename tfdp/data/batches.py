"""From indices drawn in numpy to a `tf.data.Dataset` of padded, static batches."""

import itertools

import numpy as np
import tensorflow as tf

from tfdp.data.exits import ended_at_exit
from tfdp.data.padding import guard_padding
from tfdp.data.provenance import tag

# Batches that go from Python to TensorFlow at once: so many, of so many bytes, at most. Each time
# takes 0.2 ms, as long as a small step.
_AT_ONCE, _BYTES_AT_ONCE = 16, 1 << 20


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

    dataset = _from_generator(
        one_epoch, records.signature(capacity), records.batches_in_bytes(_BYTES_AT_ONCE, capacity)
    )
    steps = tf.data.experimental.assert_cardinality(sampling.steps_per_epoch)
    tagged = tag(dataset.apply(steps).prefetch(2), sampling, records.origin)
    return guard_padding(tagged, sampling.rows_per_unit)


def _from_generator(one_epoch, signature, at_once):
    """As `tf.data.Dataset.from_generator`, of which it asks for `at_once` batches, or fewer."""
    at_once = min(at_once, _AT_ONCE)
    if at_once <= 1:
        return tf.data.Dataset.from_generator(ended_at_exit(one_epoch), output_signature=signature)

    def several_at_once():
        batches = one_epoch()
        while several := list(itertools.islice(batches, at_once)):
            yield tf.nest.map_structure(lambda *parts: np.stack(parts), *several)

    signature = tf.nest.map_structure(lambda s: tf.TensorSpec((None, *s.shape), s.dtype), signature)
    several = tf.data.Dataset.from_generator(
        ended_at_exit(several_at_once), output_signature=signature
    )
    return several.unbatch()
