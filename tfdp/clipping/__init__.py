"""Per-example clipping by book-keeping: one forward pass, one backward pass (MATH.md section 2)."""

from tfdp.clipping import combiners, rules
from tfdp.clipping.contributions import Instances, Layout, OuterProduct, Rows
from tfdp.clipping.engine import backward, clipped_sums, squared_norms
from tfdp.clipping.factors import CLIPPING, clip_factors
from tfdp.clipping.inspect import explain, per_example_gradient_norms
from tfdp.clipping.losses import (
    MeanExampleLoss,
    PerExampleLoss,
    of_all_replicas,
    presence,
    share_of_mean,
)
from tfdp.clipping.planning import Plan, make_plan, refuse_crossed_examples
from tfdp.clipping.recording import constant, note_read, trained_variables
from tfdp.clipping.refusals import (
    WAY_OUT,
    refuse_layers_beyond_reach,
    refuse_named_layers,
    refuse_named_losses,
)
from tfdp.clipping.registry import Rule, register_rule
from tfdp.clipping.rules.embed_reduce import is_embed_reduce, register_keras_rs
from tfdp.clipping.side_effects import refuse_side_effects
from tfdp.clipping.surviving_rows import (
    SurvivorSums,
    activated_rows,
    place_among,
    restrict,
    table_name,
)
from tfdp.errors import PrivacyError

__all__ = [
    "CLIPPING",
    "Instances",
    "Layout",
    "MeanExampleLoss",
    "OuterProduct",
    "PerExampleLoss",
    "Plan",
    "PrivacyError",
    "Rows",
    "Rule",
    "SurvivorSums",
    "WAY_OUT",
    "activated_rows",
    "backward",
    "clip_factors",
    "clipped_sums",
    "combiners",
    "constant",
    "explain",
    "is_embed_reduce",
    "make_plan",
    "note_read",
    "of_all_replicas",
    "per_example_gradient_norms",
    "place_among",
    "presence",
    "refuse_crossed_examples",
    "refuse_layers_beyond_reach",
    "refuse_named_layers",
    "refuse_named_losses",
    "refuse_side_effects",
    "register_keras_rs",
    "register_rule",
    "restrict",
    "rules",
    "share_of_mean",
    "squared_norms",
    "table_name",
    "trained_variables",
]
