"""Gradients of a table of which every example looks up the same rows, beside rows of its own."""

import copy
import types

import tensorflow as tf

from tfdp.clipping.sums.contributions import OuterProduct
from tfdp.clipping.sums.forms import Gradient, Outer, Tied, in_rows, join
from tfdp.runtime import ordering
from tfdp.runtime.xla import is_compiling


class SharedRowGradients(Gradient):
    """Look-ups that all examples share, kept as their factors (MATH.md section 14).

    On the N shared rows g_i is the matrix leftᵀ·right of a head over N items. With the rows that
    the example looked up itself it is that of a table of N rows which is look-up and head at once.

    Args:
        variable: the table.
        shared: list of `SharedRows`.
        rows: `RowGradients` of the examples' own look-ups, or None.
    """

    def __init__(self, variable, shared, rows=None):
        self.variable = variable
        ids = [tf.cast(c.ids, tf.int64) for c in shared]
        self.ids = ids[0] if len(ids) == 1 else tf.concat(ids, 0)
        self._sorted, self._order = ordering.sort_with_order(self.ids + 1, variable.shape[0] + 1)
        left, right = _beside([c.left for c in shared]), join([c.right for c in shared])
        # An id that was drawn twice is one row: of equal ones, the first has the sum.
        first = tf.where(self.ids >= 0, self._search(self.ids)[0], -1)
        self.outer = self._outer(_summed_at_first(left, first), right)
        self._join(rows)

    def _outer(self, left, right):
        """The `Gradient` of N rows."""
        matrix = types.SimpleNamespace(shape=(left.shape[2], right.shape[2]))
        return Outer(matrix, [OuterProduct(left, right)])

    def _tied(self, placed, is_shared):
        """The `Gradient` of these rows and of the examples' own, known by their places."""
        return Tied(placed, self.outer, is_shared)

    def _join(self, rows):
        self.rows = rows
        self.form = self.outer if rows is None else self._tied(*self._placed(rows))
        self.parts = self.form.parts

    def beside(self, rows):
        """The same, with other rows of the examples' own."""
        other = copy.copy(self)
        other._join(rows)
        return other

    def _placed(self, rows):
        """The examples' own rows, known by their places, and which are among the shared ones."""
        placed = copy.copy(rows)
        found = self._search(tf.reshape(tf.cast(rows.ids, tf.int64), [-1]))
        placed.ids, is_shared = (
            tf.ensure_shape(tf.reshape(t, tf.shape(rows.ids)), rows.ids.shape) for t in found
        )
        return placed, is_shared

    def _search(self, ids):
        """The first place of each id among the shared ones, and whether it is one of them."""
        at = tf.minimum(ordering.search(self._sorted, ids + 1), self.ids.shape[0] - 1)
        return tf.gather(self._order, at), tf.gather(self._sorted, at) == ids + 1

    def _values(self):
        """(B, N, d) gradients of single examples."""
        left, right = self.outer.parts
        return tf.matmul(left, right, transpose_a=True)

    def squared_norm(self):
        return self.form.squared_norm()

    def per_example(self):
        shared = in_rows(self.ids, self._values(), self.variable.shape)
        return shared if self.rows is None else shared + self.rows.per_example()

    def sum_of(self, parts, factors):
        *values, left, right = parts
        shared = self.outer.sum_of([left, right], factors)
        shape = tf.constant(tuple(self.variable.shape))
        if self.rows is None:
            return tf.IndexedSlices(shared, self.ids, shape)
        own = self.rows.sum_of(values, factors)
        return tf.IndexedSlices(
            tf.concat([own.values, shared], 0),
            tf.concat([tf.cast(own.indices, tf.int64), self.ids], 0),
            shape,
        )


def _summed_at_first(left, first):
    """(B, T, N) whose columns are those of equal rows, added up in the first of them.

    Args:
        left: (B, T, N).
        first: (N,) int64, the first column of the same row; −1 for a column of no row.
    """
    count = left.shape[2]
    if is_compiling():  # how many are drawn again is not known there
        turned = tf.transpose(left, [2, 0, 1])
        return tf.transpose(tf.math.unsorted_segment_sum(turned, first, count), [1, 2, 0])
    again = tf.reshape(tf.where(first != tf.range(count, dtype=tf.int64)), [-1])

    def moved():
        # To the first column, and away from its own: one product, and what is zero is exactly so.
        to, away = (
            tf.one_hot(columns, count, dtype=left.dtype)
            for columns in (tf.gather(first, again), again)
        )
        more = tf.tensordot(tf.gather(left, again, axis=2), to - away, 1)
        return tf.ensure_shape(left + more, left.shape)

    # Of a million items, mostly none is drawn twice.
    return tf.cond(tf.size(again) > 0, moved, lambda: left)


def _beside(lefts):
    """(B, ΣT, ΣN), of which each tensor (B, T, N) takes its own rows and columns."""
    if len(lefts) == 1:
        return lefts[0]
    width, start, padded = sum(t.shape[2] for t in lefts), 0, []
    for left in lefts:
        end = width - start - left.shape[2]
        padded.append(tf.pad(left, [[0, 0], [0, 0], [start, end]]))
        start += left.shape[2]
    return join(padded)
