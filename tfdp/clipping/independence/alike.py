"""Public tensors that are alike for all examples, and the random numbers that make them so."""

import contextlib
import dataclasses

import tensorflow as tf

from tfdp.clipping.independence.values import Joined, Rows


@dataclasses.dataclass(eq=False)
class Alike:
    """Whether a public tensor is the same for all examples, and what that rests on.

    Attributes:
        tensor: the tensor; None for all that a walk found.
        rows: where on it the examples would be.
        why: why it is not; "" if it is.
        because: those of the tensors that it is made of.
    """

    tensor: tf.Tensor | None = None
    rows: Rows | None = None
    why: str = ""
    because: list = dataclasses.field(default_factory=list)

    @contextlib.contextmanager
    def within(self, walk):
        """While it is looked at: what is found alike by then is what it rests on."""
        outside, walk.alike = walk.alike, self
        try:
            yield
        finally:
            walk.alike = outside

    def draws(self, types):
        """What examples have their own random numbers of, among the outputs of operations.

        Args:
            types: of the operations that draw.

        Returns:
            Dict of (id of a graph, name of a tensor) to its `Rows`, or `Joined` if there are
            several.
        """
        pending, seen, found = [self], set(), {}
        while pending:
            alike = pending.pop()
            if id(alike) in seen or alike.why:
                continue
            seen.add(id(alike))
            pending += alike.because
            if alike.tensor is not None and alike.tensor.op.type in types:
                op, key = alike.tensor.op, (id(alike.tensor.graph), alike.tensor.name)
                if found.setdefault(key, alike.rows) != alike.rows:
                    found[key] = Joined(op, "gives them to examples along several axes")
        return found
