"""A loop over time whose backward pass forms no weight's gradient, only those at the gates.

TensorFlow's gradient of a loop adds up the gradients of all weights at every step. Here they come
afterwards, from the gradients at the gates (`rules/recurrent.py`).
"""

import tensorflow as tf


def recurrence(cell, gates, mask, states, weights):
    """Runs h_t = cell.update(z_t, cell.recur(h_{t-1}, weights), h_{t-1}, weights) for all t.

    Args:
        cell: has `recur(h, weights)`, linear in the first state h, and
            `update(z, m, states, weights)`, the list of new states. Neither may use a tensor that
            has a gradient and is none of its arguments.
        gates: (B, T, ...), the parts z_t that the inputs have in the gates.
        mask: (B, T) bool: where it is false, the states stay; or None.
        states: list of (B, ...), before the first step.
        weights: list of tensors. None of them gets a gradient.

    Returns:
        (the first state after every step (B, T, ...); list of all states after the last step;
        what `cell.recur` gave at every step, (B, T, ...), without a gradient).
    """
    count = len(states)

    @tf.custom_gradient
    def run(gates, *tensors):
        states, weights = tensors[:count], tensors[count:]
        inner, *after = _forward(cell, gates, mask, states, weights)

        def gradient(of_all, *of_last_and_inner):
            of_gates, of_states = _backward(
                cell, gates, mask, states, weights, inner, after, of_all, of_last_and_inner[:-1]
            )
            return of_gates, *of_states, *[None] * len(weights)

        last = [sequence[-1] for sequence in after]
        return (_batch_first(after[0]), *last, _batch_first(inner)), gradient

    first, *last, inner = run(gates, *states, *weights)
    for tensor in (first, inner):
        tensor.set_shape([*gates.shape[:2], *tensor.shape[2:]])
    return first, last, inner


def _forward(cell, gates, mask, states, weights):
    """Time first: what `recur` gave at every step, and each state after every step."""

    def step(t, states, arrays):
        inner = cell.recur(states[0], weights)
        new = _updated(cell, gates[:, t], inner, mask, t, states, weights)
        values = zip(arrays, [inner, *new], strict=True)
        return new, [array.write(t, value) for array, value in values]

    inner_shape = cell.recur(states[0], weights).shape
    arrays = [_array(gates, shape) for shape in [inner_shape, *(s.shape for s in states)]]
    return [array.stack() for array in _loop(gates, False, step, list(states), arrays)[1]]


def _backward(cell, gates, mask, states, weights, inner, after, of_all, of_last):
    """Gradients at the gates (B, T, ...) and at the states before the first step."""
    before = [tf.concat([s[tf.newaxis], a[:-1]], 0) for s, a in zip(states, after, strict=True)]

    def step(t, of_states, arrays):
        of_states = [of_states[0] + of_all[:, t], *of_states[1:]]
        z, m, old = gates[:, t], inner[t], [sequence[t] for sequence in before]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch([z, m, *old])
            new = _updated(cell, z, m, mask, t, old, weights)
        of_z, of_m, *of_old = _vjp(tape, new, [z, m, *old], of_states)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(old[0])
            m = cell.recur(old[0], weights)
        (by_recurrence,) = _vjp(tape, [m], [old[0]], [of_m])
        of_old[0] += by_recurrence
        return of_old, [arrays[0].write(t, of_z)]

    arrays = [_array(gates, [gates.shape[0], *gates.shape[2:]])]
    of_states, (of_gates,) = _loop(gates, True, step, list(of_last), arrays)
    return _batch_first(of_gates.stack()), of_states


def _updated(cell, z, m, mask, t, states, weights):
    new = cell.update(z, m, states, weights)
    if mask is None:
        return new
    keep = [tf.reshape(mask[:, t], [-1] + [1] * (len(s.shape) - 1)) for s in states]
    return [tf.where(k, n, s) for k, n, s in zip(keep, new, states, strict=True)]


def _vjp(tape, outputs, inputs, gradients):
    return tape.gradient(
        outputs,
        inputs,
        output_gradients=list(gradients),
        unconnected_gradients=tf.UnconnectedGradients.ZERO,
    )


def _loop(gates, backwards, step, states, arrays):
    """Calls `step(t, states, arrays)` for all t; (states, arrays) after the last call."""
    steps = _steps(gates)

    def body(i, states, arrays):
        return i + 1, *step(steps - 1 - i if backwards else i, states, arrays)

    _, states, arrays = tf.while_loop(
        lambda i, *_: i < steps, body, (0, states, arrays), maximum_iterations=steps
    )
    return states, arrays


def _array(gates, shape):
    return tf.TensorArray(gates.dtype, _steps(gates), element_shape=shape)


def _steps(gates):
    return gates.shape[1] if gates.shape[1] is not None else tf.shape(gates)[1]


def _batch_first(sequence):
    return tf.transpose(sequence, [1, 0, *range(2, len(sequence.shape))])
