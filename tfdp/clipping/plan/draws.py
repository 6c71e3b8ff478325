"""Random numbers that the exact fallback can draw again, and those that it cannot.

The fallback runs a layer once more for each example. Numbers that the layer draws for all examples
at once, from a `keras.random.SeedGenerator`, it draws at once again. Where they are drawn otherwise
(in a loop, or one number for several examples), it gives every generator a seed for each example,
the same in both passes. Any other source of random numbers would draw anew: the gradient would be
that of another computation.
"""

from tfdp._compat.vectorized import DRAWS
from tfdp.clipping.plan.dataflow import called_by, has_batch_axis
from tfdp.errors import PrivacyError

# Operations whose results differ each time they run, or with the shape of what they fill.
_STATEFUL = (
    "AllCandidateSampler", "FixedUnigramCandidateSampler", "LogUniformCandidateSampler",
    "Multinomial", "NonDeterministicInts", "ParameterizedTruncatedNormal", "RandomCrop",
    "RandomGamma", "RandomPoisson", "RandomShuffle", "RandomStandardNormal", "RandomUniform",
    "RngReadAndSkip", "RngSkip", "SampleDistortedBoundingBox", "StatefulRandomBinomial",
    "StatefulStandardNormal", "StatefulTruncatedNormal", "StatefulUniform", "TruncatedNormal",
    "UniformCandidateSampler",
)  # fmt: skip
_KEYED = (
    "StatelessMultinomial", "StatelessParameterizedTruncatedNormal", "StatelessRandom",
    "StatelessSampleDistortedBoundingBox", "StatelessShuffle", "StatelessTruncatedNormal",
)  # fmt: skip
_WITHOUT_KEY = "StatelessRandomGetAlg"
_WITHOUT_NUMBERS = "StatelessRandomGet"  # keys, counters and algorithms
_KEYS = ("seed", "key")


class Draws:
    """The random operations in the graph of a forward pass.

    Args:
        graph: the graph.
    """

    def __init__(self, graph):
        definition = graph.as_graph_def()
        self._graph = graph
        self._functions = {f.signature.name: f for f in definition.library.function}
        self._top = _Body(definition.node, {}, None, None)

    def refuse_unrepeatable(self, call, states):
        """Refuses random numbers in a call that are not keyed by the seeds it drew.

        Args:
            call: a `LayerCall` that has no rule.
            states: states of the `keras.random.SeedGenerator`s that it advances.

        Raises:
            PrivacyError: if there are some.
        """
        handles = {id(state.value.handle) for state in states}
        found = {inner.op.name for outer, inner in self._graph.captures if id(outer) in handles}
        found |= {t.op.name for one in call.subtree() for t in one.seed_values}
        # A seed that comes from outside is the same for every example.
        outside = {op.name for op in self._graph.get_operations()[: call.operations.start]}
        search = _Search(self._top, found, outside - found)
        for op in call.made():
            node = self._top.nodes[op.name]
            bad = self._unkeyed(self._top, node, search)
            if bad is not None:
                raise PrivacyError(
                    f"Layer {call.layer.name!r} ({type(call.layer).__name__}) has no clipping "
                    "rule, so tfdp runs it again for each example. It draws random numbers that "
                    f"would differ in that run: operation {bad.name!r} ({bad.op}). Draw them with "
                    "a `keras.random.SeedGenerator` of the layer (`self.seeds = "
                    "keras.random.SeedGenerator()` and `keras.random.dropout(x, rate, "
                    "seed=self.seeds)`), or in a separate layer without weights."
                )

    def of_each_example(self, call, other):
        """Whether all random numbers of a call are drawn at once, each example having its row.

        Args:
            call: a `LayerCall` in the graph.
            other: the same call in another graph, with another number of examples.
        """
        operations, twins = call.made(), other.made()
        return len(operations) == len(twins) and all(
            not called_by(self._top.nodes[op.name]) & self._functions.keys()
            and (not _draws(op.type) or (op.type in DRAWS and op.type == twin.type
                                         and has_batch_axis(op.outputs[0], twin.outputs[0])))
            for op, twin in zip(operations, twins, strict=True)
        )  # fmt: skip

    def _unkeyed(self, body, node, search):
        """The first operation of a node, or of the functions that it calls, that has no key."""
        if node.op.startswith(_STATEFUL):
            return node
        if node.op.startswith(_KEYED) and node.op != _WITHOUT_KEY:
            names = [arg.name for arg in self._graph.op_def_for_type(node.op).input_arg]
            keys = [i for i, name in zip(_data(node), names, strict=False) if name in _KEYS]
            return None if any(search.reaches(body, key) for key in keys) else node
        for name in called_by(node) & self._functions.keys():
            function = self._functions[name]
            places = {arg.name: i for i, arg in enumerate(function.signature.input_arg)}
            inside = _Body(function.node_def, places, body, node)
            for inner in function.node_def:
                bad = self._unkeyed(inside, inner, search)
                if bad is not None:
                    return bad
        return None


def draws_anew(graph, op):
    """Whether an operation draws other random numbers each time, or a function that it calls.

    Args:
        graph: the operation's graph.
        op: a `tf.Operation`.
    """
    pending, seen, functions = [op.node_def], set(), None
    while pending:
        node = pending.pop()
        if node.op.startswith(_STATEFUL):
            return True
        called = called_by(node) - seen
        if called and functions is None:
            functions = {f.signature.name: f for f in graph.as_graph_def().library.function}
        seen |= called
        pending += [n for name in called & set(functions or ()) for n in functions[name].node_def]
    return False


def _draws(kind):
    return kind.startswith(_KEYED) and not kind.startswith(_WITHOUT_NUMBERS)


class _Body:
    """The nodes of a graph or of a function, and who calls it."""

    def __init__(self, nodes, places, caller, node):
        self.nodes = {n.name: n for n in nodes}
        self.places = places
        self.caller = caller
        self.node = node


class _Search:
    """Whether a tensor depends on the states of given generators."""

    def __init__(self, top, states, outside):
        self._top = top
        self._states = states
        self._outside = outside
        self._known = {}

    def reaches(self, body, tensor):
        name = tensor.split(":")[0]
        key = (id(body), name)
        if key not in self._known:
            self._known[key] = False
            self._known[key] = self._reaches(body, name)
        return self._known[key]

    def _reaches(self, body, name):
        if body is self._top and name in self._states:
            return True
        if name in body.places:
            # A branch is called with what its condition or index follows.
            skipped = 1 if body.node.op in ("If", "StatelessIf", "Case", "StatelessCase") else 0
            return self.reaches(body.caller, _data(body.node)[body.places[name] + skipped])
        if body is self._top and name in self._outside:
            return False
        node = body.nodes.get(name)
        return node is not None and any(self.reaches(body, tensor) for tensor in _data(node))


def _data(node):
    return [name for name in node.input if not name.startswith("^")]
