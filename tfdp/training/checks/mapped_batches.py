"""What a `map` after sampling does with the rows of a batch: proved from its graph, or assumed.

What it returns for a row is taken for that row's record, so it may read no other row, neither of
its own batch nor, from where an earlier call kept it, of another one. That is proved as for a step
(`clipping/independence`). Where it cannot be, the statement lists it. It also lists that values
which the `map` reads beside the rows, such as means, hold no data.
"""

import numpy as np
import tensorflow as tf

from tfdp._compat.tensorflow import dtype_of_variable, hides_others
from tfdp.accounting.charges.notes import Notes
from tfdp.clipping.independence import proof
from tfdp.clipping.independence.values import PUBLIC, Rows
from tfdp.clipping.independence.walk import Walk
from tfdp.clipping.plan.side_effects import keeps_inside
from tfdp.data.provenance import dataset_tags
from tfdp.data.provenance.padding_guard import holds_persons, is_mapped_by_tfdp
from tfdp.data.provenance.variable_values import histories_read, layers_of_releases_read
from tfdp.distribution import host_selection
from tfdp.errors import PrivacyError
from tfdp.runtime.external_table import handles_of
from tfdp.training.weights.held_constants import says_nothing, sentences_of_code

_ASSUMED = "each `map` after sampling treats each row separately"
_VALUES = (
    "the variables, tables and arrays that a `map` after sampling computes with are no function of "
    "the records"
)
_IDS_ASSUMED = "the `ids` given to `select_on_host` are for each row those of its own record"
_MAP, _IDS = "A `map` after sampling", "The function `ids` of `select_on_host`"
_WAY_OUT = (
    "Each row must depend on its own record alone, whatever the other rows are and wherever it "
    "stands. Compute values from one record at a time, or from public numbers."
)


def notes_of_maps(dataset, validate=True):
    """What the statement says of each `map` that followed the sampling.

    Args:
        dataset: what `fit` was given.
        validate: whether to look at them; otherwise what they do is assumed.

    Raises:
        PrivacyError: if one mixes the rows of a batch, depends on their positions, keeps something
            of them for other batches, or reads another dataset.
    """
    if not isinstance(dataset, tf.data.Dataset) or dataset_tags.is_as_sampled(dataset):
        return Notes()
    if any(map(hides_others, dataset_tags.operations_since(dataset))):
        raise PrivacyError(
            "A `map` after sampling uses another dataset or an iterator. tfdp would charge neither "
            "this use of the other records nor the releases from which they were computed. "
            "Join the datasets before sampling (`tf.data.Dataset.zip`), or make the dataset inside "
            f"the function. Received: {dataset}"
        )
    functions = [
        one.function
        for made_from in dataset_tags.operations_since(dataset)
        if not is_mapped_by_tfdp(made_from)
        for one in made_from._functions()
    ]
    values = [sentence for function in functions for sentence in _of_values(function)]
    # The function of a map of persons is in a dataset of its own.
    looked_at = validate and not holds_persons(dataset)
    proved = looked_at and all([_is_proved(function) for function in functions])
    of_ids = host_selection.functions_of_ids(dataset)
    of_own = validate and all([_is_proved(function, _IDS) for function in of_ids])
    assumed = (*(() if proved else (_ASSUMED,)), *(() if of_own or not of_ids else (_IDS_ASSUMED,)))
    return Notes(assumptions=(*dict.fromkeys(values), *assumed))


def _of_values(function):
    """What the statement says of the values that a traced function reads beside the rows."""
    graph = function.graph
    of_code = sentences_of_code(graph, graph.get_operations())
    reads = _reads_resources(function) or (not of_code and _holds_arrays(function))
    return (*of_code, _VALUES) if reads else of_code


def _reads_resources(function):
    """Whether it reads variables or look-up tables that nothing accounts for."""
    resources = [t for t in function.captured_inputs if t.dtype == tf.resource]
    read = {id(t) for t in resources}
    charged = [v for v, history in histories_read(read) if history.runs or history.releases]
    released = [v for layer in layers_of_releases_read(read) for v in layer.weights]
    accounted = {id(handle) for v in (*charged, *released) for handle in handles_of(v)}
    for resource in resources:
        dtype = dtype_of_variable(resource)
        if dtype is None:  # a table
            return True
        # Integers may be seeds, and one number is taken for a setting.
        if id(resource) not in accounted and dtype.is_floating:
            if np.prod(tf.raw_ops.VariableShape(input=resource)) > 1:
                return True
    return False


def _holds_arrays(function):
    """Whether there are arrays in it, or in the layers and functions that it calls."""
    captured = [np.asarray(t) for t in function.captured_inputs if t.dtype != tf.resource]
    definition = function.graph.as_graph_def()
    nodes = [*definition.node, *(n for f in definition.library.function for n in f.node_def)]
    constants = (tf.make_ndarray(node.attr["value"].tensor) for node in nodes if node.op == "Const")
    return not all(map(says_nothing, (*captured, *constants)))


def _is_proved(function, who=_MAP):
    """Whether each row that a traced function returns is proved to be of the same row alone."""
    inputs = function.inputs[: len(function.inputs) - len(function.captured_inputs)]
    shapes = [t.shape for t in (*inputs, *function.outputs)]
    rows = {shape[0] if shape.is_fully_defined() and shape.rank else None for shape in shapes}
    if len(rows) != 1 or None in rows or rows == {1}:
        return False
    walk = Walk(*rows, _generators(function.graph), gradients=False)
    given = {t.name: Rows(0) for t in inputs}
    outputs = [t for t in function.outputs if t.name not in given]
    try:
        body = walk.outermost(function.graph, given)
        _refuse_to_keep(walk, who)
        for output in outputs:
            why = body.value(output) is PUBLIC and body.unlike(output, Rows(0))
            if why:
                raise PrivacyError(f"{who}: {output.op.name!r} {why}. {_WAY_OUT}")
        searched = proof.examine(
            walk, function.graph, given, outputs, lambda op: who, way_out=_WAY_OUT
        )
    except proof.NotProved:
        return False
    return not (searched or walk.keeping or keeps_inside(function.graph))


def _refuse_to_keep(walk, who):
    # What Python keeps, nobody knows: not refused, and assumed.
    for op in walk.keeping:
        if "PyFunc" not in op.type:
            raise PrivacyError(
                f"{who} stores data of the batch, for example in a variable, or sends them "
                f"somewhere other than its result: operation {op.name!r} ({op.type}). One record "
                "would change rows of other batches, without noise. Compute statistics from public "
                "data before training. A count of calls, `calls.assign_add(1)`, may be kept."
            )


def _generators(graph):
    """Names of the placeholders of variables that each call moves on, such as seeds of Keras."""
    assigned = [op for op in graph.get_operations() if op.type.startswith("Assign")]
    return frozenset(op.inputs[0].op.name for op in assigned)
