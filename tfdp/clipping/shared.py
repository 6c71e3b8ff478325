"""Gradients at what all examples share, as factors, from the scores down (MATH.md section 14)."""

import dataclasses

import tensorflow as tf

from tfdp.clipping.rules.registry import ScoresRule
from tfdp.clipping.sums.contributions import SharedGradient
from tfdp.clipping.sums.rule_results import shared_contributions_of


class SharedFactors:
    """The gradients of a step at the outputs of its shared calls.

    Args:
        recorded: list of all `RecordedCall`s.
        gradients: dict of `id` of those that are not shared to the gradients at their probes.
    """

    def __init__(self, recorded, gradients):
        self._calls = {call.planned.key: call for call in recorded}
        self._gradients = gradients

    def contributions(self, call):
        """(variable, contribution) pairs of a shared call."""
        return shared_contributions_of(call, self._at_probe(call))

    def at_scores(self, call):
        """(left, right) at the rows that all examples share, of a layer of scores."""
        (gradient,) = self._gradients[id(call)]
        rule, layer = call.planned.rule, call.planned.layer
        return rule.factors(layer, call.args, call.kwargs, gradient)

    def _at_probe(self, call):
        """The `SharedGradient` at the probe of a shared call."""
        found = [self._at_input(use) for use in call.planned.uses]
        gradient = found[0]
        if len(found) > 1:  # none of them beyond a gate: the plan sees to that
            parts = zip(*((g.left, g.right) for g in found), strict=True)
            gradient = SharedGradient(*(tf.concat(part, 1) for part in parts))
        rule, layer = call.planned.rule, call.planned.layer
        if rule.gates_shared(layer, call.args, call.kwargs):
            gate = rule.shared_gate(layer, *call.probes)
            gradient = dataclasses.replace(gradient, gate=tf.cast(gate, tf.float32))
        return gradient

    def _at_input(self, use):
        call = self._calls[use.above]
        rule, given = call.planned.rule, (call.planned.layer, call.args, call.kwargs)
        if isinstance(rule, ScoresRule):
            gradient = SharedGradient(*self.at_scores(call))
        else:
            gradient = rule.shared_input(*given, self._at_probe(call))
        return gradient.columns(*use.columns)
