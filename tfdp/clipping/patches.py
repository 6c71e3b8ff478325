"""The inputs that a convolution's kernel meets, for any number of spatial axes."""

import itertools
import math

import tensorflow as tf

# So many slices of the inputs are made faster than all patches in one operation; if they are not
# strided, which keeps them from being copied in long runs.
_LARGEST_SLICED = 64


def patches(inputs, size, strides, dilation, padding):
    """(B, *outputs, size·c): what meets the kernel at each output position, maybe with axes of 1.

    Args:
        inputs: (B, *spatial, c).
        size, strides, dilation: of the kernel, one number for each spatial axis.
        padding: "valid", "same" or "causal".
    """
    if len(size) > 2 or (math.prod(size) <= _LARGEST_SLICED and math.prod(strides) == 1):
        return tf.concat(shifted(inputs, size, strides, dilation, padding), -1)
    if len(size) == 1:
        if padding == "causal":
            inputs = tf.pad(inputs, [[0, 0], [dilation[0] * (size[0] - 1), 0], [0, 0]])
            padding = "valid"
        inputs = inputs[:, tf.newaxis]
        size, strides, dilation = ((1, *v) for v in (size, strides, dilation))
    sizes, steps, rates = ([1, *v, 1] for v in (size, strides, dilation))
    return tf.image.extract_patches(inputs, sizes, steps, rates, padding.upper())


def shifted(inputs, size, strides, dilation, padding):
    """For each place in the kernel, in order, the inputs (B, *outputs, c) that it meets."""
    geometry = list(zip(size, strides, dilation, strict=True))
    lengths = [
        tf.shape(inputs)[i + 1] if n is None else n for i, n in enumerate(inputs.shape[1:-1])
    ]
    margins = [_margins(n, *g, padding) for n, g in zip(lengths, geometry, strict=True)]
    if padding != "valid":
        inputs = tf.pad(inputs, [[0, 0], *margins, [0, 0]])
    found = []
    for place in itertools.product(*(range(k) for k in size)):
        slices = []
        for at, n, (k, stride, rate), (before, after) in zip(
            place, lengths, geometry, margins, strict=True
        ):
            reach = n + before + after - rate * (k - 1)  # ends behind the last output's first place
            slices.append(slice(at * rate, at * rate + reach, stride))
        found.append(inputs[(slice(None), *slices)])
    return found


def _margins(length, size, stride, rate, padding):
    """Zeros before and after one axis."""
    if padding == "valid":
        return 0, 0
    reach = rate * (size - 1)
    if padding == "causal":
        return reach, 0
    last = (length - 1) // stride * stride  # where the last output begins
    total = last + reach + 1 - length
    total = tf.maximum(total, 0) if tf.is_tensor(total) else max(total, 0)
    return total // 2, total - total // 2
