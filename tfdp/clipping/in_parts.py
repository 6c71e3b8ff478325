"""Gradients beyond layers that keep factors: of some examples at once (MATH.md section 14).

Where what all examples share went through an activation, example i's gradient is no longer two
factors. Its norm is taken from its own N × d gradients, which exist for a few examples at a time.
The clipped sum is made of them, too: they are computed again, in the same parts.
"""

import dataclasses

import tensorflow as tf

from tfdp._compat.vectorized import vectorized_map
from tfdp.clipping.recording import current_graph
from tfdp.clipping.rules.registry import ScoresRule
from tfdp.clipping.sums.contributions import OuterProduct, PerExampleGradients, Rows, SharedRows
from tfdp.clipping.sums.forms import Gradient
from tfdp.clipping.sums.gradients import variable_gradient
from tfdp.clipping.sums.products import SUMMED, UNDERFLOW, sum_of_squares
from tfdp.clipping.sums.rule_results import contributions_of
from tfdp.runtime.wide_sums import wide

# Numbers in the gradients of the examples that are looked at together, at one probe.
_TOGETHER = 1 << 21


class GradientsInParts:
    """The gradients of the variables of shared calls that the plan takes in parts.

    Args:
        tape: the persistent tape of the forward pass.
        recorded: list of all `RecordedCall`s.
        shared: their `SharedFactors`.
        together: function of a contribution to that of units.
    """

    def __init__(self, tape, recorded, shared, together):
        self._tape = tape
        self._calls = [call for call in recorded if call.planned.scores]
        keys = {key for call in self._calls for key in call.planned.scores}
        scores = [call for call in recorded if call.planned.key in keys]
        assert all(isinstance(call.planned.rule, ScoresRule) for call in scores)
        self._meeting = [c.planned.rule.shared_argument(c.args, c.kwargs) for c in scores]
        factors = [shared.at_scores(call) for call in scores]
        # (left (U, T, N), right (U, T, d)) of units, for each layer of scores
        units = [together(SharedRows(tf.range(f[0].shape[2]), *f)) for f in factors]
        self.factors = [t for unit in units for t in (unit.left, unit.right)]
        self._probes = [probe for call in self._calls for probe in call.probes]
        self._covered = {id(v) for call in self._calls for v in call.planned.variables}
        self._pending, self._norms, self._sums = [], None, {}

    def covers(self, variable):
        """Whether a shared call in parts uses a variable."""
        return id(variable) in self._covered

    def gradient(self, variable, contributions):
        """The `Gradient` of such a variable; all of them are to be made before any norm is taken.

        Args:
            contributions: list of what the examples contribute to it in other calls.
        """
        self._pending.append((variable, contributions))
        return InParts(variable, contributions, self)

    def squared_norm(self, variable):
        """(U,) squared norms of the gradients by a variable, and (U,) bounds of their error."""
        if self._norms is None:
            self._norms = self._all_norms()
        return self._norms[id(variable)]

    def clipped_contributions(self, variable, factors, clip):
        """What shared calls contribute to a variable, of one example: Σ_u clip_u times unit u's.

        Args:
            factors: `self.factors`, zeros where a unit is not finite.
            clip: (U,) clip factors.
        """
        key = id(clip), id(current_graph())  # all variables have the same units that are finite
        if key not in self._sums:
            kept = clip, current_graph()  # as their ids are
            self._sums[key] = (*kept, self._clipped(factors, clip))
        return [c for v, c in self._sums[key][-1] if v is variable]

    def _clipped(self, factors, clip):
        """(variable, contribution) pairs of Σ_u clip_u·g_u, of the very g_u that have the norms.

        A backward pass from the clipped sum at the scores would be shorter. But a Jacobian that
        cancels (of a cosine) enlarges the rounding of a sum that no clipping bounds. Nor is what a
        rule has added up made of the sum at the probe: there it may be larger than its norm.
        """
        _, count, size = self._division()
        parts = [_divided(t, count, size) for t in factors]
        clips = _divided(clip, count, size)

        def one(i, *sums):
            gradients = self._of_part([t[i] for t in parts], size)
            formed = _formed(self._pairs(gradients, size))
            # Layers may compute in 16 bits: such a sum of a batch would lose single examples.
            terms = [tf.cast(g, tf.float32) for g in (*gradients, *formed)]
            pairs = zip(sums, terms, strict=True)
            return i + 1, *(s + wide(tf.tensordot(clips[i], g, 1)) for s, g in pairs)

        zeros = [tf.zeros(p.shape) for p in self._probes]
        formed = _formed(self._pairs([z[tf.newaxis] for z in zeros], 1))
        _, *sums = tf.while_loop(
            lambda i, *_: i < count, one,
            (0, *map(wide, zeros), *(wide(tf.zeros(f.shape[1:])) for f in formed)),
            parallel_iterations=1, maximum_iterations=count,
        )  # fmt: skip
        whole = [tf.cast(total, tf.float32)[tf.newaxis] for total in sums]
        formed = iter(whole[len(zeros) :])
        return [
            (v, PerExampleGradients(next(formed)) if isinstance(c, PerExampleGradients) else c)
            for v, c in self._pairs(whole[: len(zeros)], 1)
        ]

    def _pairs(self, gradients, examples):
        """(variable, contribution) pairs of all shared calls in parts.

        Args:
            gradients: list of (b, N, ...), at the probes.
            examples: b.
        """
        pairs, place = [], 0
        for call in self._calls:
            here = gradients[place : place + len(call.probes)]
            place += len(call.probes)
            pairs += _on_copies(call, here, examples)
        return pairs

    def _down(self, gradients):
        """From gradients at the rows that meet the examples to those at the probes."""
        gradients = [tf.cast(g, t.dtype) for g, t in zip(gradients, self._meeting, strict=True)]
        return self._tape.gradient(
            self._meeting, self._probes, gradients,
            unconnected_gradients=tf.UnconnectedGradients.ZERO,
        )  # fmt: skip

    def _division(self):
        """(number of units, of parts, of units of each part)."""
        left = self.factors[0]
        units = left.shape[0] if left.shape[0] is not None else tf.shape(left)[0]
        width = max(max(int(p.shape.num_elements()) for p in self._probes), 1)
        size = max(1, _TOGETHER // width)
        size = min(size, units) if isinstance(units, int) else size
        return units, -(-units // size), size

    def _of_part(self, factors, size):
        """The gradients (size, ...) at the probes of the units of one part."""
        pairs = zip(factors[::2], factors[1::2], strict=True)
        at_scores = [tf.matmul(a, b, transpose_a=True) for a, b in pairs]
        gradients = vectorized_map(self._down, at_scores)
        return [
            tf.ensure_shape(g, [size, *p.shape])
            for g, p in zip(gradients, self._probes, strict=True)
        ]

    def _all_norms(self):
        units, count, size = self._division()
        variables = [v for v, _ in self._pending]
        given = [self.factors, [_tensors(c) for _, c in self._pending]]
        parts = tf.nest.map_structure(lambda t: _divided(t, count, size), given)

        def one(i, *arrays):
            factors, own = tf.nest.map_structure(lambda t: t[i], parts)
            gradients = self._of_part(factors, size)
            found, pairs = [], self._pairs(gradients, size)
            for (v, contributions), tensors in zip(self._pending, own, strict=True):
                of_shared = [c for variable, c in pairs if variable is v]
                pairs_of_own = zip(contributions, tensors, strict=True)
                all_of_it = [dataclasses.replace(c, **t) for c, t in pairs_of_own] + of_shared
                norm, bound = variable_gradient(v, all_of_it).squared_norm()
                # The sum adds up what shared calls give position by position, and the rest apart.
                found += norm, bound + SUMMED * tf.square(tf.add_n([_length(c) for c in of_shared]))
            return i + 1, *(a.write(i, t) for a, t in zip(arrays, found, strict=True))

        arrays = [
            tf.TensorArray(tf.float64, count, element_shape=[size])
            for _ in range(2 * len(variables))
        ]
        _, *arrays = tf.while_loop(
            lambda i, *_: i < count, one, (0, *arrays), parallel_iterations=1,
            maximum_iterations=count,
        )  # fmt: skip
        found = [tf.reshape(a.stack(), [-1])[:units] for a in arrays]
        pairs = zip(found[::2], found[1::2], strict=True)
        return {id(v): pair for v, pair in zip(variables, pairs, strict=True)}


class InParts(Gradient):
    """A variable of layers that all examples share, whose gradients are never kept.

    Args:
        contributions: what the examples contribute to it in other calls.
        parts: the `GradientsInParts`.
    """

    def __init__(self, variable, contributions, parts):
        self.variable = variable
        self._own = variable_gradient(variable, contributions) if contributions else None
        self._shared = parts
        own = () if self._own is None else self._own.parts
        self.parts = (*own, *parts.factors)

    def squared_norm(self):
        norm, bound = self._shared.squared_norm(self.variable)
        if self._own is not None:  # it may cancel the rest, and the sum adds it up apart
            of_own, of_its_parts = self._own.squared_norm()
            bound += SUMMED * tf.maximum(of_own, 0.0) + of_its_parts
        return norm, bound

    def sum_of(self, parts, factors):
        count = len(parts) - len(self._shared.factors)
        contributions = self._shared.clipped_contributions(self.variable, parts[count:], factors)
        of_sum = variable_gradient(self.variable, contributions)
        total = of_sum.sum_of(of_sum.parts, tf.ones([1]))
        if self._own is None:
            return total
        return _added(total, self._own.sum_of(parts[:count], factors))


def _added(a, b):
    if not (isinstance(a, tf.IndexedSlices) and isinstance(b, tf.IndexedSlices)):
        return tf.convert_to_tensor(a) + tf.convert_to_tensor(b)
    indices = [tf.cast(t.indices, tf.int64) for t in (a, b)]
    return tf.IndexedSlices(
        tf.concat([a.values, b.values], 0), tf.concat(indices, 0), a.dense_shape
    )


def _on_copies(call, gradients, examples):
    """(variable, contribution) pairs of a call, as if each of some examples had made it."""
    copies = tf.nest.map_structure(
        lambda t: tf.broadcast_to(t, [examples, *t.shape]) if isinstance(t, tf.Tensor) else t,
        (call.args, call.kwargs),
    )
    return contributions_of(dataclasses.replace(call, args=copies[0], kwargs=copies[1]), gradients)


def _formed(pairs):
    return [c.values for _, c in pairs if isinstance(c, PerExampleGradients)]


def _length(contribution):
    """(b,) float64 sums of the norms of the parts that a sum over the examples adds up."""
    if isinstance(contribution, OuterProduct):
        products = _of_rows(contribution.left) * _of_rows(contribution.right)
        return tf.reduce_sum(products, axis=1)
    if isinstance(contribution, Rows):
        return tf.reduce_sum(_of_rows(contribution.values), axis=1)
    return tf.sqrt(sum_of_squares(contribution.values))


def _of_rows(x):
    """(b, T, d) to (b, T) float64 norms."""
    width = x.shape[2]
    squares = sum_of_squares(tf.reshape(x, [-1, width])) + width * UNDERFLOW
    return tf.sqrt(tf.reshape(squares, tf.shape(x)[:2]))


def _tensors(contributions):
    """The tensors of contributions that have an axis of examples."""
    return [
        {f.name: getattr(c, f.name) for f in dataclasses.fields(c)
         if tf.is_tensor(getattr(c, f.name)) and not _is_shared(c, f.name)}
        for c in contributions
    ]  # fmt: skip


def _is_shared(contribution, name):
    return isinstance(contribution, SharedRows) and name == "ids"


def _divided(tensor, count, size):
    """(U, ...) as (count, size, ...); what is missing are zeros."""
    missing = count * size - tf.shape(tensor)[0]
    rest = [[0, 0]] * (len(tensor.shape) - 1)
    padded = tf.pad(
        tensor, tf.concat([[[0, missing]], tf.constant(rest, tf.int32, [len(rest), 2])], 0)
    )
    return tf.reshape(padded, [count, size, *tensor.shape[1:]])
