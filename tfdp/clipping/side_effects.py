"""What a traced step does beside computing: writing to variables, tables, queues, files, Python.

The forward pass and the losses see raw data. Whatever they write outlives the step without noise,
so only operations that are known to keep nothing are let through.
"""

import tensorflow as tf

from tfdp.errors import PrivacyError

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


def refuse_side_effects(graph, where, shown=()):
    """Refuses operations that hand on what they see to anything but the results of a trace.

    Args:
        graph: the graph of a traced `tf.function`.
        where: what was traced, for the message.
        shown: variables of metrics, which may be written: what training shows is not covered.

    Raises:
        PrivacyError: for an assignment, an insertion into a table or a queue, a call of Python, a
            print, a written file, or any other operation with a state that is not known to keep
            nothing.
    """
    definition = graph.as_graph_def()
    functions = definition.library.function  # bodies of loops and branches among them
    nodes = [*definition.node, *(node for function in functions for node in function.node_def)]
    called = {function.signature.name for function in functions}
    shown = _captured(graph, shown)
    found = {n.op: n.name for n in nodes if not (n.op in _ASSIGNMENTS and n.input[0] in shown)}
    for kind, name in found.items():
        if kind not in called and not _is_harmless(graph, kind):
            raise PrivacyError(
                f"{where} runs the operation {name!r} ({kind}), which keeps or hands on what it "
                "sees of the batch, without noise: it would publish raw data. Compute such "
                "statistics from public data before training, and return what the loss needs as "
                "an output of shape (batch, ...)."
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
                "steps, without noise: one record would move steps that it is not in. Scale by "
                "constants, or by weights of a layer, which the optimizer trains."
            )
        pending += [t.op for t in op.inputs]


def refuse_writes(graph, variables, where):
    """Refuses a trace that does more to variables than reading them.

    Raises:
        PrivacyError: for an assignment, also inside a loop, a branch or a `tf.function`.
    """
    held = _captured(graph, variables)
    for op in graph.get_operations():
        if op.name not in held:
            continue
        for consumer in (c for t in op.outputs for c in t.consumers()):
            if consumer.type not in _READS:
                raise PrivacyError(
                    f"{where} changes a weight of the model, by the operation {consumer.name!r} "
                    f"({consumer.type}): raw data would enter it without noise. Keep what is shown "
                    "in a metric's own variables."
                )


def _captured(graph, variables):
    """Names by which a graph knows variables from outside."""
    handles = {id(variable.value.handle) for variable in variables}
    return {inner.op.name for outer, inner in graph.captures if id(outer) in handles}


def _is_harmless(graph, kind):
    if kind in _HARMLESS or (kind.startswith(_HARMLESS_KINDS) and kind not in _QUEUES):
        return True
    return not graph.op_def_for_type(kind).is_stateful
