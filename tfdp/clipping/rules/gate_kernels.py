"""The products of a recurrent cell: inputs or states by a kernel, each gate with its own dropout.

Shapes: B examples, T steps, p inputs, u units, g gates.
"""

import keras
import tensorflow as tf

from tfdp.clipping.rules.patches import patches
from tfdp.clipping.sums.contributions import Layout, OuterProduct, PerExampleGradients, flatten_time


class DenseKernel:
    """Products by a kernel (p, g·u).

    Masks are None, one (B, p) that all gates share, or a list of one for each gate.

    Args:
        gates: g.
    """

    def __init__(self, gates):
        self.gates = gates

    def __call__(self, x, kernel, masks):
        """(..., g·u), from x of (B, ..., p)."""
        if not isinstance(masks, list):
            return self.product(masked(x, masks), kernel)
        kernels = tf.split(kernel, self.gates, axis=-1)
        parts = [self.product(masked(x, m), k) for m, k in zip(masks, kernels, strict=True)]
        return tf.concat(parts, -1)

    def product(self, x, kernel):
        return tf.matmul(x, kernel)

    def contribution(self, x, s, kernel, masks):
        """That of the kernel.

        Args:
            x: (B, T, p).
            s: (B, T, g·u), gradients of the summed losses at the products.
            kernel: its variable.
            masks: as they were in the products.
        """
        if isinstance(masks, list):
            return PerExampleGradients(self.per_example(x, s, kernel, masks))
        return OuterProduct(flatten_time(masked(x, masks), 1), flatten_time(s, 1))

    def per_example(self, x, s, kernel, masks):
        """(B, p, g·u): the kernel's gradient of each example."""
        shared = not isinstance(masks, list)
        x = flatten_time(masked(x, masks) if shared else x, 1)
        matrix = tf.matmul(x, flatten_time(s, 1), transpose_a=True)
        if shared:
            return matrix
        by_gate = tf.cast(tf.stack(masks, -1), tf.float32)  # the masks are the same in all steps
        return matrix * tf.repeat(by_gate, kernel.shape[-1] // self.gates, axis=-1)


class ConvKernel(DenseKernel):
    """Convolutions by a kernel (*size, p, g·u), of x (B, *spatial, p) or (B, T, *spatial, p).

    Args:
        gates: g.
        geometry: kernel size, strides, dilation rate and padding.
    """

    def __init__(self, gates, geometry):
        super().__init__(gates)
        self.geometry = geometry

    def product(self, x, kernel):
        _, strides, dilation, padding = self.geometry
        found = keras.ops.conv(
            x if len(x.shape) == len(kernel.shape) else _merged(x),
            kernel,
            strides=strides,
            padding=padding,
            dilation_rate=dilation,
        )
        return found if len(x.shape) == len(kernel.shape) else _apart(found, x)

    def contribution(self, x, s, kernel, masks):
        if isinstance(masks, list):
            return PerExampleGradients(self.per_example(x, s, kernel, masks))
        rank = len(kernel.shape) - 2
        layout = Layout(tuple(range(rank + 1)), (rank + 1,))
        return OuterProduct(self._patches(masked(x, masks)), flatten_time(s, 1), layout)

    def per_example(self, x, s, kernel, masks):
        matrices = [
            tf.matmul(self._patches(masked(x, mask)), flatten_time(part, 1), transpose_a=True)
            for mask, part in zip(masks, tf.split(s, self.gates, axis=-1), strict=True)
        ]
        return tf.reshape(tf.concat(matrices, -1), [-1, *kernel.shape])

    def _patches(self, x):
        """(B, T·positions, size·p), from (B, T, *spatial, p)."""
        return flatten_time(_apart(patches(_merged(x), *self.geometry), x), 1)


def _merged(x):
    """(B·T, ...) from (B, T, ...)."""
    return tf.reshape(x, tf.concat([[-1], tf.shape(x)[2:]], 0))


def _apart(x, like):
    """(B, T, ...) from (B·T, ...)."""
    shape = [*like.shape[:2], *x.shape[1:]]
    x = tf.reshape(x, tf.concat([tf.shape(like)[:2], tf.shape(x)[1:]], 0))
    return tf.ensure_shape(x, shape)


def masked(x, mask):
    """x (B, ..., p) times a mask (B, p), or x where there is none."""
    if mask is None:
        return x
    if len(x.shape) > len(mask.shape):
        mask = mask[:, tf.newaxis]
    return x * mask
