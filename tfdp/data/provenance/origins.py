"""Where data come from: the releases that they were made with, carried by arrays and datasets."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Mapping

import keras
import numpy as np
import tensorflow as tf

#: Attribute of a dataset of batches: the `Origin` of their records.
ORIGIN = "_tfdp_origin"

# Values of lists that know no origin, and are not looked at one by one.
_PLAIN = (int, float, complex, str, bytes, np.generic, type(None))


def _are_plain(values):
    """Whether none of the values of a list, or of a list of lists, can know an origin."""
    kinds = set(map(type, values))
    if kinds and kinds <= {list, tuple}:
        kinds = set(map(type, itertools.chain.from_iterable(values)))
    return all(kind is np.ndarray or issubclass(kind, _PLAIN) for kind in kinds)


@dataclasses.dataclass(frozen=True)
class Origin:
    """Where the records of a dataset come from.

    Args:
        releases: `LedgerEntry` tuple of the private releases that the records were made with.
        assumptions: sentences about what was taken to be public in their making.
        read: (variable, `ChargeHistory`) tuple of the charged weights that functions of a dataset
            read; arrays do not know them.
    """

    releases: tuple = ()
    assumptions: tuple = ()
    read: tuple = ()

    def __bool__(self):
        return bool(self.releases or self.assumptions)

    @classmethod
    def of(cls, data):
        """The origin that what a user handed over carries, or arrays in it.

        Whatever takes data asks here, once, with all of its arguments that hold some.

        Args:
            data: anything: an array, a release, a `Sequences`, a dataset, or a nesting of them.
        """
        if isinstance(data, (tf.data.Dataset, tf.distribute.DistributedDataset)):
            return getattr(data, ORIGIN, cls())
        found, pending = [], [data]
        while pending:
            one = pending.pop()
            # Of a release it is what its numbers cost.
            own = getattr(one, "carried", getattr(one, "origin", None))
            if isinstance(own, cls):
                found.insert(0, own)
            if isinstance(one, Mapping):
                pending += one.values()
            elif isinstance(one, (list, tuple)) and not _are_plain(one):
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
        read = {id(variable): (variable, held) for one in origins for variable, held in one.read}
        return cls(tuple(releases), tuple(assumptions), tuple(read.values()))

    def to_dict(self):
        """JSON-able values, without `read`."""
        releases = [entry.to_dict() for entry in self.releases]
        return {"releases": releases, "assumptions": list(self.assumptions)}

    @classmethod
    def from_dict(cls, encoded):
        """The origin that `to_dict` gave these values for; without any, one that knows nothing."""
        from tfdp.accounting import LedgerEntry  # loads accountants

        releases = map(LedgerEntry.from_dict, encoded.get("releases", ()))
        return cls(tuple(releases), tuple(encoded.get("assumptions", ())))

    def on(self, array):
        """An array with this origin beside its own; the same array where there is none."""
        origin = dataclasses.replace(Origin.all_of([Origin.of(array), self]), read=())
        return OriginArray.of(array, origin) if origin else np.asarray(array)


# Functions of numpy that write into their first argument.
_WRITING = (np.copyto, np.put, np.place, np.putmask, np.fill_diagonal)


@keras.saving.register_keras_serializable(package="tfdp")
class OriginArray(np.ndarray):
    """An array that knows where it comes from, as do slices, copies and what numpy makes of it.

    Single numbers of it are arrays without axes. `np.asarray`, `np.array`, `np.ascontiguousarray`,
    `np.fromiter`, `np.full`, a Generator and other libraries copy the numbers alone, and so do
    `float`, `item` and `tolist`, and an index of a plain array. A plain array that one is written
    into (`plain[:] = `, `out=plain`) does not know it; `plain *= ` gives one that does. Nor does an
    array whose view is written into, or what is read or written by `flat` and the method `put`.
    """

    origin = Origin()
    __array_priority__ = 20.0  # `plain.dot` returns one, too; above that of masked arrays

    @classmethod
    def of(cls, array, origin):
        """The array with an `Origin`."""
        made = np.asarray(array).view(cls)
        made.origin = origin
        return made

    def __array_finalize__(self, made_from):
        self.origin = getattr(made_from, "origin", Origin())

    def __array_ufunc__(self, ufunc, method, *inputs, out=(), **kwargs):
        if any(isinstance(one, np.ma.MaskedArray) for one in (*inputs, *out)):
            _refuse_mask()
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

    def __getitem__(self, key):
        made = super().__getitem__(key)
        if not isinstance(key, OriginArray | tuple):
            return made if isinstance(made, OriginArray) else _carrying(made, self.origin)
        return _carrying(made, Origin.of([self, key]))

    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        if isinstance(value, OriginArray):
            _written(self, value.origin)
        elif isinstance(value, list | tuple):
            _written(self, Origin.of(value))

    def dot(self, b, out=None):
        """As `np.dot`."""
        return np.dot(self, b) if out is None else np.dot(self, b, out)

    def __hash__(self):
        return hash(self.item())  # refused, as for any array, where it has several numbers

    def __round__(self, digits=None):
        rounded = np.round(self, digits or 0)
        return rounded if digits is not None else rounded.astype(int)

    @property
    def _optinfo(self):
        _refuse_mask()  # numpy asks for it where it puts a mask on an array

    def __reduce__(self):
        make, arguments, state = super().__reduce__()
        return make, arguments, (state, self.origin)

    def __setstate__(self, state):
        state, self.origin = state
        super().__setstate__(state)

    def get_config(self):
        """For models that hold one, in Keras' files: of the types that plain arrays may have."""
        dtype = keras.backend.standardize_dtype(self.dtype)
        return {"value": self.tolist(), "dtype": dtype, "origin": self.origin.to_dict()}

    @classmethod
    def from_config(cls, config):
        """The array of a `get_config`."""
        made = np.array(config["value"], config["dtype"])
        return cls.of(made, Origin.from_dict(config["origin"]))


def _refuse_mask():
    raise ValueError(
        "Arrays that carry the charge of a release cannot be masked, because results that numpy "
        "computes from masked arrays lose it. Fill masked values first, `masked.filled(0)`, or "
        "multiply by weights of 0 and 1. Received: an array with an origin, for np.ma"
    )


def _carrying_method(name):
    of_ndarray = getattr(np.ndarray, name)

    @functools.wraps(of_ndarray)
    def method(self, *args, **kwargs):
        made = of_ndarray(self, *args, **kwargs)
        return _carrying(made, Origin.of([self, args, kwargs]))

    return method


# Methods whose results numpy makes plain, where it does not ask `__array_ufunc__`.
for _name in ("argmax", "argmin", "choose", "nonzero", "searchsorted", "take", "trace"):
    setattr(OriginArray, _name, _carrying_method(_name))


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
    return OriginArray.of(made, origin) if isinstance(made, np.ndarray | np.generic) else made
