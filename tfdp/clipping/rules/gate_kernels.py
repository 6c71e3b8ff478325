"""The products of a recurrent cell: inputs or states by a kernel, each gate with its own dropout.

Shapes: B examples, T steps, p inputs, u units, g gates.
"""

import tensorflow as tf

from tfdp.clipping.contributions import OuterProduct, PerExampleGradients, flatten_time


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

    def of_all_steps(self, x, kernel, masks):
        """As a call, for x of (B, T, ...)."""
        return self(x, kernel, masks)

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


def masked(x, mask):
    """x (B, ..., p) times a mask (B, p), or x where there is none."""
    if mask is None:
        return x
    if len(x.shape) > len(mask.shape):
        mask = mask[:, tf.newaxis]
    return x * mask
