"""The forms in which a layer call contributes to the gradient of a variable, example by example.

g_i below is example i's gradient with respect to one variable, never formed unless stated.
"""

import dataclasses
import math

import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class Layout:
    """How a (rows, columns) matrix is laid out in a variable.

    Attributes:
        rows: axes of the variable that make up the matrix's rows, in order.
        columns: axes that make up its columns.
    """

    rows: tuple
    columns: tuple

    def to_variable(self, matrix, shape):
        """Turns a tensor (..., p, r) into (..., *shape)."""
        axes = self.rows + self.columns
        lead = [d if d is not None else -1 for d in matrix.shape[:-2]]
        n = len(lead)
        tensor = tf.reshape(matrix, lead + [shape[a] for a in axes])
        if axes == tuple(range(len(axes))):
            return tensor
        inverse = [axes.index(a) for a in range(len(axes))]
        return tf.transpose(tensor, list(range(n)) + [n + a for a in inverse])


MATRIX = Layout((0,), (1,))


@dataclasses.dataclass
class OuterProduct:
    """g_i = sum_t left[i, t] right[i, t]^T (MATH.md section 2, "Dense / EinsumDense").

    Attributes:
        left: (B, T, p).
        right: (B, T, r).
        layout: where the (p, r) matrix lies in the variable.
    """

    left: tf.Tensor
    right: tf.Tensor
    layout: Layout = MATRIX


@dataclasses.dataclass
class Rows:
    """g_i has sum_{t: ids[i, t] = j} values[i, t] in row j (MATH.md section 2, "Embedding").

    Attributes:
        ids: (B, T) integers.
        values: (B, T, d).
    """

    ids: tf.Tensor
    values: tf.Tensor


@dataclasses.dataclass
class SharedRows:
    """g_i has sum_{n: ids[n] = j} sum_t left[i, t, n] right[i, t] in row j (MATH.md section 14).

    Rows that all examples look up, as negatives that are drawn once a step.

    Attributes:
        ids: (N,) integers, N known; what has a negative one is no row.
        left: (B, T, N).
        right: (B, T, d).
    """

    ids: tf.Tensor
    left: tf.Tensor
    right: tf.Tensor


@dataclasses.dataclass
class GatedRows:
    """g_i has kernel·(gate[n] ∘ sum_t left[i, t, n] right[i, t]) in row ids[n].

    Rows that all examples look up, and that go through a dense layer with an activation, whose
    derivative is the gate (MATH.md section 14). Equal ids have equal gates.

    Attributes:
        ids: (N,) integers, N known; what has a negative one is no row.
        left: (B, T, N).
        right: (B, T, h).
        gate: (N, h).
        kernel: (d, h).
    """

    ids: tf.Tensor
    left: tf.Tensor
    right: tf.Tensor
    gate: tf.Tensor
    kernel: tf.Tensor


@dataclasses.dataclass
class PerExampleGradients:
    """g_i itself, for variables small enough to hold one copy for each example.

    Attributes:
        values: (B, *variable.shape).
    """

    values: tf.Tensor


@dataclasses.dataclass
class SharedGradient:
    """The gradients of all examples at a tensor (N, d) that they share, as factors.

    Example i's is G_i = sum_t left[i, t] right[i, t]^T; with a gate gate ∘ G_i, and with a kernel,
    too, (gate ∘ G_i)·kernel^T.

    Attributes:
        left: float32 (B, T, N).
        right: float32 (B, T, d); (B, T, h) with a kernel.
        gate: None, or of the shape of G_i.
        kernel: None, or (d, h).
    """

    left: tf.Tensor
    right: tf.Tensor
    gate: tf.Tensor | None = None
    kernel: tf.Tensor | None = None

    def columns(self, begin, end):
        """The gradient at these columns of the tensor."""
        if self.kernel is not None:
            return dataclasses.replace(self, kernel=self.kernel[begin:end])
        return dataclasses.replace(self, right=self.right[:, :, begin:end])

    def at_rows(self, ids):
        """The contribution to a table whose rows `ids` (N,) the tensor is."""
        if self.kernel is None:
            return SharedRows(ids, self.left, self.right)
        return GatedRows(ids, self.left, self.right, self.gate, self.kernel)


def flatten_time(x, features):
    """(B, ..., f1, .., fk) to float32 (B, T, f1·..·fk), where `features` counts the trailing axes.

    A tensor with no axes in between gets T = 1.
    """
    between = x.shape[1 : len(x.shape) - features]
    size = math.prod(x.shape[len(x.shape) - features :])
    known = None not in between
    batch = x.shape[0]
    if batch is None:
        batch = -1 if known else tf.shape(x)[0]
    positions = math.prod(between) if known else -1
    return tf.cast(tf.reshape(x, [batch, positions, size]), tf.float32)


def reduce_to_shape(x, shape):
    """Sums (B, ...) over the axes along which a parameter of `shape` was broadcast."""
    shape = tuple(shape)
    padded = (1,) * (len(x.shape) - 1 - len(shape)) + shape
    axes = [i + 1 for i, d in enumerate(padded) if d == 1 and x.shape[i + 1] != 1]
    x = tf.cast(x, tf.float32)
    if axes:
        x = tf.reduce_sum(x, axis=axes)
    return tf.reshape(x, (-1,) + shape)
