"""The walk through a traced graph: from what the inputs hold of the examples to every tensor."""

import dataclasses
from collections.abc import Callable

import tensorflow as tf

from tfdp._compat.tensorflow import function_graphs, has_own_gradient, tapes_record
from tfdp.clipping.independence import search
from tfdp.clipping.independence.alike import Alike
from tfdp.clipping.independence.body import Body
from tfdp.clipping.independence.draws import DRAWS, note_draw
from tfdp.clipping.independence.registry import RULES, THOROUGH, Call, together
from tfdp.clipping.independence.values import PUBLIC, Joined, One, Rows, is_of_examples, met_by
from tfdp.clipping.plan.side_effects import is_harmless

_SHAPES = frozenset({"Shape", "ShapeN", "Size", "Rank", "ZerosLike", "OnesLike"})
_BRANCHES = frozenset({"If", "StatelessIf", "Case", "StatelessCase"})
_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
_LOOPS = frozenset({"While", "StatelessWhile"})


@dataclasses.dataclass
class Unit:
    """A part of a graph that is run as a whole: a layer or a loss of Keras.

    Attributes:
        name: what it is, for the statement.
        operations: range of the places of its operations in the graph.
        inputs, outputs: its tensors.
        run: function of eager inputs to eager outputs, as lists; None if it is known to keep
            examples apart.
        is_trusted: whether to search even if it joins examples by the rules.
    """

    name: str
    operations: range
    inputs: list
    outputs: list
    run: Callable | None
    is_trusted: bool = False


class Walk:
    """Follows examples through a graph.

    Args:
        batch_size: B, at least 2.
        generators: names of placeholders of the states of random generators.
        gradients: whether gradients are taken of what is computed, too.

    Attributes:
        searched: names of types of operations for which values were searched.
        alike: the public tensors that met examples and are alike for all.
        drawn: dict of (id of a graph, name of a tensor) to the `Rows` of random numbers that are
            taken for those of single examples; the others are public.
        draws: of each random key, what is drawn with it.
        numbers: of tensors, the same for those that are computed in the same way.
        keeping: operations that may keep what they got of examples: for other steps, say.
    """

    def __init__(self, batch_size, generators=frozenset(), gradients=True):
        self.batch_size = batch_size
        self.gradients = gradients
        self.searched = {}
        self.alike = Alike()
        self.drawn = {}
        self.draws = {}
        self.numbers = {}
        self.keeping = []
        self.generators = generators
        self.number_of_bodies = 0
        self._graphs = {}
        self._callers = {}
        self._kept_apart = {}
        self.found_by_search = {}
        self.constants = {}

    def outer(self, op):
        """The operation of the outermost graph in which an operation is run."""
        while id(op.graph) in self._callers:
            op = self._callers[id(op.graph)]
        return op

    def outermost(self, graph, values, units=(), start=0, only=None):
        """The `Body` of a graph, walked through.

        Args:
            graph: the graph.
            values: dict of the names of tensors to what they hold; others hold nothing.
            units: `Unit`s of the graph that may be searched as a whole, inner ones first.
            start: place of the first operation that is looked at.
            only: names of the operations that are looked at; None for all.
        """
        body = Body(self, graph)
        body.units = {}
        for unit in units:
            body.units.setdefault(unit.operations.stop, []).append(unit)
        return self._through(body, values, start, only)

    def _search_unit(self, body, unit):
        """Searches a unit by values whose outputs are not proved, though its inputs are."""
        inputs = [body.value(t) for t in unit.inputs]
        joined = [v for v in map(body.value, unit.outputs) if isinstance(v, Joined)]
        may_search = unit.is_trusted or not any(v.known for v in joined)
        if not (joined and may_search) or any(v not in (PUBLIC, Rows(0)) for v in inputs):
            return
        given = [t for t, v in zip(unit.inputs, inputs, strict=True) if v is not PUBLIC]
        if len(given) < len(inputs) or not all(t.shape.is_fully_defined() for t in given):
            return
        if id(unit) not in self._kept_apart:
            self._kept_apart[id(unit)] = unit.run is None or search.keeps_apart(
                unit.run, given, self.batch_size
            )
        if self._kept_apart[id(unit)]:
            if unit.run is not None:
                self.searched[unit.name] = unit
            body.values.update({t.name: Rows(0) for t in unit.outputs})

    def _through(self, body, values, start=0, only=None):
        body.values = dict(values)
        operations = body.graph.get_operations()[start:]
        for place, op in enumerate(operations, start):
            for unit in body.units.get(place, ()):
                self._search_unit(body, unit)
            if op.type in DRAWS:
                note_draw(body, op)
            if op.type == "Placeholder" or not op.inputs:
                continue
            if only is not None and op.name not in only:
                continue
            inputs = [body.value(t) for t in op.inputs]
            if all(v is PUBLIC for v in inputs):
                continue
            if op.op_def.is_stateful and not is_harmless(op.graph, op.type):
                self.keeping.append(op)
            found = self._outputs(Call(body, op, inputs))
            for tensor, value in zip(op.outputs, found, strict=True):
                if value is not PUBLIC:
                    body.values.setdefault(tensor.name, value)
        for unit in body.units.get(start + len(operations), ()):
            self._search_unit(body, unit)
        return body

    def _outputs(self, call):
        return self._checked(call, self._found(call))

    def _found(self, call):
        op, values = call.op, call.values
        if op.type in _SHAPES:
            known = all(t.shape.is_fully_defined() for t in op.inputs)
            if known or op.type == "Rank":
                return [PUBLIC] * len(op.outputs)
        if op.type in _BRANCHES:
            return self._of_branches(call)
        if op.type in _LOOPS:
            return self._of_loop(call)
        if op.type in _CALLS:
            (graph,) = self._functions(op, op.inputs)
            inside = self._inside(call, graph, values, list(op.inputs))
            # A tape adds outputs to a function's graph, behind its own.
            return [inside.value(t) for t in graph.outputs[: len(op.outputs)]]
        if op.type in THOROUGH:
            return call.result()
        mixed = call.mixed()
        if mixed is not None:
            return [mixed] * len(op.outputs)
        return call.result() if op.type in RULES else call.searched()

    def _checked(self, call, found):
        """The values, unless a gradient that a user wrote joins what the operation does not."""
        # Gradients of gradients are not taken.
        if call.body.is_gradient or not self.gradients or not has_own_gradient(call.op):
            return found
        why = self._joined_by_gradient(call, found)
        return found if why is None else [why] * len(found)

    def _joined_by_gradient(self, call, found):
        op, graph = call.op, call.op.graph
        held = [(t, v) for t, v in zip(op.inputs, call.values, strict=True) if v is not PUBLIC]
        if any(t.dtype == tf.variant for t, _ in held):
            return Joined(op, "has a custom gradient for a list", known=False)
        held = [(t, v) for t, v in held if t.dtype.is_floating or t.dtype.is_complex]
        start, captured = len(graph.get_operations()), {id(t) for _, t in _captures(graph)}
        try:
            with tapes_record(), graph.as_default():  # those in the gradient, in `tf.init_scope`
                upstream = [tf.zeros(t.shape, t.dtype) for t in op.outputs]
                upstream = [tf.raw_ops.PlaceholderWithDefault(input=t, shape=t.shape)
                            for t in upstream]  # fmt: skip
                gradients = tf.gradients(list(op.outputs), [t for t, _ in held], upstream)
        except Exception as error:  # of the user's own function, or of one that is gone
            return Joined(op, f"has a gradient that cannot be traced ({error})", known=False)
        given = {}
        for tensor, output, value in zip(upstream, op.outputs, found, strict=True):
            if value is PUBLIC:  # but not what comes back to it
                same = [v for t, v in held if t.shape == output.shape]
                value = same[0] if same else Joined(op, "has a custom gradient")
            given[tensor.name] = value
        for outer, inner in _captures(graph):
            if id(inner) not in captured and not call.body.is_public_outside(outer):
                return Joined(op, "has a gradient that reads tensors from outside", known=False)
        body = call.body
        body.is_gradient = True
        self._through(body, {**body.values, **given}, start)
        body.is_gradient = False
        for (_, before), gradient in zip(held, gradients, strict=True):
            value = before if gradient is None else body.value(gradient)
            if isinstance(value, Joined):
                what = f"has a custom gradient, in which {value.op.type} {value.what}"
                return Joined(op, what, value.known)
            if value is PUBLIC and isinstance(before, Rows):
                why = body.unlike(gradient, before)
                value = before if not why else None
            if value not in (before, PUBLIC):
                return Joined(op, "has a custom gradient that joins the examples")
        return None

    def _functions(self, op, inputs):
        key = (id(op.graph), op.name)
        if key not in self._graphs:
            self._graphs[key] = function_graphs(op, [t.shape for t in inputs])
        return self._graphs[key]

    def _inside(self, call, graph, values, arguments, initial=(), condition=None):
        self._callers[id(graph)] = call.op
        body = Body(self, graph, (call.body, call.op), arguments)
        body.initial, body.condition = dict(initial), condition
        named = {t.name: v for t, v in zip(graph.inputs, values, strict=False)}
        return self._through(body, named)

    def _of_branches(self, call):
        op, (decides, *values) = call.op, call.values
        arguments = list(op.inputs)[1:]
        inside = [
            self._inside(call, graph, values, arguments) for graph in self._functions(op, arguments)
        ]
        outputs = []
        for k in range(len(op.outputs)):
            sides = [(body, body.graph.outputs[k]) for body in inside]
            value = _either(call, [(body, t, body.value(t)) for body, t in sides])
            if isinstance(decides, Joined) and is_of_examples(value):
                value = met_by(Joined(decides.op, decides.what, decides.known), op)
            elif decides is not PUBLIC and not isinstance(value, Joined):
                value = decides if value is PUBLIC else together(call, [decides, value])
            outputs.append(value)
        return outputs

    def _of_loop(self, call):
        op, values = call.op, list(call.values)
        condition, graph = self._functions(op, op.inputs)
        inputs = graph.inputs[: len(values)]  # a gradient adds others
        kept = [_is_kept(t, u) for t, u in zip(inputs, graph.outputs, strict=True)]
        arguments = [t if keep else None for t, keep in zip(op.inputs, kept, strict=True)]
        initial = {
            t.name: (outside, after)
            for t, outside, after, keep in zip(inputs, op.inputs, graph.outputs, kept, strict=True)
            if not keep
        }
        while True:
            body = self._inside(call, graph, values, arguments, initial, condition)
            after = []
            for k, (t, before) in enumerate(zip(graph.outputs, values, strict=True)):
                value = body.value(t)
                if isinstance(value, One) and value not in call.values:
                    value = Joined(t.op, "passes values of one example to the next")
                sides = [(call.body, op.inputs[k], before), (body, t, value)]
                after.append(before if kept[k] else _either(call, sides))
            places = body.broken_assumption()  # of those that were just made, too
            if places:
                after = [
                    v if keep else call.joined(places) for v, keep in zip(after, kept, strict=True)
                ]
            if after == values or places:
                values = after
                break
            values = after
        decides = self._inside(call, condition, values, arguments).value(condition.outputs[0])
        if decides is PUBLIC:
            return values
        return [
            v if keep else _decided(call, decides, v) for v, keep in zip(values, kept, strict=True)
        ]


def _decided(call, decides, value):
    """What the state of a loop holds whose number of steps depends on examples."""
    if isinstance(decides, Joined):
        ended = Joined(decides.op, "decides when a loop over all examples ends", decides.known)
        return met_by(ended, call.op) if is_of_examples(value) else ended
    return decides if value is PUBLIC else together(call, [decides, value])


def _captures(graph):
    return list(getattr(graph, "captures", ()))


def _is_kept(before, after):
    """Whether the body of a loop hands on what it was given."""
    while after.op.type == "Identity":
        after = after.op.inputs[0]
    return after is before


def _either(call, sides):
    """What a tensor holds that is one of several; triples of body, tensor and value."""
    values = [v for _, _, v in sides if v is not PUBLIC]
    if not values:
        return PUBLIC
    for value in values:
        if isinstance(value, Joined):
            return value
    value = together(call, values)
    if isinstance(value, Rows):
        for body, tensor, own in sides:
            if own is PUBLIC:
                why = body.unlike(tensor, value)
                if why:
                    return call.joined(why)
    return value
