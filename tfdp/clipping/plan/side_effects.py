"""What a traced step does beside computing: writing to variables, tables, queues, files, Python.

The forward pass and the losses see raw data. Whatever they write outlives the step without noise,
so only operations that are known to keep nothing are let through.
"""

import contextlib

import tensorflow as tf

from tfdp.clipping.plan.dataflow import called_by
from tfdp.data.provenance.variable_values import fingerprint
from tfdp.errors import PrivacyError
from tfdp.runtime.external_table import handles_of

# Operations that TensorFlow calls stateful and that leave nothing of the batch behind: reads,
# creation of tables, calls of functions, checks, and random generators, whose next state depends
# on how many numbers they drew and not on the data.
_HARMLESS = frozenset(
    {
        "AnonymousHashTable", "AnonymousRandomSeedGenerator", "AnonymousSeedGenerator",
        "Assert", "Case", "CheckNumerics", "CheckNumericsV2", "CudnnRNN", "CudnnRNNV2",
        "CudnnRNNV3", "DeviceIndex", "DisableCopyOnRead", "DummySeedGenerator", "Empty",
        "GuaranteeConst", "HashTable", "HashTableV2", "If", "LookupTableExportV2",
        "LookupTableFindV2", "LookupTableSizeV2", "Multinomial", "NonDeterministicInts",
        "ParameterizedTruncatedNormal", "ReadVariableOp", "RemoteCall", "ResourceGather",
        "ResourceGatherNd", "RngReadAndSkip", "RngSkip", "SentencepieceOp",
        "StatefulPartitionedCall", "StatelessRandomGetAlg", "TruncatedNormal",
        "UniformCandidateSampler", "LogUniformCandidateSampler", "FixedUnigramCandidateSampler",
        "AllCandidateSampler", "VarHandleOp", "VarIsInitializedOp", "VariableShape", "While",
    }
)  # fmt: skip
_HARMLESS_KINDS = (
    "RandomCrop", "RandomGamma", "RandomPoisson", "RandomShuffle", "RandomStandardNormal",
    "RandomUniform", "SampleDistortedBoundingBox", "StatefulRandomBinomial",
    "StatefulStandardNormal", "StatefulTruncatedNormal", "StatefulUniform", "TensorArray",
)  # fmt: skip
_READS = ("ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape")
_ASSIGNMENTS = ("AssignVariableOp", "AssignAddVariableOp")
_QUEUES = ("RandomShuffleQueue", "RandomShuffleQueueV2")


def refuse_side_effects(graph, where, shown=(), operations=None):
    """Refuses operations that hand on what they see to anything but the results of a trace.

    Args:
        graph: a graph.
        where: what was traced, for the message.
        shown: variables of metrics, which may be written: what training shows is not covered.
        operations: those of the graph that are looked at; None for all.

    Raises:
        PrivacyError: for an assignment, an insertion into a table or a queue, a call of Python, a
            print, a written file, or any other operation with a state that is not known to keep
            nothing.
    """
    definition = graph.as_graph_def()
    functions = {f.signature.name: f for f in definition.library.function}
    nodes = definition.node if operations is None else [op.node_def for op in operations]
    nodes = [*nodes, *_of_called(nodes, functions)]
    shown = _captured(graph, shown)
    found = {n.op: n.name for n in nodes if not (n.op in _ASSIGNMENTS and n.input[0] in shown)}
    for kind, name in found.items():
        if kind not in functions and not is_harmless(graph, kind):
            raise PrivacyError(
                f"{where} runs the operation {name!r} ({kind}), which stores or passes on data of "
                "the batch without noise: it would publish raw data. Compute such statistics "
                "from public data before training. Return values that the loss needs as an "
                "output of shape (batch, ...)."
            )


def refuse_results_of_metrics(graph, results, shown, where):
    """Refuses results that follow the state of a metric.

    Args:
        graph, where: as for `refuse_side_effects`.
        results: tensors of the graph.
        shown: the variables of the metrics.

    Raises:
        PrivacyError: if there is such a result: raw data of other steps would enter this one.
    """
    held = _captured(graph, shown)
    pending, seen = [t.op for t in results if tf.is_symbolic_tensor(t)], set()
    while pending and held:
        op = pending.pop()
        if op.name in seen:
            continue
        seen.add(op.name)
        if op.name in held:
            raise PrivacyError(
                f"{where} reads the state of a metric, which was computed on raw data of other "
                "steps without noise: one record would affect steps that do not contain it. "
                "Scale by constants, or by values that the model computes for each example."
            )
        pending += [t.op for t in op.inputs]


@contextlib.contextmanager
def no_writes(variables, where):
    """Context in which code of the user's may read variables, and write to none of them.

    Args:
        variables: Keras variables.
        where: whose code it is, for the message.

    Raises:
        PrivacyError: for an assignment; in a graph also inside a loop, a branch or a function.
    """
    if tf.executing_eagerly():
        before = [fingerprint(v) for v in variables]
        yield
        by = [v.path for v, b in zip(variables, before, strict=True) if fingerprint(v) != b]
    else:
        graph = tf.compat.v1.get_default_graph()
        start = len(graph.get_operations())
        yield
        nodes = [op.node_def for op in graph.get_operations()[start:]]
        functions = {f.signature.name: f for f in graph.as_graph_def().library.function}
        written = _writers(nodes, _captured(graph, variables), functions)
        by = [f"{node.name} ({node.op})" for node in written]
    if by:
        raise PrivacyError(
            f"{where} changes a weight or a variable of the optimizer: {by[0]}. Raw data would "
            "enter it without noise. To show a value, store it in a variable of a metric."
        )


def _writers(nodes, held, functions):
    """Nodes that do more to the resources `held` than reading them, in what they call, too."""
    held = set(held)
    for node in nodes:
        inputs = [name.split(":")[0] for name in node.input if not name.startswith("^")]
        taken = [k for k, name in enumerate(inputs) if name in held]
        if not taken or node.op in _READS:
            continue
        if node.op == "Identity":
            held.add(node.name)
            continue
        called = [functions[name] for name in sorted(called_by(node) & functions.keys())]
        if not called:
            yield node
        for function in called:
            arguments = [a.name for a in function.signature.input_arg]
            first = len(inputs) - len(arguments)  # before them, what chooses a branch
            inside = [arguments[k - first] for k in taken if k >= first]
            yield from _writers(function.node_def, inside, functions)


def _of_called(nodes, functions):
    """The nodes of all functions that some nodes call: bodies of loops and branches among them."""
    pending, seen = list(nodes), set()
    while pending:
        node = pending.pop()
        for name in {node.op, *called_by(node)} & functions.keys() - seen:
            seen.add(name)
            pending += functions[name].node_def
            yield from functions[name].node_def


def keeps_inside(graph):
    """Whether functions that a graph calls may keep what they see: bodies of branches among them.

    Args:
        graph: a graph.
    """
    definition = graph.as_graph_def()
    functions = {f.signature.name: f for f in definition.library.function}
    inside = {node.op for node in _of_called(definition.node, functions)} - functions.keys()
    return not all(is_harmless(graph, kind) for kind in inside)


def _captured(graph, variables):
    """Names by which a graph knows variables from outside."""
    return known_inside(graph, {id(h) for variable in variables for h in handles_of(variable)})


def known_inside(graph, handles):
    """Names of resources in a graph, those that the graphs around it hand on included."""
    found = set()
    for outer, inner in getattr(graph, "captures", ()):
        handed_on = inner.dtype == tf.resource and tf.is_symbolic_tensor(outer)
        if id(outer) in handles or (handed_on and _is_known(outer, handles)):
            found.add(inner.op.name)
    return found


def _is_known(resource, handles):
    known, op = known_inside(resource.graph, handles), resource.op
    if op.type == "TPUReplicatedInput":  # one handle for those of all replicas
        return all(part.op.name in known for part in op.inputs)
    return op.name in known


def is_harmless(graph, kind):
    """Whether operations of a type leave nothing of what they see but their results.

    Args:
        graph: one that has such an operation.
        kind: the type.
    """
    if "PyFunc" in kind:  # also where the user says that it keeps nothing
        return False
    if kind in _HARMLESS or (kind.startswith(_HARMLESS_KINDS) and kind not in _QUEUES):
        return True
    return not graph.op_def_for_type(kind).is_stateful
