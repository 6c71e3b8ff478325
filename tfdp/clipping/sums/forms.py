"""The forms in which every example's gradient by one variable is kept, their norms and sums."""

import math

import tensorflow as tf

from tfdp.clipping.sums import cost
from tfdp.clipping.sums.products import (
    POSITIVE,
    UNDERFLOW,
    affords_float64,
    gram,
    gram_rounding,
    lengths_of_products,
    squared_norms_one_by_one,
    sum_of_squares,
    sum_of_squares_of_rows,
)
from tfdp.runtime.wide_sums import sum_of_rows, sums_of_segments, weighted_sum
from tfdp.runtime.xla import is_compiling, platform

# From so many look-ups of an example on, comparing all pairs of them takes longer than hashing.
_MANY_IDS = 100
# Products of so few numbers are added up one by one.
_FEW = 16


def scale(x, factors):
    """Multiplies example i of (B, ...) by factors[i]."""
    return x * _along(factors, x)


def _along(per_example, x):
    """(B,) as (B, 1, ...) of the rank of x."""
    return tf.reshape(per_example, [-1] + [1] * (len(x.shape) - 1))


def only_finite(finite, gradients):
    """The parts of gradients, zeros for examples whose gradient is not finite (0·NaN is NaN)."""
    tensors = [part for gradient in gradients for part in gradient.parts]

    def select():
        # A scalar zero: zeros_like would be materialised whether this branch runs or not.
        return [
            tf.where(_along(gradient.of_parts(finite), t), t, tf.zeros([], t.dtype))
            for gradient in gradients
            for t in gradient.parts
        ]

    if is_compiling():
        return select()  # fused into what follows; a branch would copy its operands
    return tf.cond(tf.reduce_all(finite), lambda: [tf.identity(t) for t in tensors], select)


class Gradient:
    """Every example's gradient by one variable, in whatever form is the cheapest.

    Attributes:
        parts: tuple of tensors (B, ...) of which the gradients are made, example by example.
        is_product: whether `sum_of` multiplies the parts with each other.
        examples: None; or (K,), where the parts are (K, ...), the example of each entry.
    """

    is_product = False
    examples = None

    def of_parts(self, per_example):
        """What is given for each example (B,), for each entry of the parts."""
        return per_example if self.examples is None else tf.gather(per_example, self.examples)

    def squared_norm(self):
        """(B,) float64 squared norms and (B,) bounds of their rounding error."""
        raise NotImplementedError

    def sum_of(self, parts, factors):
        """Σ_i factors[i]·g_i as a tensor or tf.IndexedSlices, of `parts` in place of its own."""
        raise NotImplementedError

    def clipped_sum(self, factors, finite):
        """The sum over the examples that are `finite` (B,), each times its factor (B,)."""
        return self.sum_of(only_finite(finite, [self]), factors)


class PerExampleForm(Gradient):
    """Per-example gradients that exist as a tensor (B, *shape)."""

    def __init__(self, variable, values):
        self.variable = variable
        self.values = values
        self.parts = (values,)

    def squared_norm(self):
        norm = sum_of_squares(self.values)
        return norm, norm * POSITIVE + math.prod(self.variable.shape) * UNDERFLOW

    def sum_of(self, parts, factors):
        (values,) = parts
        flat = tf.reshape(values, [-1, math.prod(self.variable.shape)])
        if is_compiling():  # XLA for CPUs reads such a product's matrix column by column
            total = sum_of_rows(flat * factors[:, tf.newaxis])
        else:
            total = weighted_sum(flat, factors)
        return tf.reshape(total, self.variable.shape)


class Outer(Gradient):
    """Sums of outer products, kept as their factors."""

    def __init__(self, variable, contributions):
        self.variable = variable
        self.layout = contributions[0].layout
        self.left = join([c.left for c in contributions])
        self.right = join([c.right for c in contributions])
        self.parts = (self.left, self.right)
        # Libraries add up products of one column, or of few numbers, in float32 from end to end.
        p, r = self.left.shape[2], self.right.shape[2]
        self.is_product = (1 < min(p, r) and p * r > _FEW) or platform() == "TPU"
        self.strategy = cost.strategy(self.left.shape[1], self.left.shape[2], self.right.shape[2])

    def per_example(self):
        matrix = tf.matmul(self.left, self.right, transpose_a=True)
        return PerExampleForm(self.variable, self.layout.to_variable(matrix, self.variable.shape))

    def squared_norm(self):
        p, r = self.left.shape[2], self.right.shape[2]
        if self.strategy == "single":
            left = sum_of_squares(self.left) + p * UNDERFLOW
            right = sum_of_squares(self.right) + r * UNDERFLOW
            norm = left * right
            return norm, norm * 2 * POSITIVE
        if self.strategy == "looped":
            return squared_norms_one_by_one(self.left, self.right)
        lengths = lengths_of_products(self.left, self.right)
        left, right = gram(self.left, length=lengths[0]), gram(self.right, length=lengths[1])
        norm = tf.reduce_sum(tf.cast(left * right, tf.float64), axis=[1, 2])
        return norm, gram_rounding(left, right, (p, r), lengths)

    def sum_of(self, parts, factors):
        left, right = parts
        if left.shape[2] < right.shape[2]:
            left = scale(left, factors)
        else:
            right = scale(right, factors)
        left = tf.reshape(left, [-1, left.shape[2]])
        right = tf.reshape(right, [-1, right.shape[2]])
        if self.is_product:
            matrix = tf.matmul(left, right, transpose_a=True)
        else:
            matrix = _sum_of_products(left, right)
        return self.layout.to_variable(matrix, self.variable.shape)


def _sum_of_products(left, right):
    """leftᵀ·right (p, r) of (n, p) and (n, r): of few numbers, or of one column."""
    p, r = left.shape[1], right.shape[1]
    if is_compiling() or 1 < min(p, r):
        products = tf.reshape(left[:, :, tf.newaxis] * right[:, tf.newaxis], [-1, p * r])
        total = sum_of_rows(products)
    else:
        total = weighted_sum(right, left[:, 0]) if p == 1 else weighted_sum(left, right[:, 0])
    return tf.reshape(total, [p, r])


class RowGradients(Gradient):
    """Look-ups. Repeated ids of an example are merged before squaring."""

    def __init__(self, variable, contributions):
        self.variable = variable
        ids = [c.ids for c in contributions]
        if len({t.dtype for t in ids}) > 1:
            ids = [tf.cast(t, tf.int64) for t in ids]
        self.ids = join(ids)
        values = join([c.values for c in contributions])
        if self.ids.shape[1] == 1:
            self.values = values
            return
        many = (self.ids.shape[1] or 0) >= _MANY_IDS and not is_compiling()
        merge = _merged_by_hashing if many else _merged_by_pairs
        self.values = merge(self.ids, values, variable.shape[0])

    def squared_norm(self):
        if self.values.shape[1] is None:  # ragged ids: as long as the batch's longest row
            norm = tf.reduce_sum(sum_of_squares_of_rows(self.values), axis=1)
            return norm, norm * POSITIVE
        norm = sum_of_squares(self.values)
        return norm, norm * POSITIVE + math.prod(self.values.shape[1:]) * UNDERFLOW

    def row_norms(self):
        """(B, T) float64 norms of the rows; 0 in all places of a repeated id but the first."""
        return tf.sqrt(sum_of_squares_of_rows(self.values))

    def per_example(self):
        return in_rows(self.ids, self.values, self.variable.shape)

    @property
    def parts(self):
        return (self.values,)

    def sum_of(self, parts, factors):
        (values,) = parts
        return tf.IndexedSlices(
            tf.reshape(scale(values, factors), [-1, values.shape[2]]),
            tf.reshape(self.ids, [-1]),
            tf.constant(tuple(self.variable.shape)),
        )


class Tied(Gradient):
    """One table used for look-up and as output head (phantom clipping, DPFormer section 4).

    ‖g‖² = ‖look-up‖² + ‖head‖² + 2 Σ_{t,t'} z[t', id_t]·⟨s_t, h_t'⟩: no array of the table's size
    for each example. Where sequences are longer than the table is wide, the head's own matrix is
    formed for one example at a time instead, which is less work than the grams.

    Args:
        rows: `RowGradients`.
        outer: `Outer`.
        of_head: (B, T) bool, which of the rows the head has; None: all. Any id stands for others.
    """

    is_product = True

    def __init__(self, rows, outer, of_head=None):
        self.variable = rows.variable
        self.rows = rows
        self.outer = outer
        self.of_head = of_head
        # Padding, whose values are 0, must not meet what may be NaN in another example.
        self._ids = tf.maximum(rows.ids, 0)
        self.parts = (*rows.parts, *outer.parts)

    def squared_norm(self):
        rows, outer = self.rows, self.outer
        z, h = outer.left, outer.right
        if outer.strategy == "single":
            return self._beside_one_product()
        exact = affords_float64(z, h)
        if outer.strategy in ("looped", "per_example") and not exact:
            return self._one_by_one()
        if exact:
            z, h = tf.cast(z, tf.float64), tf.cast(h, tf.float64)
        lengths = lengths_of_products(z, h)
        z_gram, z_at_ids = gram(z, self._ids, lengths[0])
        h_gram = gram(h, length=lengths[1])
        head = tf.reduce_sum(tf.cast(z_gram * h_gram, tf.float64), axis=[1, 2])
        inner = tf.matmul(h, tf.cast(rows.values, h.dtype), transpose_b=True)  # (B, T', T)
        cross = self._total(tf.reduce_sum(tf.cast(z_at_ids * inner, tf.float64), axis=1))
        looked_up, rows_bound = rows.squared_norm()
        if exact:
            looked_up = tf.reduce_sum(sum_of_squares_of_rows(rows.values), axis=1)
            rows_bound = tf.zeros_like(looked_up)
        more = tf.reduce_sum(tf.sqrt(sum_of_squares_of_rows(rows.values)), axis=1)
        sizes = z.shape[2], h.shape[2]
        bound = gram_rounding(z_gram, h_gram, sizes, lengths, more) + rows_bound
        # Products that `inner` lost to underflow, times the logit gradients they were to meet.
        met = tf.reduce_sum(tf.sqrt(tf.cast(tf.linalg.diag_part(z_gram), tf.float64)), axis=1)
        lost = tf.cast(tf.shape(rows.ids)[1] * h.shape[2], tf.float64) * UNDERFLOW
        return looked_up + head + 2.0 * cross, bound + 2.0 * lost * (met + 1.0)

    def _beside_one_product(self):
        """Of a head with one position, whose norm is a product: nothing is as large as logits."""
        z, h = self.outer.left, self.outer.right
        head, bound = self.outer.squared_norm()
        values = tf.cast(self.rows.values, tf.float64)
        inner = tf.matmul(values, tf.cast(h, tf.float64), transpose_b=True)[:, :, 0]
        met = tf.cast(tf.gather(z[:, 0], self._ids, axis=1, batch_dims=1), tf.float64)
        cross = self._total(met * inner)
        looked_up = tf.reduce_sum(sum_of_squares_of_rows(self.rows.values), axis=1)
        return looked_up + head + 2.0 * cross, bound

    def _one_by_one(self):
        values, others = self.rows.values, 0.0
        if self.of_head is not None:
            squares = sum_of_squares_of_rows(values)
            others = tf.reduce_sum(tf.where(self.of_head, 0.0, squares), axis=1)
            values = tf.where(self.of_head[..., tf.newaxis], values, 0.0)
        found = squared_norms_one_by_one(*self.outer.parts, (self._ids, values))
        return found[0] + others, found[1]

    def _total(self, cross):
        """(B,), from (B, T) products of the rows with those of the head."""
        if self.of_head is not None:
            cross = tf.where(self.of_head, cross, 0.0)
        return tf.reduce_sum(cross, axis=1)

    def sum_of(self, parts, factors):
        values, *outer = parts
        rows = self.rows.sum_of([values], factors)
        looked_up = sums_of_segments(rows.values, rows.indices, self.variable.shape[0])
        return self.outer.sum_of(outer, factors) + looked_up


def in_rows(ids, values, shape):
    """(B, V, d) of (V, d): values (B, T, d) added up in the rows (B, T) or (T,) of each example.

    Negative ids are no rows.
    """
    batch, (count, width) = tf.shape(values)[0], shape
    ids = tf.cast(ids, tf.int64)
    own = ids + tf.cast(tf.range(batch)[:, None], tf.int64) * count
    flat = tf.where(ids >= 0, own, -1)  # no row of the example before
    sums = tf.math.unsorted_segment_sum(
        tf.reshape(values, [-1, width]), tf.reshape(flat, [-1]), batch * count
    )
    return tf.reshape(sums, [batch, count, width])


def join(tensors):
    return tensors[0] if len(tensors) == 1 else tf.concat(tensors, axis=1)


def _merged_by_pairs(ids, values, _):
    """(B, T, d) sums of the values of each id of an example in its first place, zeros elsewhere."""
    same = tf.equal(ids[:, :, None], ids[:, None, :])
    repeated = tf.reduce_any(_strictly_before(same), axis=2)
    merged = tf.matmul(tf.cast(same, values.dtype), values)
    return tf.where(repeated[:, :, None], 0.0, merged)


def _merged_by_hashing(ids, values, num_rows):
    """As `_merged_by_pairs`, in time linear in T; XLA does not know how many ids are distinct."""
    batch, count = tf.shape(ids)[0], ids.shape[1]
    # What is no row stays within its example, too.
    own = tf.clip_by_value(tf.cast(ids, tf.int64), -1, num_rows) + 1
    example = tf.cast(tf.range(batch)[:, None], tf.int64) * (num_rows + 2)
    distinct, index = tf.unique(tf.reshape(own + example, [-1]))
    places = tf.range(batch * count)
    first = tf.math.unsorted_segment_min(places, index, tf.size(distinct))
    flat = tf.reshape(values, [-1, values.shape[2]])
    sums = tf.gather(tf.math.unsorted_segment_sum(flat, index, tf.size(distinct)), index)
    is_first = tf.equal(tf.gather(first, index), places)
    return tf.reshape(tf.where(is_first[:, None], sums, 0.0), [-1, count, values.shape[2]])


def _strictly_before(same):
    """Keeps same[t, t'] where t' < t."""
    positions = tf.range(tf.shape(same)[1])
    return same & (positions[None, :] < positions[:, None])
