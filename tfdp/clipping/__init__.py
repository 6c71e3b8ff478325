"""Per-example clipping by book-keeping: one forward pass, one backward pass (MATH.md section 2)."""

# Importing `rules` registers the rules of Keras' own layers.
from tfdp.clipping import rules  # noqa: F401
from tfdp.clipping.contributions import Layout, OuterProduct, PerExampleGradients, Rows
from tfdp.clipping.inspect import explain, per_example_gradient_norms
from tfdp.clipping.registry import Rule, register_rule

__all__ = [
    "Layout",
    "OuterProduct",
    "PerExampleGradients",
    "Rows",
    "Rule",
    "explain",
    "per_example_gradient_norms",
    "register_rule",
]


def __dir__():
    return sorted(__all__)
