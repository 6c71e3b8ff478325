"""Gradients of a table whose rows all examples share, beyond a dense layer with an activation.

Example i's gradient at row n is W·(m_n ∘ (LᵀR)_n), m_n the activation's derivative there and W the
dense layer's kernel (MATH.md section 14). Nothing of size B × N × d is made.
"""

import tensorflow as tf

from tfdp.clipping.sums.forms import Gradient, scale
from tfdp.clipping.sums.products import UNDERFLOW, sum_of_squares_of_rows
from tfdp.clipping.sums.shared_rows import SharedRowGradients

# Rounding of a float32 sum of N products, for each of them: its own rounding, and one addition.
_EACH = 2.0**-23


class GatedRowGradients(SharedRowGradients):
    """As `SharedRowGradients`, of one `GatedRows`.

    Args:
        variable: the table.
        gated: the `GatedRows`.
        rows: `RowGradients` of the examples' own look-ups, or None.
    """

    def __init__(self, variable, gated, rows=None):
        self._gate = tf.pad(tf.cast(gated.gate, tf.float32), [[0, 1], [0, 0]])
        self._kernel = tf.cast(gated.kernel, tf.float32)
        super().__init__(variable, [gated], rows)

    def _outer(self, left, right):
        return _Gated(left, right, self._gate, self._kernel)

    def _tied(self, placed):
        return _GatedAndOwn(placed, self.outer)

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
        """Σ_n Σ_{t,t'} l_tn·l_t'n·(r_t ∘ m_n)ᵀ·WᵀW·(r_t' ∘ m_n), by one product for all n."""
        left, right = self.parts
        (positions, count), (width,) = left.shape[1:], right.shape[2:]
        # Relative to the largest, so that squares are not lost.
        largest = tf.reduce_max(tf.abs(left), axis=[1, 2], keepdims=True)
        left = tf.math.divide_no_nan(left, largest)
        pairs = tf.reshape(left[:, :, tf.newaxis] * left[:, tf.newaxis], [-1, count])
        gates = tf.reshape(self.gate[:, :, tf.newaxis] * self.gate[:, tf.newaxis], [count, -1])
        met = tf.reshape(pairs @ gates, [-1, positions, positions, width, width])
        kernel, wide = tf.cast(self.kernel, tf.float64), tf.cast(right, tf.float64)
        inner = tf.matmul(kernel, kernel, transpose_a=True)
        met = tf.cast(met, tf.float64) * inner
        norm = tf.einsum("btk,bsl,btskl->b", wide, wide, met)
        # What float32 can have lost: of the same sum, its terms taken without their signs.
        lengths = tf.abs(wide) * tf.norm(kernel, axis=0)
        gate = tf.cast(tf.abs(self.gate), tf.float64)
        heights = tf.tensordot(lengths, gate, [[2], [1]])  # (B, T, N)
        unsigned = tf.reduce_sum(tf.cast(tf.abs(left), tf.float64) * heights, axis=1)
        lost = tf.reduce_sum(tf.square(unsigned), axis=1) * (count + 8) * _EACH
        most = tf.maximum(tf.reduce_max(gate, axis=0), 1.0)
        # Partial sums, too, may be too small for float32: of each product, and of what it adds to.
        lost += 4 * count * UNDERFLOW * tf.square(tf.reduce_sum(lengths * most, axis=[1, 2]))
        times = tf.square(tf.cast(largest[:, 0, 0], tf.float64))
        return norm * times, lost * times

    def sum_of(self, parts, factors):
        """In float64: where the kernel cancels, it would enlarge the rounding of float32."""
        left, right = (tf.cast(part, tf.float64) for part in parts)
        left = scale(left, tf.cast(factors, tf.float64))
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


class _GatedAndOwn(Gradient):
    """The same, and rows that the examples looked up themselves, known by their places.

    Args:
        placed: `RowGradients`.
        gated: a `_Gated`.
    """

    def __init__(self, placed, gated):
        self._placed, self._gated = placed, gated
        self.parts = (*placed.parts, *gated.parts)

    def squared_norm(self):
        norm, bound = self._gated.squared_norm()
        own = sum_of_squares_of_rows(self._placed.values)
        shared = self._gated.at(self._placed.ids)
        cross = tf.reduce_sum(tf.cast(self._placed.values, tf.float64) * shared, axis=[1, 2])
        return norm + tf.reduce_sum(own, axis=1) + 2.0 * cross, bound
