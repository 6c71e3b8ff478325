"""What a traced step does beside computing: writing to variables, tables, queues, files, Python.

The forward pass and the losses see raw data. Whatever they write outlives the step without noise,
so only operations that are known to keep nothing are let through.
"""

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
_ASSIGNMENTS = ("AssignVariableOp", "AssignAddVariableOp")
_QUEUES = ("RandomShuffleQueue", "RandomShuffleQueueV2")


def refuse_side_effects(graph, where, metrics=()):
    """Refuses operations that hand on what they see to anything but the results of a trace.

    Args:
        graph: the graph of a traced `tf.function`.
        where: what was traced, for the message.
        metrics: metrics that may be updated: what training shows is not covered anyway.

    Raises:
        PrivacyError: for an assignment, an insertion into a table or a queue, a call of Python, a
            print, a written file, or any other operation with a state that is not known to keep
            nothing.
    """
    definition = graph.as_graph_def()
    functions = definition.library.function  # bodies of loops and branches among them
    nodes = [*definition.node, *(node for function in functions for node in function.node_def)]
    called = {function.signature.name for function in functions}
    shown = _captured(graph, [v for metric in metrics for v in metric.variables])
    found = {n.op: n.name for n in nodes if not (n.op in _ASSIGNMENTS and n.input[0] in shown)}
    for kind, name in found.items():
        if kind not in called and not _is_harmless(graph, kind):
            raise PrivacyError(
                f"{where} runs the operation {name!r} ({kind}), which keeps or hands on what it "
                "sees of the batch, without noise: it would publish raw data. Compute such "
                "statistics from public data before training, and return what the loss needs as "
                "an output of shape (batch, ...)."
            )


def _captured(graph, variables):
    """Names by which a graph knows variables from outside."""
    handles = {id(variable.value.handle) for variable in variables}
    return {inner.op.name for outer, inner in graph.captures if id(outer) in handles}


def _is_harmless(graph, kind):
    if kind in _HARMLESS or (kind.startswith(_HARMLESS_KINDS) and kind not in _QUEUES):
        return True
    return not graph.op_def_for_type(kind).is_stateful
