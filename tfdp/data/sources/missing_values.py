"""Values that are missing: said with the name of the array they are missing from."""

import warnings

import keras
import numpy as np
import tensorflow as tf

_PARTS = ("x", "y", "sample_weight")


def named_leaves(data):
    """(name, leaf) of each leaf of data (x, y) or (x, y, sample_weight), in their order."""
    for (part, *path), leaf in keras.tree.flatten_with_path(data):
        yield _PARTS[part] + "".join(f"[{key!r}]" for key in path), leaf


def refuse_gaps(array, name):
    """Refuses an array of objects that are not all strings.

    Raises:
        ValueError: if one is something else, such as the NaN that pandas puts where one is missing.
    """
    for place, one in enumerate(array.flat):
        if not isinstance(one, (bytes, str)):
            record = place // (array.size // len(array))
            is_gap = one is None or (isinstance(one, float) and one != one)
            raise ValueError(
                f"Argument `data` must hold arrays of numbers, or of strings only. {name} "
                f"{'has no value' if is_gap else 'holds a ' + type(one).__name__} at record "
                f"{record}. Replace missing values by a string (`fillna('')` of pandas), or give "
                f"numbers a dtype by `astype`. Received: {one!r}"
            )


def warn_of_nan(data):
    """Warns of arrays with values that are not a number: who holds the data sees it, and no file.

    Args:
        data: (x, y) or (x, y, sample_weight), nestings of arrays. A file that is mapped is not
            read for it.
    """
    arrays = [(name, leaf) for name, leaf in named_leaves(data) if not isinstance(leaf, np.memmap)]
    _warn([name for name, leaf in arrays if _has_nan(leaf)])


class NanWatch:
    """Warns of values that are not a number in what is read while training goes on, once for each.

    The batches stay what they are.

    Args:
        data: (x, y) or (x, y, sample_weight), nestings of what the records have.
        is_watched: function of a leaf of it: False for what was looked at before.
    """

    def __init__(self, data, is_watched=lambda leaf: True):
        leaves = enumerate(named_leaves(data))
        self._names = {i: name for i, (name, leaf) in leaves if is_watched(leaf)}

    def look_at(self, arrays):
        """Looks at the arrays of a batch, in the order of the leaves."""
        found = [i for i in self._names if _has_nan(arrays[i])]
        _warn([self._names.pop(i) for i in found])


def _warn(names):
    if names:
        warnings.warn(
            f"There are values that are not a number (NaN) in {names}. A record with NaN "
            "contributes a gradient of zero: the model learns nothing from it, but epsilon stays "
            "the same. Replace NaN by values that do not come from the data, or remove these "
            "records.",
            stacklevel=3,
        )


def _has_nan(leaf):
    if leaf is None:
        return False
    array = np.asarray(leaf.flat_values if isinstance(leaf, tf.RaggedTensor) else leaf)
    return array.dtype.kind == "f" and array.size > 0 and bool(np.isnan(np.min(array)))
