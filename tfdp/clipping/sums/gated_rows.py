"""Gradients of a table whose rows all examples share, beyond a dense layer with an activation.

Example i's gradient at row n is W·(m_n ∘ (LᵀR)_n), m_n the activation's derivative there and W the
dense layer's kernel (MATH.md section 14). Nothing of size B × N × d is made.
"""

import numpy as np
import tensorflow as tf

from tfdp.clipping.sums.forms import Gradient, scale
from tfdp.clipping.sums.products import UNDERFLOW, product_of_present, sum_of_squares_of_rows
from tfdp.clipping.sums.shared_rows import SharedRowGradients

# Rounding of a float32 operation; a sum of N products has N for each of its terms, or less.
_EACH = 2.0**-24
# Hidden units whose pairs with all later ones are products of one matrix.
_BLOCK = 16


class GatedRowGradients(SharedRowGradients):
    """As `SharedRowGradients`, of one `GatedRows`.

    Args:
        variable: the table.
        gated: the `GatedRows`.
        rows: `RowGradients` of the examples' own look-ups, or None.
    """

    def __init__(self, variable, gated, rows=None):
        self._gate = tf.cast(gated.gate, tf.float32)
        self._kernel = tf.cast(gated.kernel, tf.float32)
        super().__init__(variable, [gated], rows)

    def _outer(self, left, right):
        return _Gated(left, right, self._gate, self._kernel)

    def _tied(self, placed, is_shared):
        return _GatedAndOwn(placed, is_shared, self.outer)

    def _values(self):
        return self.outer.per_example()


class _Gated(Gradient):
    """Gradients at N rows: kernel·(gate[n] ∘ Σ_t left[i, t, n]·right[i, t]).

    Args:
        left: (B, T, N).
        right: (B, T, h).
        gate: (N, h).
        kernel: (d, h).
    """

    def __init__(self, left, right, gate, kernel):
        self.parts = (left, right)
        self.gate, self.kernel = gate, kernel

    def per_example(self):
        left, right = self.parts
        at_gate = tf.matmul(left, right, transpose_a=True) * self.gate
        return tf.tensordot(at_gate, self.kernel, [[2], [1]])

    def squared_norm(self):
        """Σ_n Σ_{t,t'} l_tn·l_t'n·(r_t ∘ m_n)ᵀ·WᵀW·(r_t' ∘ m_n), by products for all n.

        Pairs of hidden units come once, but for those within a block, which come in both orders.
        """
        (left, right), sizes = zip(*map(_relative, self.parts), strict=True)
        positions, count, width = left.shape[1], left.shape[2], right.shape[2]
        pairs = tf.reshape(left[:, :, tf.newaxis] * left[:, tf.newaxis], [-1, count])
        wide = tf.cast(self.kernel, tf.float64)
        inner = tf.matmul(wide, wide, transpose_a=True)
        norm = tf.zeros([], tf.float64)
        lengths = tf.abs(right) * tf.cast(tf.norm(wide, axis=0), tf.float32)  # (B, T, h)
        for begin in range(0, width, _BLOCK):
            end = min(begin + _BLOCK, width)
            twice = np.where(np.arange(begin, width) < end, 1.0, 2.0)
            here, onward = self.gate[:, begin:end], self.gate[:, begin:]
            products = here[:, :, tf.newaxis] * onward[:, tf.newaxis]
            weights = tf.cast(inner[begin:end, begin:] * twice, tf.float32)
            products = tf.reshape(products * weights, [count, -1])
            met = product_of_present(pairs, products)
            met = tf.reshape(met, [-1, positions, positions * (end - begin), width - begin])
            met = tf.linalg.matvec(met, right[:, :, begin:])
            met = tf.reshape(met, [-1, positions, positions, end - begin])
            met = tf.cast(met * right[:, tf.newaxis, :, begin:end], tf.float64)
            norm += tf.reduce_sum(met, axis=[1, 2, 3])
        # What float32 can have lost: of the same sum, its terms taken without their signs, which is
        # Σ_n (Σ_tk |l_tn|·|r_tk|·‖w_k‖·|m_nk|)². Cauchy and Schwarz bound the inner sum.
        heights = tf.tensordot(tf.square(left), tf.square(self.gate), 1)  # (B, T, h)
        unsigned = tf.cast(tf.reduce_sum(lengths * heights, axis=[1, 2]), tf.float64)
        all_lengths = tf.cast(tf.reduce_sum(lengths, axis=[1, 2]), tf.float64)
        lost = 1.1 * unsigned * all_lengths * (count + width + 16) * _EACH
        # Partial sums, too, may be too small for float32: of each product, and of what it adds to.
        most = tf.maximum(tf.reduce_max(tf.abs(self.gate), axis=0), 1.0)
        highest = tf.reduce_sum((tf.abs(right) + lengths) * most, axis=[1, 2]) + 1.0
        terms = 8 * (count + positions**2 * width)
        lost += terms * UNDERFLOW * tf.square(tf.cast(highest, tf.float64))
        times = tf.square(sizes[0] * sizes[1])
        return norm * times, lost * times

    def sum_of(self, parts, factors):
        """In float64: where the kernel cancels, it would enlarge the rounding of float32."""
        left, right = (tf.cast(part, tf.float64) for part in parts)
        right = scale(right, tf.cast(factors, tf.float64))
        left = tf.reshape(left, [-1, left.shape[2]])
        right = tf.reshape(right, [-1, right.shape[2]])
        at_gate = tf.matmul(left, right, transpose_a=True) * tf.cast(self.gate, tf.float64)
        total = tf.matmul(at_gate, tf.cast(self.kernel, tf.float64), transpose_b=True)
        return tf.cast(total, tf.float32)

    def at(self, places):
        """(B, K, d) float64 gradients at rows (B, K) of each example."""
        left, right = self.parts
        weights = tf.gather(tf.transpose(left, [0, 2, 1]), places, batch_dims=1)  # (B, K, T)
        at_gate = tf.matmul(tf.cast(weights, tf.float64), tf.cast(right, tf.float64))
        at_gate *= tf.cast(tf.gather(self.gate, places), tf.float64)
        return tf.tensordot(at_gate, tf.cast(self.kernel, tf.float64), [[2], [1]])


def _relative(part):
    """(B, T, n) over the largest of its numbers, and (B,) float64 those."""
    axes = [1, 2]  # of the numbers, without a copy of their absolute values
    largest = tf.maximum(tf.reduce_max(part, axes, True), -tf.reduce_min(part, axes, True))
    largest = tf.where(largest > 0.0, largest, 1.0)
    return part / largest, tf.cast(largest[:, 0, 0], tf.float64)


class _GatedAndOwn(Gradient):
    """The same, and rows that the examples looked up themselves, known by their places.

    Args:
        placed: `RowGradients`.
        is_shared: (B, T) bool, which of their places count.
        gated: a `_Gated`.
    """

    def __init__(self, placed, is_shared, gated):
        self._placed, self._is_shared, self._gated = placed, is_shared, gated
        self.parts = (*placed.parts, *gated.parts)

    def squared_norm(self):
        norm, bound = self._gated.squared_norm()
        own = sum_of_squares_of_rows(self._placed.values)
        shared = self._gated.at(self._placed.ids)
        met = tf.reduce_sum(tf.cast(self._placed.values, tf.float64) * shared, axis=2)
        cross = tf.reduce_sum(tf.where(self._is_shared, met, 0.0), axis=1)
        return norm + tf.reduce_sum(own, axis=1) + 2.0 * cross, bound
