"""A forward pass in a graph, of which it is proved that examples do not mix."""

import tensorflow as tf

from tfdp.clipping.independence import proof
from tfdp.clipping.independence.values import Joined, Rows
from tfdp.clipping.independence.walk import Walk
from tfdp.clipping.plan.side_effects import known_inside
from tfdp.runtime.external_table import handles_of
from tfdp.training.checks.searched_layers import units_of_calls

_OUTSIDE = "does not belong to the step's examples and existed before the forward pass"


class ForwardPass:
    """A forward pass in a graph.

    Args:
        model: the model.
        inputs: tensors of the examples.
        start: place of its first operation in the graph.

    Attributes:
        graph: the graph, which is being traced.
        root: the `LayerCall` of the model, once it was called.
    """

    def __init__(self, model, inputs, start=None):
        self.model = model
        self.inputs = inputs
        self.root = None
        if not tf.executing_eagerly():
            self.graph = tf.compat.v1.get_default_graph()
            self.begin = self.graph.version if start is None else start

    def prove(self, results, units=(), probes=(), gradients=True, **kwargs):
        """Names of what was searched by values; see `proof.examine`.

        Args:
            results: tensors (B, ...) that must be of single examples.
            units: `Unit`s beside the layers.
            probes, kwargs: as for `proof.examine`.
            gradients: as for `Walk`.

        Raises:
            PrivacyError: if examples mix.
        """
        given = self._from_outside() | {t.name: Rows(0) for t in self.inputs}
        walk = Walk(self.inputs[0].shape[0], self._generators(), gradients)
        return proof.examine(
            walk, self.graph, given, results, self.where, [*units_of_calls(self), *units],
            start=self.begin, probes=probes, **kwargs,
        )  # fmt: skip

    def _from_outside(self):
        """Tensors that were there before the forward pass: they may hold of any example."""
        operations = self.graph.get_operations()[: self.begin]
        tensors = [t for op in operations if op.type != "Const" for t in op.outputs]
        captures = getattr(self.graph, "captures", ())
        tensors += [inner for outer, inner in captures if tf.is_symbolic_tensor(outer)]
        return {t.name: Joined(t.op, _OUTSIDE) for t in tensors if t.dtype != tf.resource}

    def _generators(self):
        """Names of the placeholders of the states of random generators that the pass moves on."""
        states = self.root.subtree_seeds().values()
        return known_inside(self.graph, {id(h) for state in states for h in handles_of(state)})

    def where(self, op):
        """The layer that an operation belongs to, for messages."""
        place = {o.name: i for i, o in enumerate(self.graph.get_operations())}[op.name]
        inner = None
        for call in self.root.subtree():  # calls inside come later
            if call.graph is self.graph and place in call.operations:
                inner = call.layer
        if inner in (None, self.model):
            return f"Model {self.model.name!r}"
        return f"Layer {inner.name!r} ({type(inner).__name__})"
