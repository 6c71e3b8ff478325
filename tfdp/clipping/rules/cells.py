"""Keras' recurrent cells as dense or convolutional layers over time.

A cell adds what its inputs and its state give to each gate: z = inputs·kernel + bias, of all steps
at once, and m = state·recurrent_kernel, step by step. The gradients of the kernels are then those
of two layers, from the gradients at the gates.

Shapes: B examples, T steps, p inputs, u units, g gates.
"""

import keras
import tensorflow as tf

from tfdp._compat.keras import ConvLSTMCell
from tfdp.clipping.rules.dense import is_elementwise
from tfdp.clipping.rules.gate_kernels import ConvKernel, DenseKernel
from tfdp.clipping.sums.contributions import PerExampleGradients, reduce_to_shape

CELLS = {}


def describes(cell_class):
    """Decorator: makes a class the description of a Keras cell."""

    def decorate(description):
        CELLS[cell_class] = description
        return description

    return decorate


@describes(keras.layers.SimpleRNNCell)
class Cell:
    """One call of a cell: h = activation(z + m).

    Attributes:
        gates: into how many parts the kernels' last axis falls.

    Args:
        cell: the Keras cell.
        inputs: (B, T, ...), of the whole call.
        states: list of (B, ...), before the first step.
        training: whether dropout is active. Its masks are drawn in any case, as Keras does.
    """

    gates = 1

    def __init__(self, cell, inputs, states, training):
        self.cell = cell
        drawn = self._draw(inputs[:, 0], states[0])
        self.masks, self.recurrent_masks = drawn if training else (None, None)
        self.kernel, self.recurrent_kernel = self._kernels()

    def _kernels(self):
        kernel = DenseKernel(self.gates)
        return kernel, kernel

    def _draw(self, inputs, state):
        try:
            return self.cell.get_dropout_mask(inputs), self.cell.get_recurrent_dropout_mask(state)
        finally:
            self.cell.reset_dropout_mask()
            self.cell.reset_recurrent_dropout_mask()

    @staticmethod
    def covers(cell):
        """Whether a cell computes what is described here, with all masks that it draws."""
        return True

    @property
    def is_elementwise(self):
        """Whether an entry of new states needs that entry of states and gates alone."""
        functions = [self.cell.activation, getattr(self.cell, "recurrent_activation", None)]
        return all(is_elementwise(f) for f in functions)

    def weights(self):
        """What the loop reads."""
        return [tf.convert_to_tensor(self.cell.recurrent_kernel.value)]

    def project(self, inputs):
        """z of all steps, from inputs (B, T, ...)."""
        z = self.kernel(inputs, tf.convert_to_tensor(self.cell.kernel.value), self.masks)
        return z if self.cell.bias is None else z + self.input_bias()

    def input_bias(self):
        return self.cell.bias

    def recur(self, h, weights):
        """m from the first state (B, ...)."""
        return self.recurrent_kernel(h, weights[0], self.recurrent_masks)

    def update(self, z, m, states, weights):
        """The new states, from lists of the gates' parts."""
        return [self.cell.activation(z[0] + m[0])]

    def contributions(self, inputs, z, m, before, s):
        """Pairs of variable and contribution.

        Args:
            inputs: (B, T, ...).
            z, m: (B, T, ...), as in `update`, of all steps.
            before: (B, T, ...), the first state before each step.
            s: gradients of the summed losses at z.
        """
        cell, of_m = self.cell, self.gradient_at_m(z, m, s)
        pairs = [(cell.kernel, self.kernel.contribution(inputs, s, cell.kernel, self.masks))]
        pairs.append((cell.recurrent_kernel, self.recurrent_contribution(z, m, before, of_m)))
        if cell.bias is not None:
            pairs.append((cell.bias, self.bias_contribution(s, of_m)))
        return pairs

    def gradient_at_m(self, z, m, s):
        return s

    def recurrent_contribution(self, z, m, before, of_m):
        kernel = self.cell.recurrent_kernel
        return self.recurrent_kernel.contribution(before, of_m, kernel, self.recurrent_masks)

    def bias_contribution(self, s, of_m):
        return PerExampleGradients(reduce_to_shape(s, self.cell.bias.shape))


class _Gated(Cell):
    @staticmethod
    def covers(cell):
        return cell.implementation == 1 or cell.recurrent_dropout == 0


@describes(keras.layers.LSTMCell)
class LSTM(_Gated):
    """c = f·c + i·activation(g), h = o·activation(c), with i, f, g, o from z + m."""

    gates = 4

    def update(self, z, m, states, weights):
        cell = self.cell
        i, f, g, o = (of_input + of_state for of_input, of_state in zip(z, m, strict=True))
        c = cell.recurrent_activation(f) * states[1]
        c += cell.recurrent_activation(i) * cell.activation(g)
        return [cell.recurrent_activation(o) * cell.activation(c), c]


@describes(ConvLSTMCell)
class ConvLSTM(LSTM):
    """An LSTM whose products are convolutions."""

    @staticmethod
    def covers(cell):
        return cell.data_format == "channels_last"

    def _kernels(self):
        cell = self.cell
        ones = (1,) * cell.rank
        inputs = (cell.kernel_size, cell.strides, cell.dilation_rate, cell.padding)
        return ConvKernel(4, inputs), ConvKernel(4, (cell.kernel_size, ones, ones, "same"))


@describes(keras.layers.GRUCell)
class GRU(_Gated):
    """h = u·h + (1 - u)·activation(z_c + r·m_c), with u, r from z + m.

    `reset_after=False` multiplies before the product: m_c = (r·h)·recurrent_kernel_c.
    """

    gates = 3

    @property
    def is_elementwise(self):
        return self.cell.reset_after and super().is_elementwise

    def weights(self):
        after = self.cell.reset_after and self.cell.bias is not None
        return super().weights() + ([tf.convert_to_tensor(self.cell.bias[1])] if after else [])

    def input_bias(self):
        return self.cell.bias[0] if self.cell.reset_after else self.cell.bias

    def recur(self, h, weights):
        if not self.cell.reset_after:
            kernel, masks = self._first_two(weights[0])
            return DenseKernel(2)(h, kernel, masks)
        m = super().recur(h, weights)
        return m + weights[1] if len(weights) > 1 else m

    def update(self, z, m, states, weights):
        cell, (h,) = self.cell, states
        (z_u, z_r, z_c), (m_u, m_r, *m_c) = z, m
        reset = cell.recurrent_activation(z_r + m_r)
        if cell.reset_after:
            inner = reset * m_c[0]
        else:
            kernel, masks = self._last(weights[0])
            inner = DenseKernel(1)(reset * h, kernel, masks)
        u = cell.recurrent_activation(z_u + m_u)
        return [u * h + (1 - u) * cell.activation(z_c + inner)]

    def gradient_at_m(self, z, m, s):
        if not self.cell.reset_after:
            return s
        of_u, of_r, of_c = tf.split(s, 3, axis=-1)
        return tf.concat([of_u, of_r, of_c * self._reset(z, m)], -1)

    def recurrent_contribution(self, z, m, before, of_m):
        if self.cell.reset_after:
            return super().recurrent_contribution(z, m, before, of_m)
        kernel, units = self.cell.recurrent_kernel, self.cell.units
        (first, masks), (last, last_mask) = self._first_two(kernel), self._last(kernel)
        parts = [
            DenseKernel(2).per_example(before, of_m[..., : 2 * units], first, masks),
            DenseKernel(1).per_example(
                before * self._reset(z, m), of_m[..., 2 * units :], last, last_mask
            ),
        ]
        return PerExampleGradients(tf.concat(parts, -1))

    def bias_contribution(self, s, of_m):
        if not self.cell.reset_after:
            return super().bias_contribution(s, of_m)
        sums = [reduce_to_shape(t, t.shape[-1:]) for t in (s, of_m)]
        return PerExampleGradients(tf.stack(sums, 1))

    def _reset(self, z, m):
        units = slice(self.cell.units, 2 * self.cell.units)
        return self.cell.recurrent_activation(z[..., units] + m[..., units])

    def _first_two(self, kernel):
        masks = self.recurrent_masks
        return kernel[:, : 2 * self.cell.units], None if masks is None else masks[:2]

    def _last(self, kernel):
        masks = self.recurrent_masks
        return kernel[:, 2 * self.cell.units :], None if masks is None else masks[2]
