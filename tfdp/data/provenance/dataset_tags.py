"""How batches were drawn, carried by the dataset itself to whoever accounts for them."""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from tfdp._compat.tensorflow import ancestors, captured_by, hides_others, inputs_of
from tfdp.accounting import Sampling
from tfdp.accounting.charges import participant
from tfdp.data.provenance.origins import ORIGIN, Origin
from tfdp.data.provenance.released_datasets import is_release, released_by
from tfdp.data.provenance.variable_values import histories_read, layers_of_releases_read

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

_WAY_OUT = (
    "Declare only data that tfdp did not draw. Apply operations to the records before sampling, "
    "and pass `fit` the dataset that the sampler returned; only `map`, `prefetch`, `take` and "
    "`with_options` may follow."
)


def tag(dataset, sampling, origin=None):
    """Attaches how it was drawn, and where it comes from, to a dataset; returns the dataset.

    Args:
        dataset: `tf.data.Dataset` of batches.
        sampling: `tfdp.accounting.Sampling`, how they are drawn.
        origin: the `Origin` of the records.
    """
    setattr(dataset, _ATTRIBUTE, sampling)
    setattr(dataset, ORIGIN, Origin() if origin is None else origin)
    return dataset


def releases_of(dataset):
    """`LedgerEntry` tuple of the releases that the records of a dataset were made with."""
    return origin_of(dataset).releases


def assumptions_of(dataset):
    """Sentences about what was taken to be public in the making of the records of a dataset."""
    return origin_of(dataset).assumptions


def origin_of(dataset):
    """The `Origin` of the records of a dataset, whatever was done to it since, or of arrays."""
    found = [_of_functions(dataset)]
    for made_from in walk(dataset):
        if getattr(made_from, _ATTRIBUTE, None) is not None:
            return Origin.all_of([*found, getattr(made_from, ORIGIN, Origin())])
    # How batches are drawn is not known any more; what their records cost is.
    found.append(Origin.of(dataset))
    if isinstance(dataset, tf.data.Dataset):
        for made_from in ancestors(dataset):
            found.append(released_by(made_from) if is_release(made_from) else Origin.of(made_from))
    return Origin.all_of(found)


def _of_functions(dataset):
    """The `Origin` of what a dataset's functions read: charged weights, layers made of releases.

    Of arrays, none are known.
    """
    if not isinstance(dataset, tf.data.Dataset):
        return Origin()
    read = {id(tensor) for made_from in ancestors(dataset) for tensor in captured_by(made_from)}
    layers = layers_of_releases_read(read)
    return Origin(
        tuple(participant.releases_of(layers)),
        participant.assumptions_of(layers),
        tuple(histories_read(read)),
    )


def refuse_drawn(name, dataset, way_out):
    """Refuses a dataset that is made of batches which were drawn or declared before.

    `cache` and `repeat` give the same draws again, `skip` and `shuffle` others than were said: what
    a draw was is true of the batches alone, and of nothing that is made of them.

    Args:
        name: of the argument.
        dataset: a `tf.data.Dataset`.
        way_out: a sentence that says what to do instead.

    Raises:
        ValueError: if it is, or if it cannot be followed whether it is.
    """
    for made_from in ancestors(dataset):
        drawn = getattr(made_from, _ATTRIBUTE, None)
        if drawn is not None:
            raise ValueError(
                f"Argument `{name}` is made from batches that tfdp drew already, or that were "
                f"declared already; later operations cannot change how they were drawn. {way_out} "
                f"Received: a dataset made of {drawn.kind} batches, {dataset}"
            )
        if hides_others(made_from):
            raise ValueError(
                f"Argument `{name}` uses another dataset or an iterator inside a function "
                "(as `flat_map` does), or holds datasets as elements. tfdp then cannot follow how "
                "its batches were drawn and which charges its records carry. Create that dataset "
                f"inside the function, or join datasets by their methods. {way_out} Received: "
                f"{dataset}, made by a {type(made_from).__name__}"
            )


def sampling_of(dataset: tf.data.Dataset) -> Sampling:
    """How the batches of `dataset` were drawn, or `None` if that is unknown.

    The tag is on the dataset itself, or on the dataset from which it was made by only `map`,
    `prefetch`, `with_options`, `take` and `assert_cardinality`. Any other transformation hides it:
    `cache` and `repeat` would replay draws, and `shuffle`, `filter`, `batch`, `unbatch` and `zip`
    make other batches. Apply those before sampling, or use `declare_sampling`.

    Args:
        dataset: any object; one that is not a `tf.data.Dataset` has no known sampling.

    Returns:
        A `tfdp.accounting.Sampling`, or `None`. Its `steps_per_epoch` is that of `dataset`, which
        is smaller after `take`.
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
        (dataset,) = inputs_of(dataset)


def operations_since(dataset):
    """The datasets that were made, one of another, from the one that was sampled; newest first."""
    found = []
    for made_from in walk(dataset):
        if is_as_sampled(made_from):
            break
        found.append(made_from)
    return found


def _with_steps_of(dataset, sampling):
    # After `take`, passes are shorter: shuffled records come back after fewer steps, and the
    # number of their appearances is what is charged.
    steps = int(dataset.cardinality())
    if steps > 0:
        longest = sampling.steps_per_epoch
        return dataclasses.replace(sampling, steps_per_epoch=min(steps, longest or steps))
    if sampling.rule.charged_by == "step" or _has_all_batches(dataset):
        return sampling
    return dataclasses.replace(sampling, steps_per_epoch=None)


def _check_pass(dataset, sampling):
    """Refuses a dataset that is too long for one pass over shuffled records."""
    longest = -(-sampling.num_examples // max(1, int(sampling.expected_batch_size)))
    count = int(dataset.cardinality())
    too_long = count > longest or count == tf.data.INFINITE_CARDINALITY
    if sampling.rule.charged_by == "pass" and too_long:
        raise ValueError(
            "Argument `dataset` must return each record once, in one pass. Remove `repeat`, "
            "and give `fit` the number of epochs. Received: a dataset of "
            f"{'endless' if count < 0 else count} batches, but {longest} batches hold all records"
        )


def _has_all_batches(dataset):
    """Whether no `take` stands between a dataset and the one that was sampled."""
    for made_from in walk(dataset):
        if getattr(made_from, _ATTRIBUTE, None) is not None:
            return True
        if type(made_from).__name__ == "_TakeDataset":
            return False
    return True


def is_as_sampled(dataset):
    """Whether a dataset is the one that was sampled, with nothing done to it since."""
    return getattr(dataset, _ATTRIBUTE, None) is not None


def declare_sampling(
    dataset: tf.data.Dataset, kind: str, num_examples: int, expected_batch_size: float
) -> tf.data.Dataset:
    """States how your own dataset draws its batches.

    It is for data that tfdp did not draw, and verifies nothing: the privacy statement lists the
    declaration as assumed. Batches of tfdp's samplers know how they were drawn. Results of `cache`,
    `repeat`, `skip`, `zip` and similar operations on them cannot be declared.

    Args:
        dataset: `tf.data.Dataset` of batches `(x, y)` or `(x, y, sample_weight)`.
        kind: `"poisson"` (every batch holds each record independently with probability
            expected_batch_size / num_examples) or `"shuffled"` (each record once an epoch).
        num_examples: number of records n.
        expected_batch_size: mean number of records of a batch.

    Returns:
        The same dataset, tagged as `"declared_poisson"` or `"declared_shuffled"`.

    Raises:
        ValueError: `dataset` is not a `tf.data.Dataset`, or is made from batches that were drawn or
            declared before; or `kind` is unknown.
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
    refuse_drawn("dataset", dataset, _WAY_OUT)
    sampling = Sampling(
        kind=f"declared_{kind}",
        num_examples=num_examples,
        expected_batch_size=expected_batch_size,
    )
    _check_pass(dataset, sampling)
    return tag(dataset, sampling, origin_of(dataset))
