"""Deciding, before a step is traced, how each variable's per-example gradient is obtained.

The forward pass is traced twice on paper, for batches of 3 and of 5 examples. A tensor whose
leading axis is 3 in one trace and 5 in the other has the batch axis; one that has the same size
in both is shared by the whole batch, whatever its size. Nothing is computed.
"""

import dataclasses
import math

import keras
import tensorflow as tf

from tfdp.clipping.plan.alignment import (
    alignment,
    composites,
    divides_by_example,
    is_shared,
    pairs_of,
    tensors_of,
)
from tfdp.clipping.plan.dataflow import BATCH_SIZES, DataFlow
from tfdp.clipping.plan.draws import Draws
from tfdp.clipping.plan.refusals import refuse_named_layers
from tfdp.clipping.plan.sharing import Sharing
from tfdp.clipping.plan.tracing import kind, loop_steps, refuse_corrupting_derivatives, trace
from tfdp.clipping.recording import Recorder, ensure_built, trained_variables
from tfdp.clipping.rules import fallback
from tfdp.clipping.rules.embed_reduce import register_keras_rs
from tfdp.clipping.rules.position import register_keras_hub
from tfdp.clipping.rules.registry import Rule, ScoresRule
from tfdp.clipping.sums import cost
from tfdp.errors import PrivacyError
from tfdp.runtime.external_table import is_external, vector_tables

# A length that depends on the data, for estimates.
_UNKNOWN = 64


@dataclasses.dataclass(eq=False)
class PlannedCall:
    """A layer call whose parameters' per-example gradients are taken together.

    Attributes:
        key: the call's place in the call tree.
        rule: its rule, or None for the exact fallback.
        variables: the trainable variables covered, in the order they were read.
        broadcast: the output lacks the batch axis and is broadcast to it.
        uses: `Use`s of an output that all examples share, whose gradients are kept as factors.
        scores: keys of layers of scores, if an output that all examples share leads to them by
            other ways: its gradients are taken for some examples at once.
        aligned: for each tensor among the arguments, whether it has the batch axis.
        seeds: states of the random generators used inside (fallback only).
        draws_at_once: whether what they give is drawn for all examples at once (fallback only).
        slowdown: about how often as long a step takes for want of a rule (fallback only).
        work: what one example is to the call.
    """

    key: tuple
    layer: keras.Layer
    rule: Rule | None
    variables: list
    broadcast: bool = False
    uses: tuple = ()
    scores: tuple = ()
    aligned: list = dataclasses.field(default_factory=list)
    seeds: list = dataclasses.field(default_factory=list)
    draws_at_once: bool = False
    slowdown: float = 1.0
    work: cost.Work | None = None


@dataclasses.dataclass
class ClippingPlan:
    """Which calls of a model are recorded and how, and the variables that no call reads.

    Attributes:
        calls: dict of a call's place in the call tree to `PlannedCall`.
        unused: variables that no call reads.
        behind: those of them that are trained behind the rows of a `VectorTable`.
        aligned: dict of the same places, of all calls, to (for each tensor among the arguments,
            whether it has the batch axis; the same for the outputs).
        reads: the tf.Variables that the forward pass reads, trained or not.
        advances: the variables that it moves on by itself (`counts.py`).
    """

    calls: dict
    unused: list
    behind: list
    aligned: dict
    reads: list
    advances: list


def make_clipping_plan(model, x):
    """Plans the per-example gradients of a model.

    Args:
        model: a built Keras model.
        x: a batch of its inputs (tensors or specs), any nesting.

    Returns:
        A `ClippingPlan`.

    Raises:
        PrivacyError: for a layer that mixes examples, an activity regularizer, a loss added to
            the batch, a state updated from the batch, an output without the batch axis, or a
            layer that trains past the optimizer.
    """
    ensure_built(model, x)
    register_keras_hub()
    register_keras_rs(model)
    refuse_named_layers(model)
    (first, advances), (second, _) = (trace(model, x, size) for size in BATCH_SIZES)
    pairs = pairs_of(model, first, second)
    flow = DataFlow(first, trained_variables(model))
    flow.refuse_unseen_reads()
    calls = _with_scores(_choose(first, pairs, flow, Sharing(first, flow, second)), pairs)
    if calls is _INSIDE:
        calls = _choose(first, pairs, flow, None)
    if not all(alignment(first, pairs, lambda c: c.outputs)):
        raise PrivacyError(
            f"The outputs of model {model.name!r} lack the batch axis as their first axis, so "
            "tfdp cannot tell the gradients of its examples apart. Return outputs of shape "
            "(batch, ...)."
        )
    if calls is None:
        raise PrivacyError(
            f"Layers of model {model.name!r} without a clipping rule need the inputs one example "
            "at a time. Pass dense tensors of shape (batch, ...), and pad examples of different "
            "lengths. Ragged or sparse tensors, or ones without a batch axis, cannot be split. "
            f"Received: inputs {[kind(t) for t in tf.nest.flatten(x)]}"
        )
    draws = Draws(first.graph) if any(planned.rule is None for planned in calls) else None
    for planned in calls:
        if planned.rule is None:
            call, twin = pairs[planned.key]
            refuse_corrupting_derivatives(call)
            draws.refuse_unrepeatable(call, planned.seeds)
            planned.draws_at_once = draws.of_each_example(call, twin)
    _refuse_other_computations(model, x, calls, pairs)
    _estimate_work(calls, pairs)
    covered = {id(v) for planned in calls for v in planned.variables}
    unused = [v for v in trained_variables(model) if id(v) not in covered]
    tables = vector_tables(v for planned in calls for v in planned.variables)
    behind = {id(v) for table in tables.values() for v in table.weights}
    aligned = {
        call.key: tuple(
            alignment(call, pairs, get)
            for get in (lambda c: (c.args, c.kwargs), lambda c: c.outputs)
        )
        for call in first.subtree()
        if call.graph is first.graph
    }
    return ClippingPlan(
        {planned.key: planned for planned in calls},
        unused,
        [v for v in unused if id(v) in behind],
        aligned,
        list(first.graph.variables),
        advances,
    )


def _refuse_other_computations(model, x, calls, pairs):
    """Refuses calls on the fallback that compute something else when they are run again."""
    traced = {p.key: pairs[p.key][0] for p in calls if p.rule is None}
    if any(below.rule is not None for call in traced.values() for below in call.subtree()):
        root, _ = trace(model, x, BATCH_SIZES[0], Recorder)  # by no rules
        traced = {call.key: call for call in root.subtree()}
    for planned in calls:
        if planned.rule is None:
            fallback.refuse_other_computations(planned, traced[planned.key])


def _estimate_work(calls, pairs):
    """Notes what the calls cost, and about how much those without a rule slow a step down."""
    for planned in calls:
        planned.work = _work(planned, pairs[planned.key][0])
    for planned in calls:
        if planned.rule is None:
            apart = bool(planned.seeds) and not planned.draws_at_once
            planned.slowdown = cost.slowdown(planned.work, apart, [c.work for c in calls])


def _work(planned, call):
    steps = loop_steps(call.made())
    places = [
        math.prod(size or _UNKNOWN for size in t.shape[1:-1])
        for t in tensors_of(call.outputs)
        if t.shape.rank
    ]
    return cost.Work(
        sum(math.prod(v.shape) for v in planned.variables),
        max(places, default=1),
        max(1, int(steps) if math.isfinite(steps) else _UNKNOWN),
    )


# Scores that shared calls lead to are inside a call on the fallback, which keeps no factors.
_INSIDE = object()


def _with_scores(calls, pairs):
    """The calls, and the layers of scores in which shared ones meet the examples; or `_INSIDE`."""
    if calls is None:
        return None
    planned = {one.key: one for one in calls}
    wholes = [one.key for one in calls if one.rule is None]
    above = [use.above for one in calls for use in one.uses]
    handed_on = [planned[key] for key in above if key in planned]
    if not all(one.uses or isinstance(one.rule, ScoresRule) for one in handed_on):
        return _INSIDE  # what takes factors has none to hand on
    for needed in above + [key for one in calls for key in one.scores]:
        if any(needed[: len(key)] == key for key in wholes):
            return _INSIDE
        if needed not in planned:
            call, _ = pairs[needed]
            if not isinstance(call.rule, ScoresRule):
                return _INSIDE
            planned[needed] = PlannedCall(needed, call.layer, call.rule, [])
    return list(planned.values())


def _choose(call, pairs, flow, sharing):
    """Units that cover every read below a call, or None if only a call further up can.

    Args:
        call: a `LayerCall`.
        pairs: from `pairs_of`.
        flow: the `DataFlow`.
        sharing: the `Sharing`, or None if no call is to be treated as shared.
    """
    graph = flow.graph
    if not call.subtree_reads():
        return []
    calls = []
    if call.reads:
        planned = _by_rule(call, pairs, flow, sharing) if call.graph is graph else None
        calls = None if planned is None else [planned]
    if calls is not None:
        for child in call.children:
            below = _choose(child, pairs, flow, sharing) if child.graph is graph else (
                None if child.subtree_reads() else [])  # fmt: skip
            if below is None:
                calls = None
                break
            calls += below
    if calls is not None:
        return calls
    outputs = alignment(call, pairs, lambda c: c.outputs)
    if call.graph is not graph or not outputs or not all(outputs):
        return None
    for variable in call.subtree_reads().values():
        if is_external(variable):
            raise PrivacyError(
                f"Rows of {variable.name!r} are looked up inside layer {call.layer.name!r}, which "
                "has no clipping rule for them, and the table is no variable of this process. "
                "Call the SparseEmbedding directly in the model, or remove its `placement`. With "
                '`noise_at="vectors"`, call SharedNegatives directly in the model.'
            )
    if composites(call.outputs) or not divides_by_example(pairs[call.key]):
        return None
    if flow.leaves(call, whole=True) is not None:
        return None
    if flow.takes_rows_from_elsewhere(pairs[call.key]):
        return None
    return [
        PlannedCall(
            call.key,
            call.layer,
            None,
            list(call.subtree_reads().values()),
            aligned=alignment(call, pairs, lambda c: (c.args, c.kwargs)),
            seeds=list(call.subtree_seeds().values()),
        )
    ]


def _by_rule(call, pairs, flow, sharing):
    rule = call.rule
    if rule is None:
        return None
    known = {id(v) for v in rule.variables(call.layer, call.args, call.kwargs)}
    if not set(call.reads) <= known:
        return None
    if flow.leaves(call, whole=False) is not None:
        return None
    outputs = alignment(call, pairs, lambda c: c.outputs)
    aligned = bool(outputs) and all(outputs) and not composites(call.outputs)
    if not aligned and sharing is not None and not any(alignment(call, pairs, lambda c: c.args)):
        uses = sharing.uses(call)
        scores = sharing.scores(call) if uses is None else None
        if uses or scores:
            variables = list(call.reads.values())
            return PlannedCall(
                call.key, call.layer, rule, variables, uses=uses or (), scores=scores or ()
            )
    if not aligned and not (rule.broadcasts_shared_outputs and is_shared(call, pairs)):
        return None
    return PlannedCall(call.key, call.layer, rule, list(call.reads.values()), broadcast=not aligned)
