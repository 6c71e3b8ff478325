"""A few examples of the data that `fit` or `train_on_batch` was given, as eager tensors."""

import itertools

import keras
import numpy as np
import tensorflow as tf

from tfdp.clipping.losses import example_mask_of
from tfdp.distribution.host_selection import unpack

_BATCHES = 5
_ROWS = 512


def is_dataset(x):
    return isinstance(x, (tf.data.Dataset, tf.distribute.DistributedDataset))


def first_batch(dataset):
    """A batch of a dataset; the first replica's part of it, if the dataset is distributed."""
    return _local(next(iter(dataset)))


def first_rows(x, y, sample_weight, count):
    """(x, y, sample_weight) of `count` examples, some of them several times if there are fewer.

    Returns:
        None if the first batches hold no examples.
    """
    if is_dataset(x):
        batches = (_local(batch) for batch in itertools.islice(x, _BATCHES))
        batches = (keras.utils.unpack_x_y_sample_weight(batch) for batch in batches)
    else:
        batches = [tf.nest.map_structure(as_batch, (x, y, sample_weight))]
    for x, y, weight in batches:
        x, _ = unpack(x)
        first = tf.nest.flatten(x)[0]
        size = int(first.nrows()) if isinstance(first, tf.RaggedTensor) else first.shape[0]
        present = np.flatnonzero(example_mask_of(weight, size))
        if len(present):
            return _rows((x, y, weight), np.resize(present, count))
    return None


def _rows(structure, chosen):
    return tf.nest.map_structure(lambda t: None if t is None else tf.gather(t, chosen), structure)


def as_batch(t, rows=_ROWS):
    """The first rows of an array, as Keras hands them to a step; None stays None."""
    if t is None:
        return None
    t = t[:rows]
    t = t if tf.is_tensor(t) else tf.convert_to_tensor(np.asarray(t))
    return tf.cast(t, keras.config.floatx()) if t.dtype.is_floating else t


def _local(batch):
    return tf.nest.map_structure(
        lambda v: v.values[0] if isinstance(v, tf.distribute.DistributedValues) else v, batch
    )
