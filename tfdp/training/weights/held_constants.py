"""Arrays that a model or its loss computes with, though they are no weights.

A mean of the records that `call` subtracts goes into the files of a model as it is. Nobody can tell
it from an array that is public, so the statement lists what such arrays are taken for. An array
that carries the charge of a release brings it along.
"""

import functools
import os
import pathlib

import keras
import numpy as np
import tensorflow as tf

from tfdp._compat.keras import all_layers, calls_of_graph
from tfdp.data.provenance.origins import Origin

_OF_TFDP = os.path.join(str(pathlib.Path(__file__).parents[2]), "")
_OF_PYTHON = os.path.join(os.path.dirname(os.__file__), "")
# What stands for "never" in masks.
_LARGE = 1e8
# So many whole numbers may be places, sizes and axes; more of them may be counts.
_FEW = 16


def of_graphs(model):
    """(array, its place in words) of those that functional models of a model hold."""
    for layer in all_layers(model):
        for node in calls_of_graph(layer):
            arguments = node.arguments.args, node.arguments.kwargs
            for leaf in keras.tree.flatten(arguments):
                held = isinstance(leaf, np.ndarray | tf.Tensor) and not tf.is_symbolic_tensor(leaf)
                if held:
                    yield leaf, f"operation {node.operation.name!r} of model {layer.name!r}"


def origin_held(model):
    """`Origin` of the arrays of a model: the releases that they carry, with their assumptions.

    Those of functional models, and attributes of layers: arrays, what holds some, and initializers.
    """
    held = [array for array, _ in of_graphs(model)]
    for layer in all_layers(model):
        held += [one.value if _is_constant(one) else one for one in vars(layer).values()]
    return Origin.of(held)


def carries_its_charge(held):
    """Whether what a layer holds is an initializer that gives the numbers of a release."""
    return _is_constant(held) and bool(Origin.of(held.value).releases)


def _is_constant(held):
    return isinstance(held, keras.initializers.Constant)


def sentences_of_graphs(model):
    """What the statement says of these arrays, if nothing was charged for them."""
    return _sentences((a, place) for a, place in of_graphs(model) if not Origin.of(a).releases)


def sentences_of_code(graph, operations):
    """The same of arrays and look-up tables in the code of layers and losses of the user's.

    Args:
        graph: the graph of a step, or of a part of it.
        operations: those that are looked at.
    """
    found = [_code_of(op) for op in operations if op.type.startswith("LookupTableFind")]
    tables = [
        f"the look-up table in {place} is no function of the records" for place in found if place
    ]
    return (*_sentences(_of_code(graph, operations)), *dict.fromkeys(tables))


def _of_code(graph, operations):
    known = set(operations)
    for op in operations:
        if op.type == "Const" and _may_hold_data(op.outputs[0]):
            yield tf.make_ndarray(op.get_attr("value")), _code_of(op)
    for outer, inner in getattr(graph, "captures", ()):
        if _may_hold_data(inner) and not tf.is_symbolic_tensor(outer):
            for op in known.intersection(inner.consumers()):
                yield outer, _code_of(op)


def _may_hold_data(tensor):
    size = tensor.shape.num_elements()
    return tensor.dtype.is_floating or (tensor.dtype.is_integer and (size is None or size > _FEW))


def _sentences(arrays):
    return tuple(
        dict.fromkeys(
            f"the array of shape {tuple(array.shape)} in {place} is no function of the records"
            for array, place in arrays
            if place is not None and not says_nothing(np.asarray(array))
        )
    )


def says_nothing(array):
    """Whether it is one number, a mask, numbers at equal distances, or a few whole numbers."""
    kind = array.dtype.kind
    if kind in "bOSU" or (kind in "iu" and array.size <= _FEW):
        return True
    values = array.astype(np.float64).ravel()
    if values.size < 2 or (values == values[0]).all():
        return True
    if (np.isin(values, (-1, 0, 1)) | ~(np.abs(values) < _LARGE)).all():
        return True
    distances = np.diff(values)
    return values.size > 2 and np.allclose(distances, distances[0], rtol=1e-4)


def _code_of(op):
    """The function of the user's that made an operation of a step, in words; None for none."""
    frames = list(op.traceback)
    own = [i for i, frame in enumerate(frames) if _is_own(frame.filename)]
    # What called `fit` made the step; and a layer that is called makes its operations itself.
    begun = next((i for i, f in enumerate(frames) if f.filename.startswith(_OF_TFDP)), len(frames))
    last = max(own, default=-1)
    called = any(f.name == "__call__" and _is_layer(f.filename) for f in frames[last + 1 :])
    if last < begun or called:
        return None
    return f"the code of `{frames[last].name}` ({os.path.basename(frames[last].filename)})"


def _is_layer(filename):
    return filename.endswith(os.path.join("keras", "src", "layers", "layer.py"))


@functools.cache
def _is_own(filename):
    """Whether a file is the user's: none of Python, of a package that is installed, or of tfdp."""
    if filename.startswith("<"):
        return filename.startswith(("<ipython", "<stdin", "<string"))
    parts = filename.split(os.sep)
    installed = "site-packages" in parts or "dist-packages" in parts
    return not (installed or filename.startswith((_OF_PYTHON, _OF_TFDP)))
