"""Whether rules that tfdp does not bring give the gradients of single examples, by numbers.

Row i of what a rule returns must depend on example i alone, and be its gradient; nothing else
makes clipping bound what an example can do. Rules of tfdp have tests. Those of others are compared
with the exact fallback on a few rows of the data, once for each run; and again
where weights that are zero hold other values, before which all gradients are zero.
"""

import keras
import numpy as np
import tensorflow as tf

from tfdp._compat.keras import all_layers
from tfdp.clipping.engine import backward, squared_norms
from tfdp.clipping.losses import example_mask_of
from tfdp.clipping.plan.planning import make_clipping_plan
from tfdp.clipping.recording import trained_variables
from tfdp.clipping.rules.registry import find_rule, is_foreign, rules_of_tfdp_alone
from tfdp.errors import PrivacyError
from tfdp.training.checks import opened_gates

#: Examples of a comparison.
ROWS = 13
_TOLERANCE = 1e-3  # of the largest gradient of an example


def assumptions_without_check(model):
    """Sentences about the rules of others that a model uses, where they are not compared."""
    rules = [find_rule(layer) for layer in all_layers(model)]
    names = dict.fromkeys(type(rule).__name__ for rule in rules if is_foreign(rule))
    return tuple(
        f"the clipping rule {name} returns the gradient of each example: this was not checked"
        for name in names
    )


def compare_foreign_rules(model, x, y, sample_weight):
    """Compares what rules of others give with the exact fallback.

    Args:
        model: a compiled `DPModel`.
        x, y, sample_weight: eager tensors of `ROWS` examples.

    Returns:
        Sentences about what could not be compared.

    Raises:
        PrivacyError: for a rule that gives another gradient of an example.
    """
    unchecked = assumptions_without_check(model)
    plan = model.clipping_plan(x)
    try:
        with rules_of_tfdp_alone():
            exact = make_clipping_plan(model, x)
    except PrivacyError:
        return unchecked  # no call around the layer can be repeated for one example
    if any(call.seeds for call in exact.calls.values()):
        return unchecked  # the fallback draws other random numbers than a rule
    advances = {id(v): v for v in (*plan.advances, *exact.advances)}.values()
    states = [(v, v.numpy()) for v in advances]
    # Not of all variables: a dense gradient of a large table for each example is too much.
    covered = {id(v) for c in plan.calls.values() if is_foreign(c.rule) for v in c.variables}

    def compare():
        found = []
        for one in (plan, exact):
            found.append(_gradients(model, one, covered, x, y, sample_weight))
            for variable, state in states:
                variable.assign(state)
        _refuse_other_gradients(model, plan, *found)

    compare()
    zeros = opened_gates.closed(v for v in plan.reads if v.trainable)
    try:
        with opened_gates.opened(zeros):
            if zeros:
                compare()
    except PrivacyError:
        raise
    except Exception:  # an assertion about such a variable, or anything else of the user's
        return unchecked
    return ()


def _refuse_other_gradients(model, plan, by_rules, by_fallbacks):
    for i, by_fallback in by_fallbacks.items():
        by_rule = by_rules[i]
        largest = np.max(np.linalg.norm(by_fallback.reshape(ROWS, -1), axis=1))
        error = np.max(np.linalg.norm((by_rule - by_fallback).reshape(ROWS, -1), axis=1))
        if not error <= _TOLERANCE * max(largest, 1e-6):
            variable = trained_variables(model)[i]
            raise PrivacyError(
                f"The gradient of variable {variable.path!r} for one example differs from the "
                f"exact one by {error / max(largest, 1e-06):.3g} of the largest norm. The "
                f"clipping rules {_foreign_names(plan)} computed it, and tfdp compared it with "
                f"the exact fallback on {ROWS} examples. Row i of a rule's result must be the "
                "gradient of example i and of no other. Correct the rule, or remove it: the layer "
                "then uses the exact fallback."
            )


def _gradients(model, plan, covered, x, y, sample_weight):
    """Dict of the place of a variable to (ROWS, *shape): the gradients of single examples.

    Those that are not finite are zero, as in a step.
    """
    regularized = [(v, v.value) for v in model.trainable_variables if v.regularizer is not None]

    def losses_of(outputs):
        with keras.StatelessScope(regularized):  # metrics of the losses are not counted
            return model.compute_loss(x, y, outputs, sample_weight, training=True)

    result = backward(model, plan, x, losses_of, example_mask_of(sample_weight, ROWS))
    norms, _, _ = squared_norms(result)
    finite = tf.math.is_finite(tf.cast(tf.add_n(norms), tf.float32))
    variables, found = trained_variables(model), {}
    for i, gradient, _ in result.gradients:
        if id(variables[i]) not in covered:
            continue
        rows = [gradient.clipped_sum(tf.one_hot(k, ROWS), finite) for k in range(ROWS)]
        found[i] = np.stack([np.asarray(tf.convert_to_tensor(row), np.float64) for row in rows])
    return found


def _foreign_names(plan):
    return sorted({type(c.rule).__name__ for c in plan.calls.values() if is_foreign(c.rule)})
