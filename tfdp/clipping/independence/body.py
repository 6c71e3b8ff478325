"""A graph that is walked through, and what is known of its tensors."""

import numpy as np
import tensorflow as tf

from tfdp.clipping.independence import search
from tfdp.clipping.independence.alike import Alike
from tfdp.clipping.independence.registry import RULES, SOURCES, Call
from tfdp.clipping.independence.values import (
    PLACES,
    PUBLIC,
    RESHAPES,
    Joined,
    Rows,
    axis_after_reshape,
)
from tfdp.clipping.plan.draws import draws_anew

#: Operations that leave numbers as they are.
_MOVES = frozenset({"BroadcastTo", "Cast", "ExpandDims", "Reshape", "Squeeze", "Tile", "Transpose"})
#: Of how many numbers a constant is computed.
_MOST = 2**22


class Body:
    """A graph, or the graph of a function that an operation calls, and what is known of it.

    Args:
        walk: the `Walk`.
        graph: the graph.
        caller: `Body` and operation that call the function; None for the outermost graph.
        arguments: for each input of the function the tensor of the caller that it stands for, or
            None if it stands for several (the state of a loop).
    """

    def __init__(self, walk, graph, caller=None, arguments=()):
        self.walk = walk
        self.graph = graph
        self.caller = caller
        self.condition = None  # of a loop: the graph that says whether it goes on
        self.number = walk.number_of_bodies = walk.number_of_bodies + 1
        self.values = {}
        self.units = {}
        self.is_gradient = False  # while a gradient is walked through
        self._sources = {}
        if caller is not None:
            self._sources = dict(zip([t.name for t in graph.inputs], arguments, strict=False))
        self.initial = {}  # of the state of a loop: (tensor of the caller, output of the body)
        self.assumed = []  # outputs of a loop's body, and for which `Rows` they must be alike
        self._alike = {}

    def value(self, tensor):
        if tensor.name in self.values:
            return self.values[tensor.name]
        return self.walk.drawn.get((id(self.graph), tensor.name), PUBLIC)

    def root(self, tensor):
        """(body, tensor) that this tensor is a copy of, as far out as possible."""
        while tensor.op.type in ("Identity", "Placeholder"):
            if tensor.op.type == "Identity":
                tensor = tensor.op.inputs[0]
                continue
            source = self._sources.get(tensor.name)
            if source is None:
                break
            return self.caller[0].root(source)
        return self, tensor

    def key(self, tensor):
        """What names an index: two of the same name are the same number."""
        body, tensor = self.root(tensor)
        return body.number, tensor.name

    def element(self, tensor, i):
        """`Body` and tensor of element i of a vector that was put together of scalars, or None."""
        body, tensor = self.root(tensor)
        if tensor.op.type != "Pack" or tensor.shape.rank != 1:
            return None
        return body.root(tensor.op.inputs[i])

    def constant(self, tensor):
        """The value of a tensor that is the same in every step, or None if that is not known."""
        body, tensor = self.root(tensor)
        key = id(body.graph), tensor.name
        known = self.walk.constants
        if key not in known:
            value = None if _is_large(tensor) else tf.get_static_value(tensor)
            if value is None and not _is_large(tensor) and body.is_constant(tensor):
                value = search.evaluate(tensor)
            known[key] = None if value is None else np.asarray(value)
        return known[key]

    def is_constant(self, tensor):
        """Whether a tensor is made of constants alone."""
        return all(
            search.is_static(op) or op.type == "Const" or (op.inputs and not op.op_def.is_stateful)
            for op in self._made_by(tensor)
        )

    def is_fresh(self, tensor):
        """Whether a key is made of the state of a generator, which goes on with each step."""
        return any(
            op.name in self.walk.generators or draws_anew(op.graph, op)
            for op in self._made_by(tensor)
        )

    def _made_by(self, tensor):
        """The operations that a tensor is made by, out to the outermost graph."""
        pending, seen = [self.root(tensor)], set()
        while pending:
            body, tensor = pending.pop()
            op = tensor.op
            if (id(body), op.name) in seen:
                continue
            seen.add((id(body), op.name))
            yield op
            if not search.is_static(op):
                pending += [body.root(t) for t in op.inputs]
            if tensor.name in body.initial:
                pending.append(body.caller[0].root(body.initial[tensor.name][0]))

    def is_place(self, tensor, axis):
        """Whether the numbers of a public tensor are their own places on an axis."""
        body, tensor = self.root(tensor)
        size = tensor.shape[axis]
        value = body.constant(tensor)
        if value is not None:
            places = np.arange(size).reshape([-1, *[1] * (np.ndim(value) - axis - 1)])
            return bool(np.all(value == places))
        op = tensor.op
        if op.type == "Range":
            first, _, step = (body.constant(t) for t in op.inputs)
            return first == 0 and step == 1
        given = op.inputs[0] if op.type in _MOVES else None
        if given is None or (op.type == "Cast" and tensor.dtype.size < 4):
            return False
        for k in range(given.shape.rank or 0):
            values = [Rows(k), *[PUBLIC] * (len(op.inputs) - 1)]
            found = Call(body, op, values, may_search=False).result()[0]
            if given.shape[k] == size and found == Rows(axis) and body.is_place(given, k):
                return True
        return False

    def unlike(self, tensor, rows):
        """Why a public tensor differs from example to example; "" if it does not.

        It does not if it stays the same when examples change their places, which are those that
        `Rows` says. Random numbers stay the same if they are independent and follow one law.
        """
        body, tensor = self.root(tensor)
        key = tensor.name, rows
        found = body._alike.get(key)
        if found is None:
            # The state of a loop is alike, unless the loop's body says otherwise.
            found = body._alike[key] = Alike(tensor, rows)
            with found.within(self.walk):
                found.why = body._unlike(tensor, rows)
        self.walk.alike.because.append(found)
        return found.why

    def _unlike(self, tensor, rows):
        op = tensor.op
        size = tensor.shape[rows.axis] if tensor.shape.rank else None
        if size == 1:
            return ""
        if size is not None and size % (rows.inner * self.walk.batch_size):
            return PLACES
        if tensor.name in self.initial:
            outside, inside = self.initial[tensor.name]
            self.assumed.append((inside, rows))
            return self.caller[0].unlike(outside, rows)
        if op.type in SOURCES:
            return SOURCES[op.type](self, op, rows)
        value = self.constant(tensor)
        if value is not None and self._is_alike(value, rows):
            return ""
        return self._unlike_inputs(tensor, rows)

    def _is_alike(self, value, rows):
        """Whether a constant is the same for all examples."""
        before, after = value.shape[: rows.axis], value.shape[rows.axis + 1 :]
        value = value.reshape([*before, -1, self.walk.batch_size, rows.inner, *after])
        return bool(np.all(value == np.take(value, [0], rows.axis + 1)))

    def is_public_outside(self, tensor):
        """Whether a tensor of a graph around this one is public."""
        body = self
        while body is not None:
            if tensor.graph is body.graph:
                return body.value(tensor) is PUBLIC
            body = body.caller[0] if body.caller is not None else None
        return not tf.is_symbolic_tensor(tensor)

    def visits_each(self, index):
        """Whether this loop comes to places 0, 1, … of B, and uses their numbers as such alone."""
        body, counter = self.root(index)
        if body is not self or not self._counts_from_zero(counter):
            return False
        states = [t for t in self.graph.inputs if t.name in self.initial]
        counted = [t for t in states if self.value(t) is PUBLIC and t.dtype != tf.variant]
        return all(map(self._only_counts, counted)) and self._goes_on(self.condition.outputs[0])

    def _counts_from_zero(self, state):
        """Whether a tensor is a state of this loop that is 0, 1, 2, … in its steps."""
        if state.name not in self.initial:
            return False
        before, after = self.initial[state.name]
        return self.caller[0].constant(before) == 0 and self._is_next(state, after)

    def _is_next(self, counter, after):
        op = self.root(after)[1].op
        if op.type != "AddV2":
            return False
        (_, one), (_, other) = map(self.root, op.inputs)
        return (one is counter and self.constant(other) == 1) or (
            other is counter and self.constant(one) == 1)  # fmt: skip

    def _only_counts(self, tensor):
        """Whether a public state of the loop is an index, a counter, or unused."""
        for op in tensor.consumers():
            place = [t is tensor for t in op.inputs].index(True)
            if op.type == "Identity":
                if not self._only_counts(op.outputs[0]):
                    return False
            elif op.type == "AddV2":
                if not all(self._is_end(t) for t in op.outputs):
                    return False
            elif op.type == "TensorListSetItem" and place == 1:
                continue
            elif op.type in ("TensorListGetItem", "GatherV2") and place == 1:
                given = op.inputs[0]
                if self.value(given) is PUBLIC and self.unlike(given, Rows(0)):
                    return False
            else:
                return False
        return True

    def _is_end(self, tensor):
        """Whether nothing but the next step of the loop uses a tensor."""
        return all(op.type == "Identity" and self._is_end(op.outputs[0])
                   for op in tensor.consumers())  # fmt: skip

    def _goes_on(self, tensor):
        """Whether the loop's condition holds for all of B steps."""
        op = tensor.op
        if op.type == "Identity":
            return self._goes_on(op.inputs[0])
        if op.type == "LogicalAnd":
            return all(map(self._goes_on, op.inputs))
        if op.type != "Less":
            return False
        counter, bound = map(self._in_condition, op.inputs)
        if counter is None or not self._counts_from_zero(counter):
            return False
        value = tf.get_static_value(op.inputs[1])
        if value is None and bound is not None:
            source = self.root(bound)
            value = source[0].constant(source[1]) if source[0] is not self else None
        return value is not None and value >= self.walk.batch_size

    def _in_condition(self, tensor):
        """The body's input that a tensor of the loop's condition is; None for other tensors."""
        while tensor.op.type == "Identity":
            tensor = tensor.op.inputs[0]
        names = [t.name for t in self.condition.inputs]
        return self.graph.inputs[names.index(tensor.name)] if tensor.name in names else None

    def broken_assumption(self):
        """Why the state of a loop is not alike after a step, though it was before."""
        for tensor, rows in self.assumed:  # which grows by what a state was made of, in turn
            why = self.unlike(tensor, rows) if self.value(tensor) is PUBLIC else ""
            if why:
                return why
        return ""

    def _unlike_inputs(self, tensor, rows):
        """By the operation's rule: where it brings what is alike in an input to these `Rows`."""
        op, why = tensor.op, PLACES
        for i, given in enumerate(op.inputs):
            for before in self._before(op, given, tensor, rows) if op.type in RULES else ():
                values = [PUBLIC] * len(op.inputs)
                values[i] = before
                tried = len(self.walk.alike.because)
                found = Call(self, op, values, may_search=False).result()[tensor.value_index]
                reason = found.what if isinstance(found, Joined) else PLACES
                if found == rows:
                    reason = self.unlike(given, before)
                    if not reason:
                        return ""
                del self.walk.alike.because[tried:]
                why = reason if reason not in (PLACES, search.NO_RULE) else why
        return why

    def _before(self, op, given, tensor, rows):
        """The `Rows` of an input that an operation may have brought to those of its output."""
        ranks = given.shape.rank, tensor.shape.rank
        if op.type in RESHAPES and None not in ranks:
            found = axis_after_reshape(tensor.shape, given.shape, rows, self.walk.batch_size)
            return [] if found is None else [found]
        size = tensor.shape[rows.axis] if ranks[1] else None
        sizes = given.shape if ranks[0] else ()
        return [Rows(k, rows.inner) for k, n in enumerate(sizes) if n == size]


def _is_large(tensor):
    """Whether a tensor has too many numbers to be computed."""
    return (tensor.shape.num_elements() or 0) > _MOST
