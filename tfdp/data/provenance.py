"""How batches were drawn, carried by the dataset itself to whoever accounts for them."""

from __future__ import annotations

import dataclasses

import numpy as np
import tensorflow as tf

from tfdp._compat.tensorflow import inputs_of
from tfdp.accounting import Sampling
from tfdp.data.releases import is_release, released_by

_ATTRIBUTE = "_tfdp_sampling"
_ORIGIN = "_tfdp_origin"

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


@dataclasses.dataclass(frozen=True)
class Origin:
    """Where the records of a dataset come from.

    Args:
        releases: `LedgerEntry` tuple of the private releases that the records were made with.
        assumptions: sentences about what was taken to be public in their making.
    """

    releases: tuple = ()
    assumptions: tuple = ()

    @classmethod
    def of(cls, data):
        """The origin that `data` (a `Sequences`, say), or arrays in it, carry."""
        if isinstance(data, (tf.data.Dataset, tf.distribute.DistributedDataset)):
            return getattr(data, _ORIGIN, cls())
        own = getattr(data, "origin", None)
        # A pair that was mapped over has an empty one of its own, and arrays that know theirs.
        parts = [leaf.origin for leaf in tf.nest.flatten(data) if isinstance(leaf, OriginArray)]
        return cls.all_of([own, *parts] if isinstance(own, cls) else parts)

    @classmethod
    def all_of(cls, origins):
        """The origin of what was made of several: each release and assumption once."""
        releases = []
        for entry in (entry for origin in origins for entry in origin.releases):
            if entry not in releases:
                releases.append(entry)
        assumptions = dict.fromkeys(text for origin in origins for text in origin.assumptions)
        return cls(tuple(releases), tuple(assumptions))


# Functions of numpy that write into their first argument.
_WRITING = (np.copyto, np.put, np.place, np.putmask, np.put_along_axis, np.fill_diagonal)


class OriginArray(np.ndarray):
    """An array that knows where it comes from, as do slices, copies and what numpy makes of it.

    `np.asarray`, `np.array`, `np.ascontiguousarray`, a Generator's `permutation` and other
    libraries copy the numbers alone, and so does an index. A plain array that one is written into
    (`plain[:] = `, `out=plain`) does not know it; `plain *= ` gives one that does. Nor does an
    array whose view is written into, or what is written by `flat` and the method `put`.
    """

    origin = Origin()
    __array_priority__ = 1.0  # `plain.dot` returns one, too

    @classmethod
    def of(cls, array, origin):
        """The array with an `Origin`."""
        made = np.asarray(array).view(cls)
        made.origin = origin
        return made

    def __array_finalize__(self, made_from):
        self.origin = getattr(made_from, "origin", Origin())

    def __array_ufunc__(self, ufunc, method, *inputs, out=(), **kwargs):
        origin = Origin.of([*inputs, *kwargs.values()])
        plain = {"out": _plain(out)} if out else {}
        written = inputs[:1] if method == "at" else out
        inputs, kwargs = _plain(inputs), {name: _plain(value) for name, value in kwargs.items()}
        made = getattr(ufunc, method)(*inputs, **plain, **kwargs)
        if not written:
            return _carrying(made, origin)
        written = tuple(_written(array, origin) for array in written)
        return None if method == "at" else written[0] if len(written) == 1 else written

    def __array_function__(self, function, types, args, kwargs):
        made = super().__array_function__(function, types, args, kwargs)
        origin = Origin.of([args, kwargs])
        if function in _WRITING:
            _written(args[0] if args else next(iter(kwargs.values())), origin)
        return _carrying(made, origin)

    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        if isinstance(value, OriginArray):
            _written(self, value.origin)
        elif isinstance(value, list | tuple):
            _written(self, Origin.of(value))

    def dot(self, b, out=None):
        """As `np.dot`."""
        return np.dot(self, b) if out is None else np.dot(self, b, out)

    def __reduce__(self):
        make, arguments, state = super().__reduce__()
        return make, arguments, (state, self.origin)

    def __setstate__(self, state):
        state, self.origin = state
        super().__setstate__(state)


def _plain(value):
    """Arrays without their origin, in tuples, too."""
    if isinstance(value, tuple):
        return tuple(_plain(part) for part in value)
    return value.view(np.ndarray) if isinstance(value, OriginArray) else value


def _written(array, origin):
    """What an operation wrote into, with the `Origin` of what was written beside its own."""
    if isinstance(array, OriginArray):
        array.origin = Origin.all_of([array.origin, origin])
    elif type(array) is np.ndarray:  # an np.memmap stays one
        return OriginArray.of(array, origin)
    return array


def _carrying(made, origin):
    """What a function returned, its arrays with an `Origin`."""
    if isinstance(made, (tuple, list)):
        parts = [_carrying(part, origin) for part in made]
        return type(made)(*parts) if hasattr(made, "_fields") else type(made)(parts)
    return OriginArray.of(made, origin) if isinstance(made, np.ndarray) else made


def tag(dataset, sampling, origin=None):
    """Attaches how it was drawn, and where it comes from, to a dataset; returns the dataset.

    Args:
        dataset: `tf.data.Dataset` of batches.
        sampling: `tfdp.accounting.Sampling`, how they are drawn.
        origin: the `Origin` of the records.
    """
    setattr(dataset, _ATTRIBUTE, sampling)
    setattr(dataset, _ORIGIN, Origin() if origin is None else origin)
    return dataset


def releases_of(dataset):
    """`LedgerEntry` tuple of the releases that the records of a dataset were made with."""
    return _origin_of(dataset).releases


def assumptions_of(dataset):
    """Sentences about what was taken to be public in the making of the records of a dataset."""
    return _origin_of(dataset).assumptions


def _origin_of(dataset):
    for made_from in walk(dataset):
        if getattr(made_from, _ATTRIBUTE, None) is not None:
            return getattr(made_from, _ORIGIN, Origin())
    # How batches are drawn is not known any more; what their records cost is.
    found, pending = [Origin.of(dataset)], [dataset]
    while pending:
        made_from = pending.pop()
        if is_release(made_from):
            found.append(released_by(made_from))
        elif getattr(made_from, _ATTRIBUTE, None) is not None:
            found.append(getattr(made_from, _ORIGIN, Origin()))
        elif isinstance(made_from, tf.data.Dataset):
            pending += inputs_of(made_from)
    return Origin.all_of(found)


def sampling_of(dataset: tf.data.Dataset) -> Sampling:
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
        (dataset,) = inputs_of(dataset)


def _with_steps_of(dataset, sampling):
    # After `take`, passes are shorter: shuffled records come back after fewer steps, and the
    # number of their appearances is what is charged.
    steps = int(dataset.cardinality())
    if steps > 0:
        longest = sampling.steps_per_epoch
        return dataclasses.replace(sampling, steps_per_epoch=min(steps, longest or steps))
    if sampling.is_poisson or _has_all_batches(dataset):
        return sampling
    return dataclasses.replace(sampling, steps_per_epoch=None)


def _check_pass(dataset, sampling):
    """Refuses a dataset that is too long for one pass over shuffled records."""
    longest = -(-sampling.num_examples // max(1, int(sampling.expected_batch_size)))
    count = int(dataset.cardinality())
    if not sampling.is_poisson and (count > longest or count == tf.data.INFINITE_CARDINALITY):
        raise ValueError(
            "Argument `dataset` must be one pass over the records, each once: leave `repeat` out, "
            "and give `fit` the number of epochs. Received: a dataset of "
            f"{'endless' if count < 0 else count} batches, where {longest} hold all records"
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
    """States how a dataset of the user's own draws its batches.

    Nothing is verified: the privacy statement lists it among what is assumed.

    Args:
        dataset: `tf.data.Dataset` of batches `(x, y)` or `(x, y, sample_weight)`.
        kind: `"poisson"` (every batch holds each record independently with probability
            expected_batch_size / num_examples) or `"shuffled"` (each record once an epoch).
        num_examples: number of records n.
        expected_batch_size: mean number of records of a batch.

    Returns:
        The same dataset, tagged as `"declared_poisson"` or `"declared_shuffled"`.

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
    drawn = sampling_of(dataset)
    if drawn is not None:
        raise ValueError(
            "Argument `dataset` was drawn by tfdp, or declared before: what it is cannot be "
            f"declared otherwise. Received: a dataset whose batches are {drawn.kind}"
        )
    sampling = Sampling(
        kind=f"declared_{kind}",
        num_examples=num_examples,
        expected_batch_size=expected_batch_size,
    )
    _check_pass(dataset, sampling)
    return tag(dataset, sampling, _origin_of(dataset))
