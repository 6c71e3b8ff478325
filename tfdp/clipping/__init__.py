"""One forward pass, one backward pass, the clipped sums of a batch. No noise, no charge."""

# Importing `rules` registers the rules of Keras' own layers.
from tfdp.clipping import rules  # noqa: F401
from tfdp.clipping.inspect import explain, per_example_gradient_norms
from tfdp.clipping.rules.registry import Rule, register_rule
from tfdp.clipping.sums.contributions import Layout, OuterProduct, PerExampleGradients, Rows

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
