"""Where data come from: the releases that they were made with, carried by arrays and datasets."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import tensorflow as tf

#: Attribute of a dataset of batches: the `Origin` of their records.
ORIGIN = "_tfdp_origin"

# Values of lists that know no origin, and are not looked at one by one.
_PLAIN = (int, float, complex, str, bytes, np.generic, type(None))


@dataclasses.dataclass(frozen=True)
class Origin:
    """Where the records of a dataset come from.

    Args:
        releases: `LedgerEntry` tuple of the private releases that the records were made with.
        assumptions: sentences about what was taken to be public in their making.
    """

    releases: tuple = ()
    assumptions: tuple = ()

    def __bool__(self):
        return bool(self.releases or self.assumptions)

    @classmethod
    def of(cls, data):
        """The origin that `data` (a `Sequences`, say), or arrays in it, carry."""
        if isinstance(data, (tf.data.Dataset, tf.distribute.DistributedDataset)):
            return getattr(data, ORIGIN, cls())
        found, pending = [], [data]
        while pending:
            one = pending.pop()
            own = getattr(one, "origin", None)
            if isinstance(own, cls):
                found.insert(0, own)
            if isinstance(one, Mapping):
                pending += one.values()
            elif isinstance(one, (list, tuple)) and not all(
                issubclass(kind, _PLAIN) for kind in set(map(type, one))
            ):
                pending += one
        return cls.all_of(found)

    @classmethod
    def all_of(cls, origins):
        """The origin of what was made of several: each release and assumption once."""
        releases = []
        for entry in (entry for origin in origins for entry in origin.releases):
            if entry not in releases:
                releases.append(entry)
        assumptions = dict.fromkeys(text for origin in origins for text in origin.assumptions)
        return cls(tuple(releases), tuple(assumptions))

    def on(self, array):
        """An array with this origin beside its own; the same array where there is none."""
        origin = Origin.all_of([Origin.of(array), self])
        return OriginArray.of(array, origin) if origin else np.asarray(array)


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
