"""Norms and clipped sums of one variable, from the contributions of every call that used it.

Contributions of several calls, or of layers of different kinds that share the variable, add up
before the norm is taken, cross terms included (MATH.md section 2).
"""

import tensorflow as tf

from tfdp.clipping import cost
from tfdp.clipping.contributions import MATRIX, Instances, OuterProduct, Rows
from tfdp.xla import is_compiling

# Rounding bounds (MATH.md section 1, "Cancellation"), all raising a squared norm to what float32
# can have hidden. Checked against adversarial inputs in tests/clipping.
#
# A sum of squares has positive terms only: 32 of them in float32, the rest in float64.
_POSITIVE = 2e-6
# A squared norm found through grams is a difference of numbers as large as
# U = (sum_t |left_t| |right_t|)^2; dot products of length k are off by this much, times U.
_GRAM, _GRAM_PER_TERM = 6e-7, 2e-8
# Numbers of one example from which XLA multiplies example by example.
_ALONE_UNDER_XLA = 1 << 16
# Squares below this are flushed to zero.
_UNDERFLOW = 1.2e-38


def variable_gradient(variable, contributions):
    """Combines contributions to one variable into an object with three members.

    `squared_norm()` gives (B,) float64 squared norms and (B,) bounds of their rounding error,
    `clipped_sum(factors, finite)` the sum over examples, as a tensor or tf.IndexedSlices.
    """
    rows = [c for c in contributions if isinstance(c, Rows)]
    outers = [c for c in contributions if isinstance(c, OuterProduct)]
    instances = [c for c in contributions if isinstance(c, Instances)]
    layouts = {c.layout for c in outers}
    merged_rows = RowGradients(variable, rows) if rows else None
    one_layout = len(layouts) == 1 and not instances
    if rows and not outers and not instances:
        return merged_rows
    if one_layout and not rows:
        outer = _Outer(variable, outers)
        return outer.formed() if outer.strategy == "formed" else outer
    if one_layout and layouts == {MATRIX}:
        return _Tied(merged_rows, _Outer(variable, outers))
    forms = [_Outer(variable, [c]).formed().values for c in outers]
    forms += [c.values for c in instances]
    if rows:
        forms.append(merged_rows.formed())
    return _Formed(variable, tf.add_n(forms) if len(forms) > 1 else forms[0])


def scale(x, factors):
    """Multiplies example i of (B, ...) by factors[i]."""
    return x * tf.reshape(factors, [-1] + [1] * (len(x.shape) - 1))


def only_finite(finite, *tensors):
    """Zeros in place of the examples whose gradient is not finite (0·NaN is NaN)."""

    def select():
        shaped = [tf.reshape(finite, [-1] + [1] * (len(t.shape) - 1)) for t in tensors]
        # A scalar zero: zeros_like would be materialised whether this branch runs or not.
        return [tf.where(f, t, tf.zeros([], t.dtype)) for f, t in zip(shaped, tensors, strict=True)]

    if is_compiling():
        return select()  # fused into what follows; a branch would copy its operands
    return tf.cond(tf.reduce_all(finite), lambda: [tf.identity(t) for t in tensors], select)


def sum_of_squares(x):
    """(B, ...) float32 to (B,) float64 sums of squares, off by at most `_POSITIVE`·value."""
    count = _size(x.shape[1:])
    width = max(w for w in range(1, 33) if count % w == 0)
    rows = tf.reshape(x, [-1, width])
    if width == 1:
        partial = tf.square(tf.cast(rows[:, 0], tf.float64))
    else:
        partial = tf.cast(tf.linalg.matvec(rows * rows, tf.ones([width])), tf.float64)
    return tf.reduce_sum(tf.reshape(partial, [-1, count // width]), axis=1)


class _Formed:
    """Per-example gradients that exist as a tensor (B, *shape)."""

    def __init__(self, variable, values):
        self.variable = variable
        self.values = values

    def squared_norm(self):
        norm = sum_of_squares(self.values)
        return norm, norm * _POSITIVE + _size(self.variable.shape) * _UNDERFLOW

    def clipped_sum(self, factors, finite):
        (values,) = only_finite(finite, self.values)
        flat = tf.reshape(values, [-1, _size(self.variable.shape)])
        return tf.reshape(tf.linalg.matvec(flat, factors, transpose_a=True), self.variable.shape)


class _Outer:
    """Sums of outer products, kept as their factors."""

    def __init__(self, variable, parts):
        self.variable = variable
        self.layout = parts[0].layout
        self.left = _join([c.left for c in parts])
        self.right = _join([c.right for c in parts])
        self.strategy = cost.strategy(self.left.shape[1], self.left.shape[2], self.right.shape[2])

    def formed(self):
        matrix = tf.matmul(self.left, self.right, transpose_a=True)
        return _Formed(self.variable, self.layout.to_variable(matrix, self.variable.shape))

    def squared_norm(self):
        p, r = self.left.shape[2], self.right.shape[2]
        if self.strategy == "single":
            left = sum_of_squares(self.left) + p * _UNDERFLOW
            right = sum_of_squares(self.right) + r * _UNDERFLOW
            norm = left * right
            return norm, norm * 2 * _POSITIVE
        if self.strategy == "looped":
            return squared_norms_one_by_one(self.left, self.right)
        left, right = _gram(self.left), _gram(self.right)
        norm = tf.reduce_sum(tf.cast(left * right, tf.float64), axis=[1, 2])
        return norm, gram_rounding(left, right, p, r)

    def clipped_sum(self, factors, finite):
        left, right = only_finite(finite, self.left, self.right)
        if left.shape[2] < right.shape[2]:
            left = scale(left, factors)
        else:
            right = scale(right, factors)
        matrix = tf.matmul(
            tf.reshape(left, [-1, left.shape[2]]),
            tf.reshape(right, [-1, right.shape[2]]),
            transpose_a=True,
        )
        return self.layout.to_variable(matrix, self.variable.shape)


def gram_rounding(left_gram, right_gram, p, r, more=0.0):
    """(B,) bound of what float32 grams can hide of a squared norm.

    Args:
        left_gram, right_gram: (B, T, T).
        p, r: lengths of the dot products in them.
        more: (B,) norms of further terms that were added to the gradient.
    """
    left = tf.sqrt(tf.cast(tf.linalg.diag_part(left_gram), tf.float64))
    right = tf.sqrt(tf.cast(tf.linalg.diag_part(right_gram), tf.float64))
    magnitude = tf.reduce_sum(left * right, axis=1) + more
    underflow = (
        p * tf.square(tf.reduce_sum(right, axis=1)) + r * tf.square(tf.reduce_sum(left, axis=1))
    ) * _UNDERFLOW + tf.cast(tf.size(left_gram[0]), tf.float64) * _UNDERFLOW
    unit = 1e-7 if left_gram.dtype == tf.float64 else 1.0
    return unit * tf.square(magnitude) * (_GRAM + _GRAM_PER_TERM * (p + r)) + underflow


def _affords_float64(left, right):
    """Whether grams are so small that float64 costs nothing, and need no raised norm."""
    positions = left.shape[1]
    return positions is not None and positions**2 * (left.shape[2] + right.shape[2]) <= 1 << 16


def squared_norms_one_by_one(left, right, rows=None):
    """Squared norms from the examples' own matrices, held for one example at a time.

    Args:
        left: (B, T, p).
        right: (B, T, r).
        rows: optionally (ids (B, T'), values (B, T', r)), merged rows to add to the matrix.

    Returns:
        (B,) squared norms and (B,) bounds of their rounding error.
    """
    p, r = left.shape[2], right.shape[2]
    batch = tf.shape(left)[0] if left.shape[0] is None else left.shape[0]
    # The smaller side first: libraries multiply (r, T)·(T, p) with r < p up to twice as fast.
    small, large = (right, left) if r < p else (left, right)

    def one(i, *arrays):
        matrix = tf.matmul(small[i], large[i], transpose_a=True)
        norm = gross = sum_of_squares(matrix[tf.newaxis])[0]
        if rows is not None:
            ids, values = rows[0][i], tf.cast(rows[1][i], tf.float64)
            met = tf.transpose(tf.gather(matrix, ids, axis=1)) if r < p else tf.gather(matrix, ids)
            met = tf.cast(met, tf.float64)
            norm += tf.reduce_sum(values * (2.0 * met + values))
            gross += tf.reduce_sum(tf.abs(values) * (2.0 * tf.abs(met) + tf.abs(values)))
        # ‖|left|^T·|right|‖ is at most the product of the norms.
        magnitude = 2.0 * tf.sqrt(tf.nn.l2_loss(small[i]) * tf.nn.l2_loss(large[i]))
        found = (norm, gross, tf.cast(magnitude, tf.float64))
        return i + 1, *(a.write(i, v) for a, v in zip(arrays, found, strict=True))

    arrays = [tf.TensorArray(tf.float64, batch, element_shape=[]) for _ in range(3)]
    _, *arrays = tf.while_loop(
        lambda i, *_: i < batch,
        one,
        (0, *arrays),
        parallel_iterations=1,
        maximum_iterations=batch,
    )
    norm, gross, magnitude = (tf.ensure_shape(a.stack(), left.shape[:1]) for a in arrays)
    # |computed matrix - true matrix| in norm, and what it does to a square.
    error = (_GRAM + _GRAM_PER_TERM * (left.shape[1] or 64)) * magnitude
    extra = 2.0 * tf.sqrt(tf.maximum(norm, 0.0)) * error + tf.square(error)
    # `gross` is what was summed before rows and matrix could cancel.
    return norm, extra + gross * _POSITIVE + p * r * _UNDERFLOW


class RowGradients:
    """Look-ups. Repeated ids of an example are merged before squaring."""

    def __init__(self, variable, parts):
        self.variable = variable
        self.ids = _join([c.ids for c in parts])
        values = _join([c.values for c in parts])
        if self.ids.shape[1] == 1:
            self.values = values
            return
        same = tf.equal(self.ids[:, :, None], self.ids[:, None, :])
        repeated = tf.reduce_any(_strictly_before(same), axis=2)
        merged = tf.matmul(tf.cast(same, values.dtype), values)
        self.values = tf.where(repeated[:, :, None], 0.0, merged)

    def squared_norm(self):
        if self.values.shape[1] is None:  # ragged ids: as long as the batch's longest row
            norm = tf.reduce_sum(sum_of_squares_of_rows(self.values), axis=1)
            return norm, norm * _POSITIVE
        norm = sum_of_squares(self.values)
        return norm, norm * _POSITIVE + _size(self.values.shape[1:]) * _UNDERFLOW

    def row_norms(self):
        """(B, T) float64 norms of the rows; 0 in all places of a repeated id but the first."""
        return tf.sqrt(sum_of_squares_of_rows(self.values))

    def formed(self):
        batch = tf.shape(self.ids)[0]
        count = self.variable.shape[0]
        ids = tf.cast(self.ids, tf.int64)
        flat = ids + tf.cast(tf.range(batch)[:, None], tf.int64) * count
        sums = tf.math.unsorted_segment_sum(
            tf.reshape(self.values, [-1, self.values.shape[2]]),
            tf.reshape(flat, [-1]),
            batch * count,
        )
        return tf.reshape(sums, [batch, *self.variable.shape])

    def clipped_sum(self, factors, finite):
        (values,) = only_finite(finite, self.values)
        return tf.IndexedSlices(
            tf.reshape(scale(values, factors), [-1, values.shape[2]]),
            tf.reshape(self.ids, [-1]),
            tf.constant(tuple(self.variable.shape)),
        )


class _Tied:
    """One table used for look-up and as output head (phantom clipping, DPFormer section 4).

    ‖g‖² = ‖look-up‖² + ‖head‖² + 2 Σ_{t,t'} z[t', id_t]·⟨s_t, h_t'⟩: no array of the table's size
    for each example. Where sequences are longer than the table is wide, the head's own matrix is
    formed for one example at a time instead, which is less work than the grams.
    """

    def __init__(self, rows, outer):
        self.rows = rows
        self.outer = outer

    def squared_norm(self):
        rows, outer = self.rows, self.outer
        z, h = outer.left, outer.right
        exact = _affords_float64(z, h)
        if outer.strategy in ("looped", "formed") and not exact:
            return squared_norms_one_by_one(z, h, (rows.ids, rows.values))
        if exact:
            z, h = tf.cast(z, tf.float64), tf.cast(h, tf.float64)
        z_gram, z_at_ids = _gram(z, rows.ids)
        h_gram = tf.matmul(h, h, transpose_b=True)
        head = tf.reduce_sum(tf.cast(z_gram * h_gram, tf.float64), axis=[1, 2])
        inner = tf.matmul(h, tf.cast(rows.values, h.dtype), transpose_b=True)  # (B, T', T)
        cross = tf.reduce_sum(tf.cast(z_at_ids * inner, tf.float64), axis=[1, 2])
        looked_up, rows_bound = rows.squared_norm()
        if exact:
            looked_up = tf.reduce_sum(sum_of_squares_of_rows(rows.values), axis=1)
            rows_bound = tf.zeros_like(looked_up)
        more = tf.reduce_sum(tf.sqrt(sum_of_squares_of_rows(rows.values)), axis=1)
        bound = gram_rounding(z_gram, h_gram, z.shape[2], h.shape[2], more) + rows_bound
        # Products that `inner` lost to underflow, times the logit gradients they were to meet.
        met = tf.reduce_sum(tf.sqrt(tf.cast(tf.linalg.diag_part(z_gram), tf.float64)), axis=1)
        lost = tf.cast(tf.shape(rows.ids)[1] * h.shape[2], tf.float64) * _UNDERFLOW
        return looked_up + head + 2.0 * cross, bound + 2.0 * lost * (met + 1.0)

    def clipped_sum(self, factors, finite):
        rows = self.rows.clipped_sum(factors, finite)
        return self.outer.clipped_sum(factors, finite) + tf.math.unsorted_segment_sum(
            rows.values, rows.indices, self.rows.variable.shape[0]
        )


def sum_of_squares_of_rows(x):
    """(B, T, d) to (B, T) float64."""
    return tf.reduce_sum(tf.square(tf.cast(x, tf.float64)), axis=2)


def _gram(x, ids=None):
    """x·xᵀ for each example of (B, T, p), (B, T, T); with ids, x[b, t, ids[b, t']], too."""
    if is_compiling() and x.shape.is_fully_defined():
        if _size(x.shape[1:]) >= _ALONE_UNDER_XLA:
            return _gram_one_by_one(x, ids)
    gram = tf.matmul(x, x, transpose_b=True)
    return gram if ids is None else (gram, _at_ids(x, ids))


def _gram_one_by_one(x, ids):
    """`_gram` in a loop: XLA for TPUs would copy x as a whole, into a layout for each use of it."""
    batch = x.shape[0]

    def one(i, *arrays):
        columns = tf.transpose(x[i])
        found = [tf.matmul(x[i], columns)]
        if ids is not None:
            found.append(tf.transpose(tf.gather(columns, ids[i])))
        return i + 1, *(a.write(i, v) for a, v in zip(arrays, found, strict=True))

    shapes = [[x.shape[1], y.shape[1]] for y in (x, ids) if y is not None]
    arrays = [tf.TensorArray(x.dtype, batch, element_shape=shape) for shape in shapes]
    _, *arrays = tf.while_loop(
        lambda i, *_: i < batch,
        one,
        (0, *arrays),
        parallel_iterations=1,
        maximum_iterations=batch,
    )
    stacked = [a.stack() for a in arrays]
    return stacked[0] if ids is None else stacked


def _at_ids(z, ids):
    """z[b, t', ids[b, t]] as (B, T', T)."""
    if is_compiling():  # the flat view is a copy there, in another layout
        return tf.gather(z, ids, axis=2, batch_dims=1)
    batch, positions, count = tf.shape(z)[0], tf.shape(z)[1], z.shape[2]
    starts = tf.range(tf.cast(batch * positions, tf.int64), dtype=tf.int64) * count
    starts = tf.reshape(starts, [batch, positions, 1])
    return tf.gather(tf.reshape(z, [-1]), starts + tf.cast(ids, tf.int64)[:, tf.newaxis])


def _join(tensors):
    return tensors[0] if len(tensors) == 1 else tf.concat(tensors, axis=1)


def _size(shape):
    size = 1
    for d in shape:
        size *= d
    return size


def _strictly_before(same):
    """Keeps same[t, t'] where t' < t."""
    positions = tf.range(tf.shape(same)[1])
    return same & (positions[None, :] < positions[:, None])
