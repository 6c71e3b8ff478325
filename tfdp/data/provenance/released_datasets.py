"""Datasets made of released data, which are private already: anything may be done with them."""

import tensorflow as tf

from tfdp._compat.tensorflow import inputs_of

_ATTRIBUTE = "_tfdp_release"

# Transformations of one dataset, whose functions see its elements and nothing else (unless they
# close over other data, which the statement says was not checked).
_OF_ONE = frozenset(
    {
        "BatchDataset", "CacheDataset", "MapDataset", "OptionsDataset", "ParallelBatchDataset",
        "ParallelMapDataset", "PrefetchDataset", "RepeatDataset", "ShuffleDataset", "SkipDataset",
        "TakeDataset", "UnbatchDataset", "AssertCardinalityDataset",
    }
)  # fmt: skip


def tag_release(dataset, origin):
    """Marks a dataset as made of a release, with its `Origin`; returns the dataset."""
    setattr(dataset, _ATTRIBUTE, origin)
    return dataset


def is_release(dataset):
    """Whether a dataset is a release's own, with nothing done to it since."""
    return getattr(dataset, _ATTRIBUTE, None) is not None


def released_by(dataset):
    """The `Origin` of a dataset that is made of a release and of nothing else, or None.

    Args:
        dataset: anything. Only a `tf.data.Dataset` that descends from a release by
            transformations of one dataset is made of released data.
    """
    while isinstance(dataset, tf.data.Dataset):
        origin = getattr(dataset, _ATTRIBUTE, None)
        if origin is not None:
            return origin
        if type(dataset).__name__.lstrip("_") not in _OF_ONE:
            return None
        (dataset,) = inputs_of(dataset)
    return None
