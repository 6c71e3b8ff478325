"""A graph that is walked through, and what is known of its tensors."""

import numpy as np
import tensorflow as tf

from tfdp.clipping.independence import search
from tfdp.clipping.independence.registry import RULES, SOURCES, Call
from tfdp.clipping.independence.values import PLACES, PUBLIC, Joined, Rows

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
        self.number = walk.number_of_bodies = walk.number_of_bodies + 1
        self.values = {}
        self.units = {}
        self.is_gradient = False  # while a gradient is walked through
        self._sources = {}
        if caller is not None:
            self._sources = dict(zip([t.name for t in graph.inputs], arguments, strict=True))
        self.initial = {}  # of the state of a loop: (tensor of the caller, output of the body)
        self.assumed = []  # outputs of a loop's body, and axes along which they must be alike
        self._uniform = {}

    def value(self, tensor):
        return self.values.get(tensor.name, PUBLIC)

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
        if tensor.op.type == "TensorListGetItem":  # of a range: element i is i
            _, given = body.root(tensor.op.inputs[0])
            if given.op.type == "TensorListFromTensor" and body.is_place(given.op.inputs[0], 0):
                return body.key(tensor.op.inputs[1])
        return body.number, tensor.name

    def element(self, tensor, i):
        """Element i of a vector that was put together of scalars, or None."""
        body, tensor = self.root(tensor)
        if tensor.op.type != "Pack" or tensor.shape.rank != 1:
            return None
        return body.root(tensor.op.inputs[i])[1]

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
        pending, seen = [self.root(tensor)], set()
        while pending:
            body, tensor = pending.pop()
            op = tensor.op
            if (id(body), op.name) in seen:
                continue
            seen.add((id(body), op.name))
            if search.is_static(op):
                continue
            if op.type != "Const" and (not op.inputs or op.op_def.is_stateful):
                return False
            pending += [body.root(t) for t in op.inputs]
        return True

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
        if op.type not in _MOVES:
            return False
        given = op.inputs[0]
        for k in range(given.shape.rank or 0):
            values = [Rows(k), *[PUBLIC] * (len(op.inputs) - 1)]
            found = Call(body, op, values, may_search=False).result()[0]
            if given.shape[k] == size and found == Rows(axis) and body.is_place(given, k):
                return True
        return False

    def unlike(self, tensor, axis):
        """Why the slices of a public tensor along an axis differ; "" if they do not.

        Slices of random numbers are alike if they follow one law independently of each other.
        """
        body, tensor = self.root(tensor)
        key = tensor.name, axis
        if key not in body._uniform:
            body._uniform[key] = ""  # of the state of a loop: unless its body says otherwise
            body._uniform[key] = body._unlike(tensor, axis)
        return body._uniform[key]

    def _unlike(self, tensor, axis):
        shape, op = tensor.shape, tensor.op
        if shape.rank and shape[axis] == 1:
            return ""
        if tensor.name in self.initial:
            outside, inside = self.initial[tensor.name]
            self.assumed.append((inside, axis))
            return self.caller[0].unlike(outside, axis)
        if op.type in SOURCES:
            return SOURCES[op.type](self, op, axis)
        value = self.constant(tensor)
        if value is not None and np.all(value == np.take(value, [0], axis)):
            return ""
        return self._unlike_inputs(tensor, axis)

    def broken_assumption(self):
        """Why slices of the state of a loop differ after a step, though they were alike before."""
        public = [(t, axis) for t, axis in self.assumed if self.value(t) is PUBLIC]
        return next(filter(None, (self.unlike(t, axis) for t, axis in public)), "")

    def _unlike_inputs(self, tensor, axis):
        """By the operation's rule: an axis of an input with slices that are alike becomes this."""
        op = tensor.op
        place = tensor.value_index
        size = tensor.shape[axis] if tensor.shape.rank else None
        why = PLACES
        for i, given in enumerate(op.inputs):
            for k in range(given.shape.rank or 0) if op.type in RULES else ():
                if given.shape[k] != size:
                    continue
                values = [PUBLIC] * len(op.inputs)
                values[i] = Rows(k)
                found = Call(self, op, values, may_search=False).result()[place]
                reason = found.what if isinstance(found, Joined) else PLACES
                if found == Rows(axis):
                    reason = self.unlike(given, k)
                    if not reason:
                        return ""
                why = reason if reason not in (PLACES, search.NO_RULE) else why
        return why


def _is_large(tensor):
    """Whether a tensor has too many numbers to be computed."""
    return (tensor.shape.num_elements() or 0) > _MOST
