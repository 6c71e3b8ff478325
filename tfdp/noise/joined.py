"""Sums of many variables next to each other, so that one draw serves all of them."""

import math

import tensorflow as tf

from tfdp.runtime.wide_sums import dense, sums_of_segments

# So many values of several tensors are copied next to each other, to be released at once. XLA keeps
# 12 bytes of temporary memory for each. The C library gives large blocks back to the operating
# system after every step: from two million values on, getting their pages again took up to half of
# a click model's step. A larger tensor is a part by itself.
LARGEST_JOINED = 1 << 20
# Tensors that begin at such a place share the memory of the draw: TensorFlow aligns to 64 bytes.
_LINE = 16
# Rows that fall into parts of fewer numbers are faster added up table by table.
_NARROWEST = 8


def in_joined_parts(tensors, most, release):
    """What a function makes of tensors, several of them at once.

    Args:
        tensors: as for `Joined`.
        most: how many values are joined.
        release: function of (n,) values to (n,) values.

    Returns:
        List of tensors of the same shapes.
    """
    # Tables by themselves: they wait for no other gradient, and rows are added up for them alone.
    tables = [i for i, t in enumerate(tensors) if isinstance(t, tf.IndexedSlices)]
    others = [i for i in range(len(tensors)) if i not in tables]
    released = [None] * len(tensors)
    for kind in (tables, others):
        sizes, start = [math.prod(tensors[i].shape) for i in kind], 0
        while start < len(kind):
            stop = start + 1
            while stop < len(kind) and sum(sizes[start : stop + 1]) <= most:
                stop += 1
            joined = Joined([tensors[i] for i in kind[start:stop]])
            for i, one in zip(kind[start:stop], joined.apart(release(joined.values)), strict=True):
                released[i] = one
            start = stop
    return released


class Joined:
    """One tensor of the values of all, zeros between them up to whole lines.

    Rows that a step touched of several tables are added up where they belong: no table is made by
    itself, and copied.

    Args:
        tensors: list of float tensors of static shapes, or of tf.IndexedSlices of such.

    Attributes:
        values: (n,).
    """

    def __init__(self, tensors):
        self._shapes = [tf.TensorShape(t.shape) for t in tensors]
        self._unit = _LINE
        width = _width_of_rows(tensors, self._shapes)
        if width:
            self._unit = math.lcm(_LINE, width)
            self.values = self._of_rows(tensors, width)
        elif len(tensors) == 1:
            self.values = tf.reshape(dense(tensors[0]), [-1])
        else:
            self.values = self._of_tensors(tensors)

    def apart(self, values):
        """The tensors of the shapes that were joined, from values (n,)."""
        if len(self._shapes) == 1:
            size = self._shapes[0].num_elements()
            return [tf.reshape(values[:size], self._shapes[0])]
        parts = tf.split(tf.reshape(values, [-1, self._unit]), self._units())
        return [
            tf.reshape(tf.reshape(part, [-1])[: shape.num_elements()], shape)
            for part, shape in zip(parts, self._shapes, strict=True)
        ]

    def _units(self):
        """How many units each of the tensors takes."""
        return [-(-shape.num_elements() // self._unit) for shape in self._shapes]

    def _of_rows(self, tensors, width):
        """By one sum of rows of this width."""
        rows, places, start = [], [], 0
        for tensor, units in zip(tensors, self._units(), strict=True):
            each = math.prod(tensor.shape[1:]) // width
            first = start + tf.cast(tensor.indices, tf.int32)[:, tf.newaxis] * each
            places.append(tf.reshape(first + tf.range(each), [-1]))
            rows.append(tf.reshape(tensor.values, [-1, width]))
            start += units * self._unit // width
        total = sums_of_segments(tf.concat(rows, 0), tf.concat(places, 0), start)
        return tf.reshape(total, [-1])

    def _of_tensors(self, tensors):
        flat = []
        for tensor, units in zip(tensors, self._units(), strict=True):
            # Along the last of two axes: of vectors, XLA for CPUs would make the choice of a tensor
            # a part of each draw, one value at a time.
            flat.append(tf.reshape(dense(tensor), [1, -1]))
            missing = units * self._unit - flat[-1].shape[1]
            if missing:
                flat.append(tf.zeros([1, missing], flat[-1].dtype))
        return tf.reshape(tf.concat(flat, 1), [-1])


def _width_of_rows(tensors, shapes):
    """How wide the rows are into which all tables fall; None for other tensors, and narrow rows."""
    if not all(isinstance(t, tf.IndexedSlices) for t in tensors):
        return None
    width = math.gcd(*(math.prod(shape[1:]) for shape in shapes))
    return width if width >= _NARROWEST else None
