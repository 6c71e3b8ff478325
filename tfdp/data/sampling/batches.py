"""From indices drawn in numpy to a `tf.data.Dataset` of padded, static batches."""

import itertools
import time

import numpy as np
import tensorflow as tf

from tfdp.data.provenance.dataset_tags import tag
from tfdp.data.provenance.padding_guard import guard_padding
from tfdp.data.sampling.arguments import check_rows_of_persons
from tfdp.data.sampling.exits import ended_at_exit

# What is read and goes from Python to TensorFlow at once: as many batches as take so many seconds,
# so that no step waits long for batches after its own, of so many bytes at most. One crossing takes
# 0.4 ms, and a call of a source for many records is shorter than several for a few.
_AT_ONCE, _SECONDS_AT_ONCE, _BYTES_AT_ONCE = 16, 0.06, 1 << 22


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

    Raises:
        ValueError: if the persons of a batch take too many rows.
    """

    if persons is not None:
        check_rows_of_persons(sampling.max_batch_size, sampling.max_records_per_unit)

    def one_epoch():
        generator = None if persons is None else source.fresh()
        for chosen in draw_epoch():
            if persons is None:
                yield chosen, np.arange(len(chosen))
            else:
                yield persons.rows(generator, chosen)

    return dataset_of_rows(records, sampling, one_epoch)


def dataset_of_rows(records, sampling, one_epoch):
    """As `dataset_of_batches`, of records that are in places of their own.

    Args:
        records, sampling: as for `dataset_of_batches`.
        one_epoch: function without arguments that returns an iterable of pairs: indices of records,
            and the rows of the batch that they take. The other rows have weight 0.
    """
    dataset = _batches(records, one_epoch, sampling.rows)
    steps = tf.data.experimental.assert_cardinality(sampling.steps_per_epoch)
    tagged = tag(dataset.apply(steps).prefetch(2), sampling, records.origin)
    return guard_padding(tagged, sampling.rows_per_unit)


def _batches(records, one_epoch, capacity):
    """The batches of what `one_epoch()` gives: (indices of records, the rows that they take)."""
    signature = records.signature(capacity)
    most = min(_AT_ONCE, _batches_of_bytes(signature))

    def several_at_once():
        yield from _windows(records, one_epoch(), capacity, most)

    def one_by_one():
        for batches in several_at_once():
            yield tf.nest.map_structure(lambda array: array[0], batches)

    if most <= 1:
        return tf.data.Dataset.from_generator(ended_at_exit(one_by_one), output_signature=signature)
    signature = tf.nest.map_structure(lambda s: tf.TensorSpec((None, *s.shape), s.dtype), signature)
    several = tf.data.Dataset.from_generator(
        ended_at_exit(several_at_once), output_signature=signature
    )
    # While the batches that were read together are trained on, the next ones are read.
    return several.prefetch(1).unbatch()


def _windows(records, draws, capacity, most):
    """Arrays (at most `most`, capacity, ...), each when the next records have been asked for."""
    following = _drawn(records, draws, 1)
    while several := following:
        start = time.monotonic()
        batches = _together(records, several, capacity)
        seconds = (time.monotonic() - start) / len(several)
        at_once = max(1, int(min(most, _SECONDS_AT_ONCE / max(seconds, 1e-9))))
        following = _drawn(records, draws, at_once)
        yield batches


def _drawn(records, draws, count):
    """The next draws, at most `count`, whose records a disk may begin to read."""
    several = list(itertools.islice(draws, count))
    if several:
        records.will_read(np.concatenate([chosen for chosen, _ in several]))
    return several


def _batches_of_bytes(signature):
    """How many batches have `_BYTES_AT_ONCE`; 0 for strings, whose size nobody knows."""
    specs = tf.nest.flatten(signature)
    if any(spec.dtype == tf.string for spec in specs):
        return 0
    return _BYTES_AT_ONCE // sum(spec.shape.num_elements() * spec.dtype.size for spec in specs)


def _together(records, several, capacity):
    """Arrays (number of batches, capacity, ...)."""
    chosen = np.concatenate([chosen for chosen, _ in several])
    places = [places + capacity * k for k, (_, places) in enumerate(several)]
    rows = records.batch(chosen, capacity * len(several), np.concatenate(places))
    return tf.nest.map_structure(
        lambda array: array.reshape(len(several), capacity, *array.shape[1:]), rows
    )
