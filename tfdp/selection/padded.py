"""Survivors in tensors of a fixed size, as XLA and accelerators need them.

The rows of a step are as many as its capacity; places that no survivor takes hold `NO_ROW`. Rows
that examples touch have room for the worst case. Of more survivors than the capacity those with
the largest noisy contributions V stay: a rule that looks at the private V and S alone
(MATH.md section 3, "Fixed capacities"), blind to which rows an example touched.
"""

import tensorflow as tf

from tfdp.noise import draws, normal_of_tail
from tfdp.runtime import ordering
from tfdp.selection.contribution_map import activations

NO_ROW = tf.int64.max
_NEVER = float("-inf")


def padded_survivors(
    rows, example_mask, num_rows, contribution_norm, threshold, noise_multiplier, capacity, source,
    distinct=False,
):  # fmt: skip
    """The survivors of `ContributionMap.survivors` with the largest V, in a fixed size.

    Formal guarantees: the rows are distributed as those of the naive algorithm (noise on all
    rows, those with V ≥ threshold, the `capacity` largest of them), without visiting the rows
    that no example touches: the largest V of these are order statistics of a normal sample,
    drawn from the top, and stand at distinct uniform positions. Nothing else is given out: how
    many survivors found no place is not known, as those of the untouched rows are only drawn as
    far as there are places, and a count of the others would be raw data.

    Args:
        rows, example_mask, num_rows, contribution_norm: as for `ContributionMap`.
        threshold, noise_multiplier, source: as for its `survivors`.
        capacity: largest number of rows, a Python integer.
        distinct: as for `ContributionMap`.

    Returns:
        (capacity,) int64, the surviving rows, sorted, then `NO_ROW`.
    """
    capacity = min(capacity, num_rows)
    threshold = tf.constant(threshold, tf.float64)
    stddev = tf.cast(noise_multiplier, tf.float64) * contribution_norm
    touched, sums, count = _touched(rows, example_mask, num_rows, contribution_norm, distinct)
    noisy = sums + source.normal(tuple(sums.shape), stddev, tf.float64)
    noisy = tf.where((touched < NO_ROW) & (noisy >= threshold), noisy, _NEVER)
    # One more than there are places: whether some survivors find none is then a matter of S alone.
    most = min(capacity + 1, num_rows)
    others, of_others = _untouched(touched, count, num_rows, threshold, stddev, most, source)
    noisy, rows = tf.concat([noisy, of_others], 0), tf.concat([touched, others], 0)
    return ordering.sort(_with_largest(rows, noisy, capacity))


def _with_largest(rows, noisy, capacity):
    """(capacity,) the rows with the largest V, in any order; NO_ROW where V is -inf."""
    survives = noisy > _NEVER
    place = tf.cumsum(tf.cast(survives, tf.int64))

    def largest():
        _, chosen = tf.math.top_k(noisy, capacity)
        return tf.gather(rows, chosen)

    def every():
        target = tf.where(survives, place - 1, capacity)
        room = tf.fill([capacity + 1], NO_ROW)
        return tf.tensor_scatter_nd_update(room, target[:, tf.newaxis], rows)[:capacity]

    # Mostly there is room for all of them, and nothing to compare.
    return tf.cond(place[-1] > capacity, largest, every)


def _touched(rows, example_mask, num_rows, contribution_norm, distinct):
    """Distinct touched rows, sorted and padded with NO_ROW; their V̂; and their number."""
    rows, active, weights = activations(rows, example_mask, contribution_norm, distinct)
    # Padding, and what is no row of these tables, comes last.
    flat = tf.reshape(tf.where(active, tf.minimum(rows, num_rows), num_rows), [-1])
    size = flat.shape[0]
    flat, order = ordering.sort_with_order(flat, num_rows + 1)
    weights = tf.gather(tf.reshape(weights, [-1]), order)
    starts = tf.concat([[True], flat[1:] != flat[:-1]], 0)
    segment = tf.cumsum(tf.cast(starts, tf.int32)) - 1
    sums = tf.math.unsorted_segment_sum(weights, segment, size)
    count = tf.reduce_sum(tf.cast(starts & (flat < num_rows), tf.int64))
    # Rows of one segment are equal, so that any of them may be written.
    flat = tf.where(flat < num_rows, flat, NO_ROW)
    touched = tf.tensor_scatter_nd_update(tf.fill([size], NO_ROW), segment[:, tf.newaxis], flat)
    return touched, sums, count


def _untouched(touched, num_touched, num_rows, threshold, stddev, capacity, source):
    """The survivors among the other rows with the largest V: (rows, V), −∞ where there is none."""
    number = tf.constant(num_rows, tf.int64) - num_touched
    index = tf.range(capacity, dtype=tf.int64)
    left = tf.maximum(tf.cast(number - index, tf.float64), 1.0)
    # 1 − Φ(V/stddev) of the largest, second largest, ... of `number` values: uniform order
    # statistics, by exponential spacings.
    spacings = draws.standard_exponential(source, capacity) / left
    tails = -tf.math.expm1(-tf.cumsum(spacings))
    survival = 0.5 * tf.math.erfc(threshold / stddev / tf.sqrt(tf.constant(2.0, tf.float64)))
    survives = (index < number) & (tails <= survival)
    values = tf.maximum(threshold, stddev * normal_of_tail(tf.minimum(tails, 0.5)))
    rank = _distinct(source, survives, number, num_rows)
    # The r-th untouched row is r plus the number of touched rows before it.
    place = tf.range(touched.shape[0], dtype=tf.int64)
    before = tf.where(touched < NO_ROW, touched - place, NO_ROW)
    rows = rank + ordering.search(before, rank, side="right")
    return tf.where(survives, rows, NO_ROW), tf.where(survives, values, _NEVER)


def _distinct(source, needed, bound, num_rows):
    """Integers, uniform without replacement in [0, bound), at the places that are `needed`.

    The bound, a tensor, is at most `num_rows`, a Python integer.

    Hardly more than half of [0, bound) is needed. Values that meet another are drawn again:
    nothing here depends on which value is which, so that all outcomes are alike.
    """
    size = needed.shape[0]
    index = tf.range(size, dtype=tf.int64)
    bound = tf.maximum(bound, 1)
    words = source.bits((3,))
    nothing = -1 - index  # distinct, and no rank

    def missing(_, accepted, __):
        return tf.reduce_any(needed & ~accepted)

    def draw(attempt, accepted, values):
        # Each attempt has 2^40 values of the counter to itself.
        offset = tf.bitwise.left_shift(attempt, tf.constant(40, tf.uint64))
        bits = tf.raw_ops.StatelessRandomUniformFullIntV2(
            shape=[size], key=words[:1], alg=1, dtype=tf.uint64,
            counter=tf.stack([words[1] + offset, words[2]]),
        )  # fmt: skip
        drawn, exact = draws.below(bits, bound)
        values = tf.where(accepted, values, tf.where(needed & exact, drawn, nothing))
        # None of them is negative then.
        ordered, order = ordering.sort_with_order(values + size, num_rows + size)
        same = tf.concat([[False], ordered[1:] == ordered[:-1]], 0)
        same |= tf.concat([same[1:], [False]], 0)
        meets = tf.tensor_scatter_nd_update(tf.zeros([size], tf.bool), order[:, tf.newaxis], same)
        return attempt + 1, accepted | ((values >= 0) & ~meets), values

    state = (tf.constant(0, tf.uint64), tf.zeros([size], tf.bool), nothing)
    _, _, values = tf.while_loop(missing, draw, state, parallel_iterations=1)
    return tf.where(needed, values, 0)
