"""Gradients at what all examples share, as factors, from the scores down (MATH.md section 14)."""

import tensorflow as tf

from tfdp.clipping.rules.registry import ScoresRule
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
        return shared_contributions_of(call, *self._at_probe(call))

    def at_scores(self, call):
        """(left, right) at the rows that all examples share, of a layer of scores."""
        (gradient,) = self._gradients[id(call)]
        rule, layer = call.planned.rule, call.planned.layer
        return rule.factors(layer, call.args, call.kwargs, gradient)

    def _at_probe(self, call):
        """(left, right): example i's gradient is Σ_t left[i, t]·right[i, t]ᵀ; see `Rule`."""
        found = [self._at_input(use) for use in call.planned.uses]
        if len(found) == 1:
            return found[0]
        return tuple(tf.concat(parts, 1) for parts in zip(*found, strict=True))

    def _at_input(self, use):
        call = self._calls[use.above]
        rule, given = call.planned.rule, (call.planned.layer, call.args, call.kwargs)
        if isinstance(rule, ScoresRule):
            left, right = self.at_scores(call)
        else:
            left, right = self._at_probe(call)
            right = rule.shared_input(*given, right)
        begin, end = use.columns
        return left, right[:, :, begin:end]
