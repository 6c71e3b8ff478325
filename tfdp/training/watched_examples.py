"""A few examples of the data that `fit` or `train_on_batch` was given, as eager tensors."""

import itertools

import keras
import numpy as np
import tensorflow as tf

from tfdp.clipping.losses import example_mask_of
from tfdp.distribution.host_selection import unpack

# Of how many examples, and of how many batches, those that are looked at are chosen.
_POOL = 24
_BATCHES = 5


def is_dataset(x):
    return isinstance(x, (tf.data.Dataset, tf.distribute.DistributedDataset))


def examples_to_watch(x, y, sample_weight, wanted):
    """Examples of many kinds, then at most one row of padding.

    Args:
        x, y, sample_weight: a dataset, or arrays.
        wanted: number of examples from which on no further batch is looked at.

    Returns:
        (x, y, sample_weight) as eager tensors, or None if there are fewer than two examples.
    """
    if is_dataset(x):
        batches = (_local(batch) for batch in itertools.islice(x, _BATCHES))
        batches = (keras.utils.unpack_x_y_sample_weight(batch) for batch in batches)
    elif tf.nest.flatten(x)[0].shape[0] == 0:
        return None
    else:
        batches = [tuple(_some(t) for t in (x, y, sample_weight))]
    best, most = None, 1
    for x, y, weight in batches:
        x, _ = unpack(x)
        example_mask = example_mask_of(weight, _length(tf.nest.flatten(x)[0])).numpy()
        if example_mask.sum() > most:
            best, most = (x, y, weight, example_mask), example_mask.sum()
        if most >= wanted:
            break
    if best is None:
        return None
    *data, example_mask = best
    chosen = np.concatenate(
        [_varied(data[1], np.flatnonzero(example_mask)), np.flatnonzero(~example_mask)[:1]]
    )
    return tuple(
        tf.nest.map_structure(lambda t: None if t is None else tf.gather(t, chosen), part)
        for part in data
    )


def first_batch(dataset):
    """A batch of a dataset; the first replica's part of it, if the dataset is distributed."""
    return _local(next(iter(dataset)))


def _local(batch):
    return tf.nest.map_structure(
        lambda v: v.values[0] if isinstance(v, tf.distribute.DistributedValues) else v, batch
    )


def _varied(y, rows):
    """At most `_POOL` of the rows: of the largest target, of the smallest, others at random."""
    generator = np.random.default_rng()
    rows = generator.permutation(rows)
    labels = [t for t in tf.nest.flatten(y) if isinstance(t, tf.Tensor)]
    if labels:
        first = labels[0].numpy().reshape(len(labels[0]), -1)
        rows = rows[np.argsort(first[rows, 0], kind="stable")] if first.shape[1] else rows
    places = np.unique(np.linspace(0, len(rows) - 1, _POOL).astype(int))
    rows = rows[places]
    ends = rows[[-1, 0]] if len(rows) > 1 else rows
    return np.concatenate([ends, generator.permutation(rows[1:-1])])


def _some(structure):
    """Rows of arrays, at most a few hundred that follow each other, of Keras' precision."""

    def convert(t):
        if t is None:
            return None
        start = max(0, (_length(t) - 512) // 2)
        t = t[start : start + 512]
        t = t if tf.is_tensor(t) else tf.convert_to_tensor(np.asarray(t))
        return tf.cast(t, keras.config.floatx()) if t.dtype.is_floating else t

    return tf.nest.map_structure(convert, structure)


def _length(t):
    return int(t.nrows()) if isinstance(t, tf.RaggedTensor) else t.shape[0]
