"""Norms and clipped sums of one variable, from the contributions of every call that used it.

Contributions of several calls, or of layers of different kinds that share the variable, add up
before the norm is taken, cross terms included (MATH.md section 2).
"""

import tensorflow as tf

from tfdp.clipping import cost
from tfdp.clipping.contributions import MATRIX, Instances, OuterProduct, Rows

# A squared norm found through grams is a difference of float32 numbers as large as
# U = (sum_t |left_t| |right_t|)^2; it is off by at most this much times U (MATH.md section 1,
# "Cancellation"). Measured worst case over adversarial inputs: 2.6e-7 (tests/clipping).
ROUNDING = 6e-7


def variable_gradient(variable, contributions):
    """Combines contributions to one variable into an object with three members.

    `squared_norm()` gives (B,) float64 squared norms and (B,) bounds of their rounding error,
    `clipped_sum(factors, finite)` the sum over examples, as a tensor or tf.IndexedSlices.
    """
    rows = [c for c in contributions if isinstance(c, Rows)]
    outers = [c for c in contributions if isinstance(c, OuterProduct)]
    instances = [c for c in contributions if isinstance(c, Instances)]
    layouts = {c.layout for c in outers}
    merged_rows = _Rows(variable, rows) if rows else None
    one_layout = len(layouts) == 1 and not instances
    if rows and not outers and not instances:
        return merged_rows
    if one_layout and not rows:
        outer = _Outer(variable, outers)
        return outer.formed() if outer.cheaper_formed else outer
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
    select = lambda: [  # noqa: E731
        tf.where(tf.reshape(finite, [-1] + [1] * (len(t.shape) - 1)), t, tf.zeros_like(t))
        for t in tensors
    ]
    return tf.cond(tf.reduce_all(finite), lambda: list(tensors), select)


class _Formed:
    """Per-example gradients that exist as a tensor (B, *shape)."""

    def __init__(self, variable, values):
        self.variable = variable
        self.values = values

    def squared_norm(self):
        flat = tf.reshape(self.values, [tf.shape(self.values)[0], -1])
        norm = tf.cast(tf.reduce_sum(flat * flat, axis=1), tf.float64)
        # The sum of squares has positive terms only: the rounding error is relative.
        return norm, norm * 1e-6

    def clipped_sum(self, factors, finite):
        (values,) = only_finite(finite, self.values)
        flat = tf.reshape(values, [tf.shape(values)[0], self.variable.shape.num_elements()
                                   if hasattr(self.variable.shape, "num_elements")
                                   else _size(self.variable.shape)])  # fmt: skip
        return tf.reshape(tf.linalg.matvec(flat, factors, transpose_a=True), self.variable.shape)


class _Outer:
    """Sums of outer products, kept as their factors."""

    def __init__(self, variable, parts):
        self.variable = variable
        self.layout = parts[0].layout
        self.left = _join([c.left for c in parts])
        self.right = _join([c.right for c in parts])
        self.cheaper_formed = cost.cheaper_formed(
            self.left.shape[1], self.left.shape[2], self.right.shape[2]
        )

    def formed(self):
        matrix = tf.matmul(self.left, self.right, transpose_a=True)
        return _Formed(self.variable, self.layout.to_variable(matrix, self.variable.shape))

    def squared_norm(self):
        if self.left.shape[1] == 1:
            norm = _dot(self.left, self.left)[:, 0] * _dot(self.right, self.right)[:, 0]
            norm = tf.cast(norm, tf.float64)
            return norm, norm * 1e-6
        left = tf.matmul(self.left, self.left, transpose_b=True)
        right = tf.matmul(self.right, self.right, transpose_b=True)
        norm = tf.reduce_sum(tf.cast(left * right, tf.float64), axis=[1, 2])
        return norm, tf.square(self.magnitude(left, right)) * ROUNDING

    def magnitude(self, left_gram, right_gram):
        """(B,) sum_t |left_t| |right_t|, from the diagonals of the grams."""
        products = tf.linalg.diag_part(left_gram) * tf.linalg.diag_part(right_gram)
        return tf.reduce_sum(tf.sqrt(tf.cast(products, tf.float64)), axis=1)

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


class _Rows:
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
        norm = tf.cast(tf.reduce_sum(tf.square(self.values), axis=[1, 2]), tf.float64)
        return norm, norm * 1e-6

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

    ‖g‖² = ‖look-up‖² + ‖head‖² + 2 Σ_{t,t'} z[t', id_t]·⟨s_t, h_t'⟩, no table-sized array per
    example.
    """

    def __init__(self, rows, outer):
        self.rows = rows
        self.outer = outer

    def squared_norm(self):
        rows, outer = self.rows, self.outer
        z, h = outer.left, outer.right
        z_gram = tf.matmul(z, z, transpose_b=True)
        h_gram = tf.matmul(h, h, transpose_b=True)
        head = tf.reduce_sum(tf.cast(z_gram * h_gram, tf.float64), axis=[1, 2])
        looked_up, _ = rows.squared_norm()
        # (B, T', T): z at the ids of the look-up, and inner products of hidden and look-up rows.
        at_ids = tf.gather(z, tf.broadcast_to(
            rows.ids[:, None, :], [tf.shape(z)[0], tf.shape(z)[1], tf.shape(rows.ids)[1]]
        ), axis=2, batch_dims=2)  # fmt: skip
        inner = tf.matmul(h, rows.values, transpose_b=True)
        cross = tf.reduce_sum(tf.cast(at_ids * inner, tf.float64), axis=[1, 2])
        magnitude = outer.magnitude(z_gram, h_gram) + tf.reduce_sum(
            tf.cast(tf.norm(rows.values, axis=2), tf.float64), axis=1
        )
        return looked_up + head + 2.0 * cross, tf.square(magnitude) * ROUNDING

    def clipped_sum(self, factors, finite):
        rows = self.rows.clipped_sum(factors, finite)
        return self.outer.clipped_sum(factors, finite) + tf.math.unsorted_segment_sum(
            rows.values, rows.indices, self.rows.variable.shape[0]
        )


def _join(tensors):
    return tensors[0] if len(tensors) == 1 else tf.concat(tensors, axis=1)


def _dot(a, b):
    return tf.reduce_sum(a * b, axis=-1)


def _size(shape):
    size = 1
    for d in shape:
        size *= d
    return size


def _strictly_before(same):
    """Keeps same[t, t'] where t' < t."""
    positions = tf.range(tf.shape(same)[1])
    return same & (positions[None, :] < positions[:, None])
