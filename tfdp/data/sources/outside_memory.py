"""Records that do not fit in memory: any random-access source, of which drawn records are read."""

import threading
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from tfdp._validate import is_integer
from tfdp.data.provenance.origins import Origin
from tfdp.data.sources.array_records import ArrayRecords
from tfdp.data.sources.in_memory import Records, lists_as_tuples
from tfdp.data.sources.memmap_rows import MappedRows
from tfdp.data.sources.missing_values import NanWatch
from tfdp.data.sources.parsed_values import as_array, placed, stacked, strings_as_objects, weight_of
from tfdp.data.sources.refused_sources import refuse_other_sources
from tfdp.data.sources.whole_dataset import records_of_dataset
from tfdp.errors import PrivacyError

_COMPARED = 8  # records that a `batched` parse is compared on
# Records whose parsed values exist at once, each a few objects: more of them leave the processor's
# caches, and parsing takes twice as long.
_PARSED_AT_ONCE = 512
_BY_ITSELF = (
    "the source returns each record once, and source and `parse` compute the result for each "
    "record from that record alone"
)


def records_of(data, parse=None, privacy_ids=None):
    """What batches are cut from: `Records` in memory, or `SourceRecords` where `parse` is given.

    Args:
        data: as for `tfdp.data.poisson_batches`.
        parse: function of one record of a source, or None for arrays and datasets.
        privacy_ids: whose record each one is, by its place; or None.
    """
    if parse is not None:
        records = SourceRecords(data, parse)
    elif isinstance(data, tf.data.Dataset):
        records = records_of_dataset(data, in_order=privacy_ids is not None)
    else:
        records = Records(data)
    records.origin = Origin.all_of([records.origin, Origin.of(privacy_ids)])
    return records


def batched(parse: Callable) -> Callable:
    """Marks a `parse` of many records at once: a list of records in, arrays with as many rows out.

    Without it, tfdp calls `parse` once for each record. The result for a record must depend on that
    record alone: a batch normalised by its own mean would mix its examples. The samplers parse a
    few records together and one by one, and refuse the function if the results differ.

    ```python
    @tfdp.data.batched
    def parse(records):                                   # a list of bytes
        rows = np.frombuffer(b"".join(records), np.float32).reshape(len(records), 40)
        return rows[:, :39], rows[:, 39]

    batches = tfdp.data.poisson_batches(source, 1024, parse=parse)
    ```

    Args:
        parse: function of a list of records that returns `(x, y)` or `(x, y, sample_weight)`,
            structures of arrays whose first axis counts the records, in their order. For an
            np.memmap, and other sources whose `__getitems__` returns an array, it receives the
            array of rows.

    Returns:
        The function, for the argument `parse` of a sampler.

    Raises:
        ValueError: if `parse` is not a function.
    """
    if not callable(parse):
        raise ValueError(f"Argument `parse` must be a function. Received: parse={parse!r}")
    return _Batched(parse)


class _Batched:
    def __init__(self, parse):
        self._parse = parse

    def __call__(self, records):
        return self._parse(records)


class SourceRecords:
    """n records behind an object with `__len__` and `__getitem__`, or `__getitems__`.

    One thread reads at a time, whatever iterators there are: sources that share a file position
    between reads are as safe as any other. Records are asked for in ascending order.

    Args:
        source: the object. `source[i]` is record i; `source.__getitems__(list)`, used where there
            is one, a list of records.
        parse: function of one record that returns `(x, y)` or `(x, y, sample_weight)`, nestings of
            arrays or numbers whose shapes and dtypes are the same for every record; record 0 shows
            them. Bytes and strings become tf.string. Or one that is `batched`.

    Raises:
        ValueError: for another kind of source, one without records, or a `parse` that does not
            return such a tuple.
        PrivacyError: for a `batched` one that mixes records.
    """

    def __init__(self, source, parse):
        source = ArrayRecords.of(MappedRows.of(source))
        many, one = (hasattr(type(source), name) for name in ("__getitems__", "__getitem__"))
        if isinstance(source, (tuple, dict)) or not (many or one) or not hasattr(source, "__len__"):
            raise ValueError(
                "Argument `data` must be a random-access source if `parse` is given: an object "
                "with `__len__`, and with `__getitem__` or `__getitems__` that take integers. A "
                f"tuple of arrays needs no `parse`. Received: data of type {type(source).__name__}"
            )
        refuse_other_sources("data", source)
        if not callable(parse):
            raise ValueError(
                "Argument `parse` must be a function of one record that returns (x, y) or "
                f"(x, y, sample_weight). Received: parse={parse!r}"
            )
        size = len(source)
        if not is_integer(size) or size < 1:
            raise ValueError(
                f"Argument `data` must contain at least one record. Received: a length of {size}"
            )
        self.num_examples = int(size)
        origin = getattr(source, "origin", None)
        origin = origin if isinstance(origin, Origin) else Origin()
        self._source, self._parse, self._reads_many = source, parse, many
        self._reads_ahead = isinstance(source, MappedRows)
        self._lock = threading.Lock()
        self._is_batched = isinstance(parse, _Batched)
        parsed = self._first_parsed()
        # Before they become plain arrays. Of records of other origins, `_BY_ITSELF` is assumed.
        own = Origin.of(self._parse(self._read([0])) if self._is_batched else parsed)
        origin = Origin.all_of([origin, own])
        self.origin = Origin(origin.releases, (*origin.assumptions, _BY_ITSELF))
        weight = np.float32(1.0) if len(parsed) == 2 else parsed[2]
        first = lists_as_tuples((*parsed[:2], weight))
        self._structure = tf.nest.map_structure(lambda _: None, first)
        self._length = len(parsed)
        self._shape = tf.nest.map_structure(lambda _: 0, parsed)
        self._is_nested = any(tf.nest.is_nested(part) for part in parsed)
        leaves = [as_array(leaf) for leaf in tf.nest.flatten(first)]
        self._specs = [(leaf.shape, leaf.dtype) for leaf in leaves]
        self._num_weights = len(tf.nest.flatten(first[2]))
        self._nan = NanWatch(first)
        for i, leaf in enumerate(leaves[-self._num_weights :], -self._num_weights):
            if leaf.ndim > 1:
                raise ValueError(
                    "Argument `parse` must return sample weights that are one number, or one for "
                    "each position, or a structure of these, one for each output. Received: "
                    f"weights of shape {leaf.shape}"
                )
            self._specs[i] = (leaf.shape, np.dtype(np.float32))

    def signature(self, capacity):
        """Nested `tf.TensorSpec` of a batch of `capacity` rows."""
        specs = [tf.TensorSpec((capacity, *s), tf.as_dtype(d)) for s, d in self._specs]
        return tf.nest.pack_sequence_as(self._structure, specs)

    def will_read(self, chosen):
        """Lets a source that can read ahead begin with these records."""
        if self._reads_ahead:
            self._source.will_read(np.unique(chosen).tolist())

    def batch(self, chosen, capacity, places=None):
        """The records of indices `chosen`, and rows of zeros with weight 0; as `Records.batch`."""
        chosen = np.asarray(chosen)
        places = np.arange(len(chosen)) if places is None else places
        # Once each, though several batches at once may have drawn one: a database gives it once.
        indices, inverse = np.unique(chosen, return_inverse=True)
        with self._lock:  # until all is copied: what is read next may lie in the same memory
            columns = self._columns(indices.tolist())
            self._nan.look_at(columns)
            arrays = [placed(column, inverse, places, capacity) for column in columns]
        return tf.nest.pack_sequence_as(self._structure, arrays)

    def _read(self, indices):
        if not self._reads_many:
            return [self._source[i] for i in indices]
        found = self._source.__getitems__(indices)
        if not (isinstance(found, np.ndarray) and found.ndim):
            found = list(found)
        if len(found) != len(indices):  # never one record for all of them
            raise ValueError(
                f"The source returned {len(found)} records for {len(indices)} indices. "
                "`__getitems__` must return one record for each index, in their order."
            )
        return found

    def _first_parsed(self):
        """Record 0, parsed by itself."""
        if not self._is_batched:
            return self._parsed(self._read([0]), [0])[0]
        few = list(range(min(_COMPARED, self.num_examples)))
        together = tf.nest.flatten(self._parsed_together(few))
        for i in few:
            alone = self._parsed_together([i])
            for one, many in zip(tf.nest.flatten(alone), together, strict=True):
                if not _alike(one[:1], many[i : i + 1]):
                    raise PrivacyError(
                        "Argument `parse` is `batched` and mixes records: its result for record "
                        f"{i} among others differs from its result for that record alone. It must "
                        f"parse each record separately. Received: {many[i]!r} and {one[0]!r}"
                    )
            if i == 0:
                first = tf.nest.map_structure(lambda array: array[0], alone)
        return first

    def _parsed(self, records, indices):
        """What `parse` makes of the records, a list."""
        # Not by `map`, which ends without a word where `parse` raises StopIteration.
        parsed = [self._parse(record) for record in records]
        if not set(map(type, parsed)) <= {tuple} or not set(map(len, parsed)) <= {2, 3}:
            for index, one in zip(indices, parsed, strict=True):
                _check_tuple(one, f"record {index}")
        return parsed

    def _parsed_together(self, indices):
        """What a `batched` one makes of them: nestings of arrays (m, ...)."""
        parsed = self._parse(self._read(indices))
        _check_tuple(parsed, f"{len(indices)} records")
        arrays = tf.nest.map_structure(
            lambda leaf: strings_as_objects(np.asarray(leaf)), lists_as_tuples(parsed)
        )
        for array in tf.nest.flatten(arrays):
            if array.ndim == 0 or len(array) != len(indices):
                raise ValueError(
                    "Argument `parse` is `batched` and must return arrays whose first axis "
                    "counts the records. Convert a list of values to an array. Received, for "
                    f"{len(indices)} records: shape {array.shape}"
                )
        return arrays

    def _columns(self, indices):
        """The arrays (m, ...) of m records, which must all be like the first one."""
        if not indices:
            return [np.zeros((0, *shape), dtype) for shape, dtype in self._specs]
        if self._is_batched:
            parsed = self._parsed_together(indices)
            tf.nest.assert_same_structure(parsed, self._shape)
            return self._stacked(tf.nest.flatten(parsed), indices)
        records = self._read(indices)
        columns = [np.empty((len(indices), *shape), dtype) for shape, dtype in self._specs]
        for first in range(0, len(indices), _PARSED_AT_ONCE):
            few = slice(first, first + _PARSED_AT_ONCE)
            values = self._values(self._parsed(records[few], indices[few]))
            for column, array in zip(columns, self._stacked(values, indices[few]), strict=True):
                column[few] = array
        return columns

    def _values(self, parsed):
        """For each array of a batch, the list of its values in what was parsed."""
        if set(map(len, parsed)) == {self._length} and not self._is_nested:
            return list(zip(*parsed, strict=True))
        tf.nest.assert_same_structure(parsed, [self._shape] * len(parsed))
        leaves = tf.nest.flatten(parsed)
        count = len(leaves) // len(parsed)
        return [leaves[i::count] for i in range(count)]

    def _stacked(self, values, indices):
        """The arrays (m, ...), weights of 1 included, of lists or arrays of m values."""
        if self._length == 2:
            weights = [np.ones(len(indices), np.float32)]
        else:
            values, given = values[: -self._num_weights], values[-self._num_weights :]
            weights = [[weight_of(*w) for w in zip(one, indices, strict=True)] for one in given]
        return [
            stacked(column, *spec, indices)
            for column, spec in zip([*values, *weights], self._specs, strict=True)
        ]


def _check_tuple(parsed, what):
    if not isinstance(parsed, tuple) or len(parsed) not in (2, 3):
        raise ValueError(
            "Argument `parse` must return a tuple (x, y) or (x, y, sample_weight). "
            f"Received, for {what}: {type(parsed).__name__}"
        )


def _alike(a, b):
    if a.dtype.kind in "fc":  # of products, which sum by the size of a batch
        return a.shape == b.shape and np.allclose(a, b, rtol=1e-4, equal_nan=True)
    return np.array_equal(a, b)
