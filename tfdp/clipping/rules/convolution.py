"""Convolutions, as products of image patches and output gradients."""

import math

import keras
import tensorflow as tf

from tfdp.clipping.rules.dense import KernelAndBias
from tfdp.clipping.rules.patches import LARGEST_SLICED, patches, shifted
from tfdp.clipping.rules.registry import register_rule
from tfdp.clipping.sums import cost
from tfdp.clipping.sums.contributions import Layout, OuterProduct, PerExampleGradients, flatten_time
from tfdp.clipping.sums.cost import LARGEST_PER_EXAMPLE


def _geometry(layer):
    return layer.kernel_size, layer.strides, layer.dilation_rate, layer.padding


def _layout(layer):
    """A kernel (*kernel_size, a, b) as a matrix of (kernel_size·a, b)."""
    spatial = len(layer.kernel_size)
    return Layout(tuple(range(spatial + 1)), (spatial + 1,))


def _is_formed(layer, right):
    """Whether norms come from the kernel's own gradient of each example."""
    *size, channels, filters = layer.kernel.shape
    rows = math.prod(size) * channels
    formed = cost.strategy(right.shape[1], rows, filters) == "per_example"
    return formed and math.prod(size) <= LARGEST_SLICED


class _Convolution(KernelAndBias):
    def accepts(self, layer, args, kwargs):
        return layer.data_format == "channels_last"


@register_rule(keras.layers.Conv1D, keras.layers.Conv2D)
class ConvolutionRule(_Convolution):
    def kernel_contribution(self, layer, inputs, s):
        right = flatten_time(s, 1)
        if layer.groups == 1 and _is_formed(layer, right):
            # Place by place of the kernel: patches would be as many times as large as the inputs.
            places = shifted(inputs, *_geometry(layer))
            parts = [tf.matmul(flatten_time(x, 1), right, transpose_a=True) for x in places]
            return PerExampleGradients(tf.reshape(tf.stack(parts, 1), [-1, *layer.kernel.shape]))
        left = flatten_time(patches(inputs, *_geometry(layer)), 1)
        if layer.groups > 1:
            return _of_groups(layer, left, s)
        return OuterProduct(left, right, _layout(layer))


@register_rule(keras.layers.Conv3D)
class VolumeRule(ConvolutionRule):
    """Patches would be many times as large as the inputs: small kernels' gradients are formed."""

    def kernel_contribution(self, layer, inputs, s):
        large = math.prod(layer.kernel.shape) > LARGEST_PER_EXAMPLE
        if large or layer.groups > 1 or set(layer.dilation_rate) != {1}:
            return super().kernel_contribution(layer, inputs, s)

        def of_example(pair):
            return tf.raw_ops.Conv3DBackpropFilterV2(
                input=pair[0][tf.newaxis],
                filter_sizes=layer.kernel.shape,
                out_backprop=pair[1][tf.newaxis],
                strides=[1, *layer.strides, 1],
                padding=layer.padding.upper(),
            )

        pairs = tf.cast(inputs, tf.float32), tf.cast(s, tf.float32)
        signature = tf.TensorSpec(layer.kernel.shape, tf.float32)
        return PerExampleGradients(tf.map_fn(of_example, pairs, fn_output_signature=signature))


def _of_groups(layer, left, s):
    """A kernel for each group of channels: the per-example gradient is formed.

    By a rule, since TensorFlow has the gradient of such a convolution only inside XLA on some
    CPUs, where the fallback cannot take it apart by example.
    """
    *size, channels, filters = layer.kernel.shape
    s = flatten_time(s, 1)
    lead = [tf.shape(left)[0], tf.shape(left)[1]]
    left = tf.reshape(left, [*lead, math.prod(size), layer.groups, channels])
    s = tf.reshape(s, [*lead, layer.groups, filters // layer.groups])
    per_example = tf.einsum("btkgc,btgf->bkcgf", left, s)
    return PerExampleGradients(tf.reshape(per_example, [-1, *layer.kernel.shape]))


@register_rule(
    keras.layers.Conv1DTranspose, keras.layers.Conv2DTranspose, keras.layers.Conv3DTranspose
)
class TransposedConvolutionRule(_Convolution):
    """The gradient of a convolution: patches of the output gradients meet the inputs."""

    def accepts(self, layer, args, kwargs):
        whole = layer.output_padding is None and set(layer.dilation_rate) == {1}
        return whole and super().accepts(layer, args, kwargs)

    def kernel_contribution(self, layer, inputs, s):
        left = flatten_time(patches(s, *_geometry(layer)), 1)
        return OuterProduct(left, flatten_time(inputs, 1), _layout(layer))


@register_rule(keras.layers.DepthwiseConv1D, keras.layers.DepthwiseConv2D)
class DepthwiseConvolutionRule(_Convolution):
    """One small filter for each channel: the per-example gradient is formed."""

    def kernel_contribution(self, layer, inputs, s):
        return _by_channel(layer, inputs, s, layer.kernel.shape)


@register_rule(keras.layers.SeparableConv1D, keras.layers.SeparableConv2D)
class SeparableConvolutionRule(_Convolution):
    """A depthwise convolution, probed, and a convolution of size 1."""

    def variables(self, layer, args, kwargs):
        kernels = [layer.depthwise_kernel, layer.pointwise_kernel]
        return kernels + ([layer.bias] if layer.bias is not None else [])

    def call(self, layer, run, args, kwargs, probe):
        by_channel = probe(
            keras.ops.depthwise_conv(
                args[0],
                layer.depthwise_kernel,
                strides=layer.strides,
                padding=layer.padding,
                dilation_rate=layer.dilation_rate,
            )
        )
        probe.keep(by_channel)
        outputs = keras.ops.conv(by_channel, layer.pointwise_kernel, padding="valid")
        if layer.bias is not None:
            outputs += layer.bias
        outputs = probe(outputs)
        return outputs if layer.activation is None else layer.activation(outputs)

    def contributions_from(self, layer, args, kwargs, gradients, kept):
        (by_channel,), (of_channels, s) = kept, gradients
        pointwise = OuterProduct(flatten_time(by_channel, 1), flatten_time(s, 1), _layout(layer))
        shape = layer.depthwise_kernel.shape
        pairs = [
            (layer.depthwise_kernel, _by_channel(layer, args[0], of_channels, shape)),
            (layer.pointwise_kernel, pointwise),
        ]
        if layer.bias is not None:
            pairs.append((layer.bias, self.bias_contribution(layer, s)))
        return pairs


def _by_channel(layer, inputs, s, shape):
    """That of a kernel (*kernel_size, c, m), each channel of which has m filters of its own.

    Args:
        inputs: (B, *spatial, c).
        s: (B, *outputs, c·m), gradients of the summed losses at the outputs.
        shape: the kernel's.
    """
    *size, channels, multiplier = shape
    places = tf.cast(inputs, tf.float32), size, layer.strides, layer.dilation_rate, layer.padding
    axes = list(range(1, 1 + len(size)))
    s = tf.cast(s, tf.float32)
    filters = [tf.reshape(s, [*tf.unstack(tf.shape(s))[:-1], channels, multiplier])[..., i]
               for i in range(multiplier)] if multiplier > 1 else [s]  # fmt: skip
    values = [
        tf.stack([tf.reduce_sum(x * one, axis=axes) for one in filters], -1)
        for x in shifted(*places)
    ]
    return PerExampleGradients(tf.reshape(tf.stack(values, 1), [-1, *shape]))
