"""How often a traced function draws from a source of noise, and how much."""

from __future__ import annotations

import dataclasses
import math

import tensorflow as tf

_READ = "RngReadAndSkip"
_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_BRANCHES = ("If", "StatelessIf", "Case", "StatelessCase")


@dataclasses.dataclass(frozen=True)
class Reads:
    """Draws from a source of noise.

    Args:
        draws: how many there are; `math.inf` where there are some in a loop, whose turns the graph
            does not tell.
        numbers: how many random numbers they draw together; `math.inf` where the graph does not
            tell.
    """

    draws: float = 0
    numbers: float = 0

    def __add__(self, other):
        return Reads(self.draws + other.draws, self.numbers + other.numbers)


def reads_in(function, resource):
    """The `Reads` of a `tfdp.noise.ServingNoiseSource` in one call of a function.

    Counted in the graph and not while Python runs: a `tf.function` that is called inside is traced
    once and may be called many times. Of branches, the one that draws most.

    Args:
        function: a concrete function.
        resource: `resource_handle` of the source.
    """
    handles = {inner.op.name for outer, inner in function.graph.captures if outer is resource}
    graph = function.graph.as_graph_def()
    library = {one.signature.name: one for one in graph.library.function}
    return _reads(graph.node, handles, library)


def _reads(nodes, handles, library):
    """`Reads` of some nodes; `handles` are the names under which they know the source."""
    found, handles = Reads(), set(handles)
    named = {node.name: node for node in nodes}
    for node in nodes if handles else ():
        inputs = [name.split(":")[0] for name in node.input if not name.startswith("^")]
        places = [place for place, name in enumerate(inputs) if name in handles]
        if not places:
            continue
        if node.op == "Identity":
            handles.add(node.name)
        elif node.op == _READ:
            found += Reads(1, _constant(named.get(inputs[2])))
        elif node.op in _CALLS + _BRANCHES:
            first = 1 if node.op in _BRANCHES else 0  # which branch
            called = [
                _reads_of_called(library[name], [place - first for place in places], library)
                for name in _functions(node)
            ]
            found += Reads(max(one.draws for one in called), max(one.numbers for one in called))
        else:  # a loop, or an operation that calls functions in a way of its own
            found += Reads(math.inf, math.inf)
    return found


def _constant(node):
    """The value of a node, or `math.inf` where it is not a constant."""
    if node is None or node.op != "Const":
        return math.inf
    return int(tf.make_ndarray(node.attr["value"].tensor))


def _reads_of_called(called, places, library):
    arguments = [argument.name for argument in called.signature.input_arg]
    return _reads(called.node_def, {arguments[place] for place in places}, library)


def _functions(node):
    for value in node.attr.values():
        yield from (one.name for one in (value.func, *value.list.func) if one.name)
