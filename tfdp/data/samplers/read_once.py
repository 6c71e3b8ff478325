"""Batches of a stream that is read once, and whose end nobody knows."""

import tensorflow as tf

from tfdp.data.provenance.dataset_tags import assumptions_of, releases_of, tag
from tfdp.data.provenance.origins import Origin
from tfdp.data.provenance.padding_guard import guard_padding
from tfdp.data.sources.whole_dataset import ITS_OWN, check_records


def batches_read_once(dataset, sampling):
    """Batches of a dataset's records as they come, none of them kept.

    Args:
        dataset: `tf.data.Dataset` of single records, (x, y) or (x, y, sample_weight).
        sampling: their `Sampling`; n is a bound, beyond which records are left out.

    Returns:
        Tagged `tf.data.Dataset` of `(x, y, sample_weight)`, without a known cardinality.

    Raises:
        ValueError: for anything but single records, each once.
    """
    check_records(dataset)
    size, bound = sampling.max_batch_size, sampling.num_examples

    def weighed(x, y, sample_weight=1.0):
        return x, y, tf.cast(sample_weight, tf.float32)

    def padded(*batch):
        return tf.nest.map_structure(lambda part: _with_rows(part, size), batch)

    batches = dataset.take(bound).map(weighed).batch(size).map(padded)
    origin = Origin(
        releases_of(dataset),
        (
            *assumptions_of(dataset), ITS_OWN,
            f"the bound of {bound} records of the stream is public; those beyond it are left out",
        ),
    )  # fmt: skip
    return guard_padding(tag(batches.prefetch(2), sampling, origin), sampling.rows_per_unit)


def _with_rows(part, size):
    """A part of a batch, rows of zeros added up to a size."""
    paddings = [[0, size - tf.shape(part)[0]]] + [[0, 0]] * (part.shape.rank - 1)
    return tf.ensure_shape(tf.pad(part, paddings), [size, *part.shape[1:]])
