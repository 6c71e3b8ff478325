"""The rules of operations, and what they are called with."""

import dataclasses
import typing

import tensorflow as tf

from tfdp.clipping.independence import search
from tfdp.clipping.independence.values import PUBLIC, Joined, One, Rows, is_of_examples, met_by

#: Rules of operations, by type: functions of a `Call` to a value, or a list of one for each output.
RULES = {}
#: Those that are also called with `Joined` values, or with examples of several kinds.
THOROUGH = set()
#: Why what an operation makes is not alike for all examples, by type: functions of a `Body`, the
#: operation and `Rows` to "" or a reason.
SOURCES = {}


def rule(*types, thorough=False):
    """Registers a rule for operations."""

    def register(function):
        for one in types:
            assert one not in RULES, one
            RULES[one] = function
        if thorough:
            THOROUGH.update(types)
        return function

    return register


def source(*types):
    """Registers where public tensors come from."""

    def register(function):
        SOURCES.update(dict.fromkeys(types, function))
        return function

    return register


@dataclasses.dataclass
class Call:
    """An operation and what its inputs hold; what rules are called with."""

    body: typing.Any
    op: tf.Operation
    values: list
    may_search: bool = True

    @property
    def batch_size(self):
        return self.body.walk.batch_size

    def shape(self, i):
        return self.op.inputs[i].shape

    def rank(self, i):
        return self.op.inputs[i].shape.rank

    def constant(self, i):
        return self.body.constant(self.op.inputs[i])

    def attribute(self, name):
        return self.op.get_attr(name)

    def mixed(self):
        """What the outputs hold if inputs are not all public or by example; else None."""
        held = [v for v in self.values if v is not PUBLIC]
        if all(isinstance(v, Rows) for v in held):
            return None
        kinds = {type(v) for v in held}
        if kinds == {Rows, One}:
            return self.joined("combines one example with all others")
        return together(self, held)

    def rows(self):
        """Pairs of place and value of the inputs that are by example."""
        return [(i, v) for i, v in enumerate(self.values) if isinstance(v, Rows)]

    def joined(self, what):
        return Joined(self.op, what)

    def unlike(self, i, rows):
        """A `Joined` if an input that is public differs from example to example of `Rows`."""
        why = self.body.unlike(self.op.inputs[i], rows)
        return self.joined(why) if why else None

    def searched(self):
        """What the outputs hold, found by values: there is no rule, or none that fits."""
        if self.may_search:
            found, key = self.body.walk.found_by_search, (id(self.op), tuple(self.values))
            if key not in found:
                found[key] = search.outputs(self)
            return found[key]
        return [Joined(self.op, search.NO_RULE, known=False)] * len(self.op.outputs)

    def result(self):
        """What the outputs hold, by the operation's rule."""
        found = RULES[self.op.type](self)
        return found if isinstance(found, list) else [found] * len(self.op.outputs)


def together(call, values):
    """The value if all are the same, else a `Joined`."""
    joined = next((v for v in values if isinstance(v, Joined)), None)
    if joined is not None:
        return met_by(joined, call.op) if any(map(is_of_examples, values)) else joined
    if all(v == values[0] for v in values):
        return values[0]
    return call.joined("combines examples with other examples")
