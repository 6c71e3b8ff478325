"""Calls on what all examples share, whose gradients reach the examples in layers of scores alone.

Negatives that are drawn once a step go through layers without a batch axis, and meet the examples
in one layer of scores. Example i's gradient at the rows that meet them is then leftᵀ·right of two
factors, and stays so through layers that are linear in each row. What lies deeper gets gradients of
some examples at once, by the tape (MATH.md section 14).
"""

import dataclasses

import tensorflow as tf

from tfdp._compat.keras import logits_of
from tfdp.clipping.plan.dataflow import flows, gradient_ends
from tfdp.clipping.rules.registry import Rule, ScoresRule

_COPIES = frozenset({"Identity", "Cast"})
_SUMS = frozenset({"Add", "AddN", "AddV2"})


@dataclasses.dataclass(frozen=True)
class Use:
    """A way in which the output of a shared call goes on.

    Attributes:
        above: place in the call tree of the call whose input it is, or a part of: of scores, or
            of a layer that hands factors on.
        columns: (begin, end) of the part.
    """

    above: tuple
    columns: tuple


class Sharing:
    """The calls of a traced forward pass whose outputs meet the examples in layers of scores.

    Args:
        root: the `LayerCall` of the model.
        flow: the `DataFlow` of its graph.
        twin: the `LayerCall` of the model in a graph for another number of examples.
    """

    def __init__(self, root, flow, twin):
        self._flow, self._twin = flow, twin
        self._calls = [c for c in root.subtree() if c.graph is root.graph and c.rule is not None]
        self._made_by = {t.name: c for c in self._calls for t in c.probes}
        for call in self._calls:
            if call.rule.gates_shared(call.layer, call.args, call.kwargs):
                self._made_by |= {t.name: call for t in tf.nest.flatten(call.outputs)}
        self._uses, self._edges, self._beyond_gates = {}, set(), set()
        outputs = [t for t in tf.nest.flatten(root.outputs) if tf.is_symbolic_tensor(t)]
        outputs += [z for z in map(logits_of, outputs) if z is not None]
        self._outputs = {t.name for t in outputs}
        for call in self._calls:
            if isinstance(call.rule, ScoresRule):
                self._down(call.rule.shared_argument(call.args, call.kwargs), call, 0)

    def uses(self, call):
        """The `Use`s of a call's output, or None if it is used in any other way."""
        found = self._uses.get(call.key)
        if found is None or not self._goes_on_by_these_alone(call):
            return None
        is_alone = len(found) == 1 and not any(map(self._is_shared, self._others(call)))
        return found if is_alone or call.key not in self._beyond_gates else None

    def _others(self, call):
        """The other calls that read one of a call's variables."""
        return [c for c in self._calls if c is not call and set(c.reads) & set(call.reads)]

    def _is_shared(self, call):
        return not all(self._flow.has_batch_size(t, self._twin) for t in call.probes)

    def scores(self, call):
        """Keys of the layers of scores to which a call's output leads, through anything; or None.

        None as well if its rule cannot be applied to it with an axis of examples.
        """
        rule, given = call.rule, (call.layer, call.args, call.kwargs)
        by_gradients = type(rule).contributions_from is Rule.contributions_from
        if not by_gradients or not call.probes or not rule.takes_positions(*given):
            return None
        scores = {
            c.rule.shared_argument(c.args, c.kwargs).name: c
            for c in self._calls if isinstance(c.rule, ScoresRule)
        }  # fmt: skip
        pending, seen, found = list(call.probes), set(), set()
        while pending:
            tensor = pending.pop()
            meets = scores.get(tensor.name)
            inside = {op.name for op in meets.made()} if meets else ()
            if tensor.name in self._outputs or self._flow.has_batch_size(tensor, self._twin):
                return None
            for op in tensor.consumers():
                if op.name in inside:
                    found.add(meets.key)
                elif not gradient_ends(op) and op.name not in seen:
                    seen.add(op.name)
                    pending += [t for t in op.outputs if flows(t)]
        return tuple(sorted(found)) or None

    def _down(self, tensor, above, begin, gated=False):
        """From what a call takes, columns from `begin` on, to the shared calls that made it.

        Args:
            tensor: what it takes, or a part.
            above: the `LayerCall`.
            begin: see above.
            gated: whether the gradient there has a gate, which look-ups take alone.
        """
        if not tf.is_symbolic_tensor(tensor) or tensor.shape.rank != 2 or None in tensor.shape:
            return
        call = self._made_by.get(tensor.name)
        if call is not None:
            rule, given = call.rule, (call.layer, call.args, call.kwargs)
            is_taken = rule.accepts_shared(*given) and (not gated or rule.takes_gates(*given))
            if len(call.probes) == 1 and is_taken:
                use = Use(above.key, (begin, begin + tensor.shape[1]))
                self._uses[call.key] = (*self._uses.get(call.key, ()), use)
                if gated:
                    self._beyond_gates.add(call.key)
                if rule.hands_on_factors and len(self._uses[call.key]) == 1:
                    self._down(call.args[0], call, 0, rule.gates_shared(*given))
            return
        op = tensor.op
        if op.type in _COPIES and flows(op.inputs[0]):
            parts = [(op.inputs[0], begin)]
        elif gated:
            return  # what meets others in a row has not one gate for each id
        elif op.type in _SUMS and all(t.shape == tensor.shape for t in op.inputs):
            parts = [(t, begin) for t in op.inputs]
        elif op.type == "ConcatV2" and tf.get_static_value(op.inputs[-1]) in (1, -1):
            parts = []
            for part in op.inputs[:-1]:
                parts.append((part, begin))
                begin += part.shape[1] or 0
        else:
            return
        self._edges.add(op.name)
        for part, start in parts:
            self._down(part, above, start, gated)

    def _goes_on_by_these_alone(self, call):
        """Whether gradients reach the call's output by its uses alone."""
        above = [c for c in self._calls if c.key in {use.above for use in self._uses[call.key]}]
        inside = {op.name for c in above for op in c.made()}
        edges = self._edges | {op.name for op in call.made()}
        pending, seen = list(call.probes), set()
        while pending:
            tensor = pending.pop()
            if tensor.name in self._outputs:
                return False
            for op in tensor.consumers():
                if gradient_ends(op) or op.name in seen:
                    continue
                seen.add(op.name)
                if op.name in edges:
                    pending += [t for t in op.outputs if flows(t)]
                elif op.name not in inside:
                    return False
        return True
