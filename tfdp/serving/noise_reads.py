"""How often a traced function draws from a source of noise."""

import math

_READ = "RngReadAndSkip"
_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_BRANCHES = ("If", "StatelessIf", "Case", "StatelessCase")


def reads_in(function, resource):
    """Draws from a `tfdp.noise.ServingNoiseSource` in one call of a function.

    Counted in the graph and not while Python runs: a `tf.function` that is called inside is traced
    once and may be called many times. Of branches, the one that draws most.

    Args:
        function: a concrete function.
        resource: `resource_handle` of the source.

    Returns:
        An int, or `math.inf` where the function draws in a loop, whose turns the graph does not
        tell.
    """
    handles = {inner.op.name for outer, inner in function.graph.captures if outer is resource}
    graph = function.graph.as_graph_def()
    library = {one.signature.name: one for one in graph.library.function}
    return _reads(graph.node, handles, library)


def _reads(nodes, handles, library):
    """Draws of some nodes; `handles` are the names under which they know the source."""
    found, handles = 0, set(handles)
    for node in nodes if handles else ():
        inputs = [name.split(":")[0] for name in node.input if not name.startswith("^")]
        places = [place for place, name in enumerate(inputs) if name in handles]
        if not places:
            continue
        if node.op == "Identity":
            handles.add(node.name)
        elif node.op == _READ:
            found += 1
        elif node.op in _CALLS + _BRANCHES:
            first = 1 if node.op in _BRANCHES else 0  # which branch
            found += max(
                _reads_of_called(library[name], [place - first for place in places], library)
                for name in _functions(node)
            )
        else:  # a loop, or an operation that calls functions in a way of its own
            found = math.inf
    return found


def _reads_of_called(called, places, library):
    arguments = [argument.name for argument in called.signature.input_arg]
    return _reads(called.node_def, {arguments[place] for place in places}, library)


def _functions(node):
    for value in node.attr.values():
        yield from (one.name for one in (value.func, *value.list.func) if one.name)
