"""Convolutions, as products of image patches and output gradients."""

import math

import keras
import tensorflow as tf

from tfdp.clipping.contributions import Layout, OuterProduct, PerExampleGradients, flatten_time
from tfdp.clipping.registry import register_rule
from tfdp.clipping.rules.dense import KernelAndBias


def patches_of(layer, inputs):
    """(B, H', W', kh·kw·c): the inputs that meet the kernel at each output position."""
    size, strides, dilation = layer.kernel_size, layer.strides, layer.dilation_rate
    padding = layer.padding
    if len(size) == 1:
        if padding == "causal":
            inputs = tf.pad(inputs, [[0, 0], [dilation[0] * (size[0] - 1), 0], [0, 0]])
            padding = "valid"
        inputs = inputs[:, tf.newaxis]
        size, strides, dilation = ((1, *v) for v in (size, strides, dilation))
    return tf.image.extract_patches(
        tf.cast(inputs, tf.float32),
        sizes=[1, *size, 1],
        strides=[1, *strides, 1],
        rates=[1, *dilation, 1],
        padding=padding.upper(),
    )


class _Convolution(KernelAndBias):
    def accepts(self, layer, args, kwargs):
        return layer.data_format == "channels_last"


@register_rule(keras.layers.Conv1D, keras.layers.Conv2D)
class ConvolutionRule(_Convolution):
    def kernel_contribution(self, layer, inputs, s):
        if layer.groups > 1:
            return _of_groups(layer, inputs, s)
        spatial = len(layer.kernel_size)
        layout = Layout(tuple(range(spatial + 1)), (spatial + 1,))
        return OuterProduct(flatten_time(patches_of(layer, inputs), 1), flatten_time(s, 1), layout)


def _of_groups(layer, inputs, s):
    """A kernel for each group of channels: the per-example gradient is formed.

    By a rule, since TensorFlow has the gradient of such a convolution only inside XLA on some
    CPUs, where the fallback cannot take it apart by example.
    """
    *size, channels, filters = layer.kernel.shape
    patches, s = flatten_time(patches_of(layer, inputs), 1), flatten_time(s, 1)
    lead = [tf.shape(patches)[0], tf.shape(patches)[1]]
    patches = tf.reshape(patches, [*lead, math.prod(size), layer.groups, channels])
    s = tf.reshape(s, [*lead, layer.groups, filters // layer.groups])
    per_example = tf.einsum("btkgc,btgf->bkcgf", patches, s)
    return PerExampleGradients(tf.reshape(per_example, [-1, *layer.kernel.shape]))


@register_rule(keras.layers.DepthwiseConv1D, keras.layers.DepthwiseConv2D)
class DepthwiseConvolutionRule(_Convolution):
    """One small filter for each channel: the per-example gradient is formed."""

    def kernel_contribution(self, layer, inputs, s):
        *size, channels, multiplier = layer.kernel.shape
        taps = 1
        for k in size:
            taps *= k
        patches = flatten_time(patches_of(layer, inputs), 1)
        batch = tf.shape(patches)[0]
        positions = tf.shape(patches)[1]
        patches = tf.reshape(patches, [batch, positions, taps, channels])
        s = tf.reshape(flatten_time(s, 1), [batch, positions, channels, multiplier])
        return PerExampleGradients(
            tf.reshape(tf.einsum("btkc,btcm->bkcm", patches, s), [-1, *layer.kernel.shape])
        )
