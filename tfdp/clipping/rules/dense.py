"""Dense and EinsumDense (which is what MultiHeadAttention is made of)."""

import contextlib
import dataclasses
import math

import keras
import tensorflow as tf

from tfdp.clipping.rules.registry import Rule, register_rule
from tfdp.clipping.sums.contributions import (
    Layout,
    OuterProduct,
    PerExampleGradients,
    flatten_time,
    reduce_to_shape,
)
from tfdp.clipping.sums.products import product_of_present

# Activations of which each output depends on one input.
_ELEMENTWISE = [
    getattr(keras.activations, name)
    for name in (
        "elu", "exponential", "gelu", "hard_sigmoid", "hard_silu", "leaky_relu", "linear",
        "mish", "relu", "relu6", "selu", "sigmoid", "silu", "softplus", "softsign", "tanh",
    )
]  # fmt: skip
# Numbers in the largest kernel of which, beyond an activation on what all examples share, each
# example gets a gradient of its own.
_LARGEST_GATED = 1 << 14


def is_elementwise(activation):
    """Whether an activation is one of these; None is the identity."""
    return activation is None or any(activation is one for one in _ELEMENTWISE)


@contextlib.contextmanager
def probed_activation(layer, probe):
    """Probes the input of `layer.activation` while the context is open.

    The gradient of a kernel needs the gradient at the pre-activation. Layers with no activation
    get one that only probes.
    """
    activation = layer.activation

    def apply(x):
        x = probe(x)
        return x if activation is None else activation(x)

    # Written to the instance's dictionary: Keras' attribute tracking must not see it.
    layer.__dict__["activation"] = apply
    try:
        yield
    finally:
        layer.__dict__["activation"] = activation


class KernelAndBias(Rule):
    """A layer that computes activation(linear(inputs, kernel) + bias)."""

    def variables(self, layer, args, kwargs):
        kernel = [layer.kernel] if isinstance(layer.kernel, keras.Variable) else []
        return kernel + ([layer.bias] if layer.bias is not None else [])

    def call(self, layer, run, args, kwargs, probe):
        with probed_activation(layer, probe):
            return run(*args, **kwargs)

    def contributions(self, layer, args, kwargs, gradients):
        (s,) = gradients
        pairs = [(layer.kernel, self.kernel_contribution(layer, args[0], s))]
        if layer.bias is not None:
            pairs.append((layer.bias, self.bias_contribution(layer, s)))
        return pairs

    def kernel_contribution(self, layer, inputs, s):
        raise NotImplementedError

    def bias_contribution(self, layer, s):
        return PerExampleGradients(reduce_to_shape(s, layer.bias.shape))


@register_rule(keras.layers.Dense)
class DenseRule(KernelAndBias):
    hands_on_factors = True

    def kernel_contribution(self, layer, inputs, s):
        return OuterProduct(flatten_time(inputs, 1), flatten_time(s, 1))

    def takes_positions(self, layer, args, kwargs):
        return True

    def accepts_shared(self, layer, args, kwargs):
        if len(args[0].shape) != 2 or not isinstance(layer.kernel, keras.Variable):
            return False
        is_small = math.prod(layer.kernel.shape) <= _LARGEST_GATED
        return _is_linear(layer) or (is_small and is_elementwise(layer.activation))

    def gates_shared(self, layer, args, kwargs):
        return not _is_linear(layer)

    def shared_gate(self, layer, at_probe):
        with tf.GradientTape() as tape:
            tape.watch(at_probe)
            outputs = layer.activation(at_probe)
        return tape.gradient(outputs, at_probe)

    def shared_contributions(self, layer, args, kwargs, gradient):
        """Σ_n left_n·a_n is one row for each example (MATH.md section 14)."""
        inputs = tf.cast(args[0], tf.float32)
        if gradient.gate is not None:
            return self._gated_contributions(layer, inputs, gradient)
        left, right = gradient.left, gradient.right
        pairs = [(layer.kernel, OuterProduct(tf.tensordot(left, inputs, 1), right))]
        if layer.bias is not None:
            totals = tf.reduce_sum(left, axis=2, keepdims=True)
            values = tf.reduce_sum(totals * right, axis=1)
            pairs.append((layer.bias, PerExampleGradients(values)))
        return pairs

    def _gated_contributions(self, layer, inputs, gradient):
        """With a gate, Σ_n left_n·a_n·gate_nᵀ is one matrix, of which `right` scales columns."""
        left, right, gate = gradient.left, gradient.right, gradient.gate
        (count, rows), columns = inputs.shape, gate.shape[1]
        products = tf.reshape(inputs[:, :, tf.newaxis] * gate[:, tf.newaxis], [count, -1])
        sums = product_of_present(tf.reshape(left, [-1, count]), products)
        sums = tf.reshape(sums, [-1, left.shape[1], rows, columns]) * right[:, :, tf.newaxis]
        kernel = sums[:, 0] if left.shape[1] == 1 else tf.reduce_sum(sums, axis=1)
        pairs = [(layer.kernel, PerExampleGradients(kernel))]
        if layer.bias is not None:
            values = tf.reduce_sum(tf.tensordot(left, gate, 1) * right, axis=1)
            pairs.append((layer.bias, PerExampleGradients(values)))
        return pairs

    def shared_input(self, layer, args, kwargs, gradient):
        kernel = tf.cast(tf.convert_to_tensor(layer.kernel.value), tf.float32)
        if gradient.gate is not None:
            return dataclasses.replace(gradient, kernel=kernel)
        right = tf.tensordot(gradient.right, kernel, [[2], [1]])
        return dataclasses.replace(gradient, right=right)


def _is_linear(layer):
    return layer.activation in (None, keras.activations.linear)


@register_rule(keras.layers.EinsumDense)
class EinsumDenseRule(KernelAndBias):
    """Kernels whose axes are each contracted or produced, as in every layer of Keras."""

    def accepts(self, layer, args, kwargs):
        return _parse(layer.equation, len(args[0].shape)) is not None

    def kernel_contribution(self, layer, inputs, s):
        inputs_spec, kernel_spec, output_spec = _parse(layer.equation, len(inputs.shape))
        shared = [c for c in inputs_spec[1:] if c in output_spec and c not in kernel_spec]
        contracted = [c for c in kernel_spec if c in inputs_spec]
        produced = [c for c in kernel_spec if c in output_spec]
        left = tf.transpose(inputs, [inputs_spec.index(c) for c in inputs_spec[0:1]
                                     + "".join(shared + contracted)])  # fmt: skip
        right = tf.transpose(s, [output_spec.index(c) for c in output_spec[0:1]
                                 + "".join(shared + produced)])  # fmt: skip
        layout = Layout(
            tuple(kernel_spec.index(c) for c in contracted),
            tuple(kernel_spec.index(c) for c in produced),
        )
        return OuterProduct(
            flatten_time(left, len(contracted)), flatten_time(right, len(produced)), layout
        )


def _parse(equation, rank):
    """(inputs, kernel, output) labels, or None for an equation that has no rule."""
    left, output = equation.replace(" ", "").split("->")
    inputs, kernel = left.split(",")
    if "..." in equation:
        free = [c for c in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" if c not in equation]
        missing = rank - len(inputs.replace("...", ""))
        letters = "".join(free[:missing])
        inputs, output = inputs.replace("...", letters), output.replace("...", letters)
        if "..." in kernel:
            return None
    regular = (
        len(set(inputs)) == len(inputs)
        and len(set(kernel)) == len(kernel)
        and inputs[:1] == output[:1]
        and inputs[:1] not in kernel
        and all((c in kernel) != (c in output) for c in inputs[1:])
        and all((c in inputs) != (c in output) for c in kernel)
    )
    return (inputs, kernel, output) if regular else None
