"""How batches were drawn, carried by the dataset itself to whoever accounts for them."""

import dataclasses

import tensorflow as tf

from tfdp.accounting import Sampling

_ATTRIBUTE = "_tfdp_sampling"

# Transformations that hand on every batch they get, once, or stop early. `cache` and `repeat`
# replay draws; `shuffle`, `filter`, `batch`, `unbatch`, `rebatch` and `zip` make other batches.
_BATCH_PRESERVING = frozenset(
    {
        "_AssertCardinalityDataset",
        "_MapDataset",
        "_OptionsDataset",
        "_ParallelMapDataset",
        "_PrefetchDataset",
        "_TakeDataset",
    }
)


def tag(dataset, sampling):
    """Attaches `sampling` to `dataset`, and returns the dataset.

    Args:
        dataset: `tf.data.Dataset` of batches.
        sampling: `tfdp.accounting.Sampling`, how they are drawn.
    """
    setattr(dataset, _ATTRIBUTE, sampling)
    return dataset


def sampling_of(dataset):
    """How the batches of `dataset` were drawn, or `None` where that is not known.

    The tag is found on the dataset itself, or on the dataset it was made from by `map`,
    `prefetch`, `with_options`, `take` and `assert_cardinality` alone. Any other transformation
    hides it: `cache` and `repeat` would replay draws, `shuffle`, `filter`, `batch`, `unbatch` and
    `zip` make other batches. Put those before the batches are drawn, or say what you know with
    `declare_sampling`.

    Args:
        dataset: anything; what is not a `tf.data.Dataset` has no known sampling.

    Returns:
        A `tfdp.accounting.Sampling`, or `None`. Its `steps_per_epoch` is that of `dataset`: fewer
        than were drawn after `take`.
    """
    if isinstance(dataset, tf.distribute.DistributedDataset):
        return getattr(dataset, _ATTRIBUTE, None)
    for made_from in walk(dataset):
        sampling = getattr(made_from, _ATTRIBUTE, None)
        if sampling is not None:
            return _with_steps_of(dataset, sampling)
    return None


def walk(dataset):
    """A dataset, and those that it was made from without making other batches, newest first."""
    while isinstance(dataset, tf.data.Dataset):
        yield dataset
        if type(dataset).__name__ not in _BATCH_PRESERVING:
            return
        # TensorFlow has no public way from a dataset to the one it was made from; this line is
        # the only one that uses `_inputs`, and the names above the only ones of private classes.
        (dataset,) = dataset._inputs()


def _with_steps_of(dataset, sampling):
    # After `take`, passes are shorter: shuffled records come back after fewer steps, and the
    # number of their appearances is what is charged.
    longest = sampling.steps_per_epoch
    if longest is None:
        longest = max(1, int(sampling.num_examples // sampling.expected_batch_size))
    steps = int(dataset.cardinality())
    if 0 < steps < longest:
        return dataclasses.replace(sampling, steps_per_epoch=steps)
    return sampling


def is_as_sampled(dataset):
    """Whether a dataset is the one that was sampled, with nothing done to it since."""
    return getattr(dataset, _ATTRIBUTE, None) is not None


def declare_sampling(dataset, kind, num_examples, expected_batch_size):
    """States how a dataset of the user's own draws its batches.

    Nothing is verified: the privacy statement prints that the user asserted it.

    Args:
        dataset: `tf.data.Dataset` of batches `(x, y)` or `(x, y, sample_weight)`.
        kind: `"poisson"` (every batch holds each record independently with probability
            expected_batch_size / num_examples) or `"shuffled"` (each record once an epoch).
        num_examples: number of records n.
        expected_batch_size: mean number of records of a batch.

    Returns:
        The same dataset, tagged as `"asserted_poisson"` or `"asserted_shuffled"`.

    Raises:
        ValueError: `dataset` is not a `tf.data.Dataset`, or `kind` is neither of the two.
    """
    if not isinstance(dataset, tf.data.Dataset):
        raise ValueError(
            "Argument `dataset` must be a `tf.data.Dataset`; wrap a Python generator with "
            f"`tf.data.Dataset.from_generator`. Received: dataset of type {type(dataset).__name__}"
        )
    if kind not in ("poisson", "shuffled"):
        raise ValueError(
            f"Argument `kind` must be 'poisson' or 'shuffled'. Received: kind={kind!r}"
        )
    sampling = Sampling(
        kind=f"asserted_{kind}",
        num_examples=num_examples,
        expected_batch_size=expected_batch_size,
    )
    return tag(dataset, sampling)
