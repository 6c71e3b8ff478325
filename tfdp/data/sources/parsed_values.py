"""What `parse` gives of single records, as arrays of many; and their places in a batch."""

import operator

import numpy as np
import tensorflow as tf

_SHAPE, _DTYPE = operator.attrgetter("shape"), operator.attrgetter("dtype")


def placed(column, inverse, places, capacity):
    """(capacity, ...): the rows `inverse` of a column at their places, zeros everywhere else."""
    if len(places) != len(inverse):  # numpy would take one record for all places
        raise ValueError(
            "A batch must get one record for each place. Check that the source returns one record "
            f"for each index. Received: {len(inverse)} records for {len(places)} places"
        )
    rows = np.zeros(capacity, np.int64)
    rows[places] = inverse
    padding = np.ones(capacity, bool)
    padding[places] = False
    if len(column):
        array = np.take(column, rows, axis=0)
    else:
        array = np.empty((capacity, *column.shape[1:]), column.dtype)
    array[padding] = b"" if column.dtype.hasobject else 0  # the zero of a byte string
    return array


def stacked(column, shape, dtype, indices):
    """(m, *shape) of the values of m records: a list, or an array already."""
    if isinstance(column, np.ndarray) and (column.shape[1:], column.dtype) == (shape, dtype):
        return column
    types = set(map(type, column))
    if not shape and types == {dtype.type} and not dtype.hasobject:
        return np.array(column)
    if not dtype.hasobject and all(issubclass(one, np.ndarray) for one in types):
        if set(map(_SHAPE, column)) == {shape} and set(map(_DTYPE, column)) == {dtype}:
            return _joined(column, shape, dtype)
    column = [_value(one) for one in column]
    for index, one in zip(indices, column, strict=True):
        if one.shape != shape or one.dtype != dtype:
            raise ValueError(
                "Argument `parse` must return arrays of the same shapes and dtypes for every "
                f"record: record 0 has {shape}, {dtype}. Received, for record {index}: "
                f"{one.shape}, {one.dtype}"
            )
    return np.stack(column)


def _joined(arrays, shape, dtype):
    """As `np.stack` of arrays of this shape and dtype, in a tenth of its time where it can be."""
    try:
        return np.ndarray((len(arrays), *shape), dtype, b"".join(arrays))
    except TypeError:  # not contiguous, or of a dtype that Python's buffers do not know
        return np.stack(arrays)


def weight_of(weight, index):
    """The sample weight of record `index`, float32; nothing that only can be made a number."""
    array = np.asarray(weight)
    if array.dtype.kind in "OSUMmc":
        raise ValueError(
            "Argument `parse` must return a sample weight that is a number, or one for each "
            f"position. Received, for record {index}: {weight!r}"
        )
    return array.astype(np.float32)


def _value(value):
    if isinstance(value, (bytes, str)):  # as an array of bytes it would lose zeros at its end
        array = np.empty((), object)
        array[()] = value
        return array
    return strings_as_objects(np.asarray(value))


def strings_as_objects(array):
    """An array of strings as one of Python's, which TensorFlow takes; others as they are."""
    return array.astype(object) if array.dtype.kind in "SU" else array


def as_array(leaf):
    """A value of record 0, which shows the shapes and dtypes of all, as an array."""
    array = _value(leaf)
    known = not array.dtype.hasobject or all(isinstance(one, (bytes, str)) for one in array.flat)
    try:
        tf.as_dtype(array.dtype)
    except TypeError:
        known = False
    if not known:
        raise ValueError(
            "Argument `parse` must return arrays of a dtype that TensorFlow knows. Received: "
            f"{array.dtype}, in a value of type {type(leaf).__name__}"
        )
    return array
