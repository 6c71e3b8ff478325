"""The inputs that a convolution's kernel meets, for any number of spatial axes."""

import itertools
import math

import tensorflow as tf

# So many slices of the inputs are made faster than all patches in one operation; if their lengths
# are known: strided slices, which are not copied in long runs, would take longer.
LARGEST_SLICED = 64


def patches(inputs, size, strides, dilation, padding):
    """(B, *outputs, size·c): what meets the kernel at each output position, maybe with axes of 1.

    Args:
        inputs: (B, *spatial, c).
        size, strides, dilation: of the kernel, one number for each spatial axis.
        padding: "valid", "same" or "causal".
    """
    known = None not in inputs.shape[1:-1] or math.prod(strides) == 1
    if len(size) > 2 or (math.prod(size) <= LARGEST_SLICED and known):
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
    # What a place meets begins at rate·place and ends behind the last output's first place.
    starts = [[rate * i for i in range(k)] for k, _, rate in geometry]
    reaches = [
        n + before + after - rate * (k - 1)
        for n, (k, _, rate), (before, after) in zip(lengths, geometry, margins, strict=True)
    ]
    if math.prod(strides) > 1 and all(isinstance(n, int) for n in lengths):
        return _of_remainders(inputs, starts, reaches, strides)
    found = []
    for place in itertools.product(*starts):
        places = zip(place, reaches, strides, strict=True)
        found.append(inputs[(slice(None), *(slice(at, at + r, step) for at, r, step in places))])
    return found


def _of_remainders(inputs, starts, reaches, strides):
    """The same slices, from the positions of each remainder by the strides, copied once."""
    lengths, c = inputs.shape[1:-1], inputs.shape[-1]
    more = [-n % stride for n, stride in zip(lengths, strides, strict=True)]
    inputs = tf.pad(inputs, [[0, 0], *([0, m] for m in more), [0, 0]])
    split = [[(n + m) // s, s] for n, m, s in zip(lengths, more, strides, strict=True)]
    of_axes = [d for pair in split for d in pair]
    # The last axis' remainders stay beside the channels: one slice takes both.
    planes = {(): tf.reshape(inputs, [-1, *of_axes[:-1], of_axes[-1] * c])}
    for axis in range(len(strides) - 1):
        planes = {
            (*of_others, i): plane
            for of_others, whole in planes.items()
            for i, plane in enumerate(tf.unstack(whole, axis=axis + 2))
        }
    found = []
    for place in itertools.product(*starts):
        places = zip(place, reaches, strides, strict=True)
        slices = [slice(at // s, at // s + -(-reach // s)) for at, reach, s in places]
        *of_axes, last = (at % s for at, s in zip(place, strides, strict=True))
        found.append(planes[tuple(of_axes)][(slice(None), *slices, slice(last * c, last * c + c))])
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
