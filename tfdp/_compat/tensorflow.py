"""TensorFlow: what has no public way, and what it does wrong."""

import contextlib
import math
import os
import re

import tensorflow as tf
from tensorflow.python import pywrap_tfe
from tensorflow.python.ops import control_flow_util, control_flow_util_v2


def inputs_of(dataset):
    """The datasets that a dataset was made from."""
    return dataset._inputs()


def ancestors(dataset):
    """A dataset, and all datasets that it was made from, however many there are between."""
    pending = [dataset]
    while pending:
        made_from = pending.pop()
        yield made_from
        pending += inputs_of(made_from)


def captured_by(dataset):
    """What the functions of a dataset use beside its elements, as tensors: variables' handles."""
    functions = [one.function for one in dataset._functions()]
    return [tensor for function in functions for tensor in function.captured_inputs]


def hides_others(dataset):
    """Whether elements of a dataset may come from datasets that `inputs_of` does not name.

    They do where a function of it uses another dataset or an iterator, where it was given datasets
    as elements, and where it was made of a variant tensor.
    """
    if any(tensor.dtype == tf.variant or "Iterator" in str(tensor)
           for tensor in captured_by(dataset)
           if tensor.dtype in (tf.variant, tf.resource)):  # fmt: skip
        return True
    if inputs_of(dataset):
        return False
    spec = dataset.element_spec
    # TensorFlow wraps numbers so that choose or count: they are no records.
    is_number = isinstance(spec, tf.TensorSpec) and (spec.dtype, spec.shape) == (tf.int64, [])
    if type(dataset).__name__ == "_VariantDataset":
        return not is_number
    return any(isinstance(leaf, tf.data.DatasetSpec) for leaf in tf.nest.flatten(spec))


def may_reorder(dataset):
    """Whether a dataset was told that the order of its elements does not matter."""
    return getattr(dataset, "_deterministic", None) == "false"


def dtype_of_variable(handle):
    """The dtype of the variable that a resource is the handle of; None of other resources."""
    data = getattr(handle, "_handle_data", None)
    if data is None or not data.is_set or len(data.shape_and_type) != 1:
        return None
    return tf.as_dtype(data.shape_and_type[0].dtype)


def checks_numerics():
    """Whether `tf.debugging.enable_check_numerics` adds checks to what is traced now."""
    with tf.Graph().as_default() as graph:
        tf.sqrt(tf.zeros([]))
    return any(op.type.startswith(("CheckNumerics", "Debug")) for op in graph.get_operations())


def traces_for_xla():
    """Whether what is traced now is part of a tf.function with `jit_compile=True`."""
    # Its whole trace runs in a context of the graph that it was called in.
    graph = tf.compat.v1.get_default_graph()
    return control_flow_util.GraphOrParentsInXlaContext(graph)


def shards_of_tables(embedding):
    """Dict of the names of a TPU embedding's tables to their parts, fetched from the TPU."""
    # Written to the hosts as for a checkpoint.
    embedding._retrieve_variables()
    return {name: held["parameters"].variables for name, held in embedding._variables.items()}


def corrupting_product(graph):
    """An operation of a graph in which TensorFlow may write beyond its memory, or None.

    Up to 2.21, on CPUs with oneDNN: tf.matmul of (n, 1, M, K) by a matrix that all n share
    (tensorflow issue 117700).
    """
    version = tuple(int(part) for part in tf.__version__.split(".")[:2])
    if version >= (2, 22) or os.environ.get("TF_ENABLE_ONEDNN_OPTS") == "0":
        return None
    for op in graph.get_operations():
        if op.type in ("BatchMatMulV2", "BatchMatMulV3"):
            left, right = (tensor.shape for tensor in op.inputs)
            if left.rank == 4 and left[1] == 1 and left[0] != 1 and right.rank is not None:
                if all(size == 1 for size in right[:-2]):
                    return op
    return None


def corrupting_convolution(operations):
    """A convolution whose filter has a derivative that writes beyond its memory, or None.

    On CPUs with oneDNN: Conv2DBackpropFilter of filters of 1x1 and strides above 1. Eagerly, the
    derivative is computed with that of the inputs, whether it is asked for or not.
    """
    if os.environ.get("TF_ENABLE_ONEDNN_OPTS") == "0":
        return None
    for op in operations:
        if op.type in ("Conv2D", "Conv2DBackpropInput"):
            size = op.inputs[1].shape[:2]
            if math.prod(op.get_attr("strides")) > 1 and tuple(size) == (1, 1):
                return op
    return None


@contextlib.contextmanager
def tapes_record():
    """Lets gradient tapes record inside of `tf.init_scope`, which stops those of the thread."""
    stopped = pywrap_tfe.TFE_Py_TapeSetIsStopped()
    if stopped:
        pywrap_tfe.TFE_Py_TapeSetRestartOnThread()
    try:
        yield
    finally:
        if stopped:
            pywrap_tfe.TFE_Py_TapeSetStopOnThread()


def function_graphs(op, shapes):
    """The graphs of the functions that an operation calls: of a loop, its condition first.

    They are those that were traced, where TensorFlow still has them: the gradients that a user
    wrote know their tensors alone.

    Args:
        op: the operation.
        shapes: shapes of the arguments, in case that a graph has to be made.
    """
    names, kept = [], []
    for attribute, graph in _FUNCTIONS.get(op.type, {"f": None}).items():
        held = op.get_attr(attribute)
        for i, one in enumerate(held if isinstance(held, list) else [held]):
            names.append(one.name)
            kept.append(getattr(op, (graph or "").format(i), None))
    return [
        graph or _graph_of(op.graph, name, op, shapes)
        for name, graph in zip(names, kept, strict=True)
    ]


_BRANCHES = {"then_branch": "_true_graph", "else_branch": "_false_graph"}
_LOOP = {"cond": "_cond_graph", "body": "_body_graph"}
_FUNCTIONS = {
    "Case": {"branches": "_branch_graph_{}"},
    "If": _BRANCHES,
    "StatelessCase": {"branches": "_branch_graph_{}"},
    "StatelessIf": _BRANCHES,
    "StatelessWhile": _LOOP,
    "While": _LOOP,
}


def _graph_of(graph, name, op, shapes):
    while graph is not None:
        function = graph._get_function(name)
        if hasattr(function, "graph"):
            return function.graph
        graph = getattr(graph, "outer_graph", None)
    return control_flow_util_v2.get_func_graph(op, shapes, name)


def has_own_gradient(op):
    """Whether somebody gave an operation another gradient than TensorFlow's."""
    if "_gradient_op_type" not in op.node_def.attr:
        return False
    name = op.get_attr("_gradient_op_type").decode()
    return not re.fullmatch(r"(Stateful)?PartitionedCall-\d+", name)  # those of tf.function
