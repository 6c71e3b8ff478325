"""Records in memory: any nesting of arrays with one leading axis, and padded batches of them."""

import numpy as np
import tensorflow as tf

from tfdp.data.provenance.origins import Origin
from tfdp.data.sources.missing_values import NanWatch, named_leaves, refuse_gaps, warn_of_nan

_BY_THEMSELVES = "each sample weight was computed from its own record alone"


class Records:
    """n records, from which batches `(x, y, sample_weight)` of a static shape are cut.

    Args:
        data: tuple `(x, y)` or `(x, y, sample_weight)`. `x` and `y` are an array or any nesting
            (dict, tuple, list) of arrays or dense tensors with the same leading axis of length n;
            a list becomes a tuple, since tf.data reads lists as tensors. `sample_weight` has shape
            `(n,)` or `(n, T)`, or is a nesting of such weights, one of each output, where None
            weighs every record 1; without it every record weighs 1.

    Raises:
        ValueError: `data` is not such a tuple, a part has no leading axis or no dtype that
            TensorFlow knows, or the leading axes differ.
    """

    def __init__(self, data):
        if not isinstance(data, tuple) or len(data) not in (2, 3):
            length = f" of length {len(data)}" if isinstance(data, tuple) else ""
            raise ValueError(
                "Argument `data` must be a tuple (x, y) or (x, y, sample_weight). A model without "
                "targets still needs a `y`: pass zeros. An object that returns single records "
                f"needs `parse`, too. Received: data of type {type(data).__name__}{length}"
            )
        self.origin = Origin.of(data)
        structure = lists_as_tuples((data[0], data[1]))
        leaves = [_as_array(leaf, name) for name, leaf in named_leaves(structure)]
        lengths = sorted({len(leaf) for leaf in leaves})
        if len(lengths) != 1 or lengths[0] == 0:
            raise ValueError(
                "Argument `data` must hold arrays with the same, non-zero number of records on "
                f"their first axis. Received: leading dimensions {lengths}"
            )
        self.num_examples = lengths[0]
        x, y = tf.nest.pack_sequence_as(structure, leaves)
        weights = lists_as_tuples(data[2]) if len(data) == 3 else None
        self._arrays = (x, y, tf.nest.map_structure(self._weights, weights))
        self.origin = Origin.all_of([self.origin, origin_of_weights(weights)])
        data = (*structure, weights)
        warn_of_nan(data)
        self._nan = NanWatch(data, lambda leaf: isinstance(leaf, np.memmap))

    def _weights(self, sample_weight):
        if sample_weight is None:
            return np.ones(self.num_examples, np.float32)
        if np.ma.is_masked(sample_weight):
            raise ValueError(
                "The sample weights, the third part of argument `data`, must not be masked. Give "
                "masked entries the weight 0. Received: a masked array"
            )
        weights = np.asarray(sample_weight, np.float32)
        if weights.ndim not in (1, 2) or len(weights) != self.num_examples:
            raise ValueError(
                "The sample weights, the third part of argument `data`, must have shape "
                f"({self.num_examples},) or ({self.num_examples}, T), or be a structure of such "
                f"arrays, one for each output. Received: an array of shape {weights.shape}"
            )
        return weights

    def signature(self, capacity):
        """Nested `tf.TensorSpec` of a batch of `capacity` rows."""
        return tf.nest.map_structure(
            lambda array: tf.TensorSpec((capacity, *array.shape[1:]), tf.as_dtype(array.dtype)),
            self._arrays,
        )

    def will_read(self, chosen):
        """Records in memory need no reading ahead."""

    def batch(self, chosen, capacity, places=None):
        """The records of indices `chosen`, and rows of zeros with weight 0.

        Padding is never a copy of a record: a model that forgot the weights would otherwise
        train on one record many times over.

        Args:
            chosen: int array of at most `capacity` indices.
            capacity: number of rows.
            places: which rows they take; None for the first ones.
        """
        places = np.arange(len(chosen)) if places is None else places
        rows = tf.nest.map_structure(
            lambda array: _padded(array, chosen, places, capacity), self._arrays
        )
        self._nan.look_at(tf.nest.flatten(rows))
        return rows


def origin_of_weights(sample_weight):
    """What is taken for granted of sample weights that no release was charged for.

    Many follow from counts of the labels, which are raw data of all records. Zeros and ones leave
    records out, and say no more.

    Args:
        sample_weight: an array, a nesting of some, or None.
    """
    given = [getattr(leaf, "flat_values", leaf) for leaf in tf.nest.flatten(sample_weight)]
    plain = all(leaf is None or np.isin(np.asarray(leaf), (0, 1)).all() for leaf in given)
    if plain or Origin.of(sample_weight).releases:
        return Origin()
    return Origin(assumptions=(_BY_THEMSELVES,))


def lists_as_tuples(structure):
    if isinstance(structure, dict):
        return {key: lists_as_tuples(value) for key, value in structure.items()}
    if isinstance(structure, tuple) and hasattr(structure, "_fields"):
        return type(structure)(*map(lists_as_tuples, structure))
    if isinstance(structure, (list, tuple)):
        return tuple(map(lists_as_tuples, structure))
    return structure


def _as_array(leaf, name):
    if isinstance(leaf, (tf.RaggedTensor, tf.SparseTensor)):
        raise ValueError(
            "Argument `data` must hold dense arrays, because batches have a static shape. Pad "
            "with `.to_tensor(0, shape=(None, length))`, to a length that does not come from the "
            f"data, or call `tf.sparse.to_dense`. Received: a {type(leaf).__name__}"
        )
    array = np.asarray(leaf)
    if array.ndim == 0:
        raise ValueError(
            "Argument `data` must hold arrays whose first axis counts the records. Convert a "
            f"plain list of numbers to an array. Received: a value of type {type(leaf).__name__} "
            "without axes"
        )
    if array.dtype.hasobject:
        refuse_gaps(array, name)
    try:
        tf.as_dtype(array.dtype)
    except TypeError as error:
        raise ValueError(
            "Argument `data` must hold arrays of a dtype that TensorFlow knows. "
            f"Received: an array of dtype {array.dtype}"
        ) from error
    return array


def _padded(array, chosen, places, capacity):
    rows = np.zeros((capacity, *array.shape[1:]), array.dtype)
    if array.dtype == object:  # byte strings, whose zero is the empty string
        rows.fill(b"")
    rows[places] = array[chosen]
    return rows
