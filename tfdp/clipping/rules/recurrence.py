"""A loop over time whose backward pass forms no weight's gradient, only those at the gates.

TensorFlow's gradient of a loop adds up the gradients of all weights at every step. Here they come
afterwards, from the gradients at the gates (`rules/recurrent.py`).
"""

import tensorflow as tf


def recurrence(cell, gates, mask, states, weights):
    """Runs h_t = cell.update(z_t, cell.recur(h_{t-1}, weights), h_{t-1}, weights) for all t.

    Args:
        cell: has `recur(h, weights)`, linear in the first state h, and
            `update(z, m, states, weights)`, the list of new states, where z and m are lists of
            parts as wide as h. Neither may use a tensor that has a gradient and is none of its
            arguments. `is_elementwise` says whether an entry of a new state depends on that entry
            of each state and of each part alone.
        gates: (B, T, ...), the parts z_t that the inputs have in the gates.
        mask: (B, T) bool: where it is false, the states stay; or None.
        states: list of (B, ...), before the first step.
        weights: list of tensors. None of them gets a gradient.

    Returns:
        (the first state after every step (B, T, ...); list of all states after the last step;
        what `cell.recur` gave at every step, (B, T, ...), without a gradient).
    """
    count = len(states)
    seen = None if mask is None else tf.transpose(mask)

    @tf.custom_gradient
    def run(gates, *tensors):
        states, weights = tensors[:count], tensors[count:]
        z = _parts(_swapped(gates), states[0])
        inner, *after = _forward(cell, z, seen, states, weights)

        def gradient(of_all, *of_last_and_inner):
            before = [
                tf.concat([s[tf.newaxis], a[:-1]], 0) for s, a in zip(states, after, strict=True)
            ]
            backward = _backward_of_products if cell.is_elementwise else _backward_of_steps
            of_z, of_states = backward(
                cell, z, seen, weights, inner, before, _swapped(of_all), of_last_and_inner[:-1]
            )
            return _swapped(tf.concat(of_z, -1)), *of_states, *[None] * len(weights)

        last = [sequence[-1] for sequence in after]
        return (_swapped(after[0]), *last, _swapped(inner)), gradient

    first, *last, inner = run(gates, *states, *weights)
    for tensor in (first, inner):
        tensor.set_shape([*gates.shape[:2], *tensor.shape[2:]])
    return first, last, inner


# Below, time comes first: (T, B, ...). Parts of gates are tensors of their own: XLA makes no vector
# instructions for a CPU of a loop that reads several places of one step.


def _forward(cell, z, seen, states, weights):
    """What `recur` gave at every step, and each state after every step."""

    def step(t, states, arrays):
        m = cell.recur(states[0], weights)
        new = _updated(cell, _at(z, t), m, None if seen is None else seen[t], states, weights)
        return new, [array.write(t, v) for array, v in zip(arrays, [m, *new], strict=True)]

    like = [cell.recur(states[0], weights), *states]
    return _loop(z[0], False, step, states, like)[1]


def _backward_of_steps(cell, z, seen, weights, inner, before, of_all, of_last):
    """Gradients at the parts of the gates, and at the states before the first step."""

    def step(t, of_states, arrays):
        of_states = [of_states[0] + of_all[t], *of_states[1:]]
        parts, m, old = _at(z, t), inner[t], _at(before, t)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch([*parts, m, *old])
            new = _updated(cell, parts, m, None if seen is None else seen[t], old, weights)
        found = _vjp(tape, new, [*parts, m, *old], of_states)
        of_z, of_m, of_old = found[: len(z)], found[len(z)], found[len(z) + 1 :]
        of_old[0] += _through_product(cell, weights, old[0], of_m)
        return of_old, [array.write(t, value) for array, value in zip(arrays, of_z, strict=True)]

    of_first, of_z = _loop(z[0], True, step, of_last, [part[0] for part in z])
    return of_z, of_first


def _backward_of_products(cell, z, seen, weights, inner, before, of_all, of_last):
    """The same for a cell that is elementwise: only its products are left to the loop.

    How an entry of a new state changes with each that it is made of is a number that depends on no
    gradient: these slopes are computed at once, for all steps.
    """
    with tf.GradientTape(watch_accessed_variables=False, persistent=True) as tape:
        tape.watch([*z, inner, *before])
        new = _updated(cell, z, inner, seen, before, weights)
    slopes = [tape.gradient(state, [*z, inner, *before]) for state in new]
    slopes = [list(of_source) for of_source in zip(*slopes, strict=True)]
    by_z, by_m, by_old = slopes[: len(z)], slopes[len(z)], slopes[len(z) + 1 :]

    def step(t, of_states, arrays):
        of_states = [of_states[0] + of_all[t], *of_states[1:]]
        of_m = _chain(of_states, _at(by_m, t))
        of_old = [_chain(of_states, _at(by, t)) for by in by_old]
        of_old[0] += _through_product(cell, weights, before[0][t], of_m)
        return of_old, [a.write(t, value) for a, value in zip(arrays, of_states, strict=True)]

    of_first, of_each = _loop(z[0], True, step, of_last, of_last)
    return [_chain(of_each, by) for by in by_z], of_first


def _chain(of_states, slopes):
    """Gradient at something, or at several parts of it, on which the states depend so; or not."""
    terms = [
        tf.concat([s] * (slope.shape[-1] // s.shape[-1]), -1) * slope
        for s, slope in zip(of_states, slopes, strict=True)
        if slope is not None
    ]
    return tf.add_n(terms) if terms else tf.zeros_like(of_states[0])


def _through_product(cell, weights, h, of_m):
    """Gradient at the first state, from that at what `recur` made of it."""
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(h)
        m = cell.recur(h, weights)
    return _vjp(tape, [m], [h], [of_m])[0]


def _updated(cell, z, m, seen, states, weights):
    """The new states; the old ones where `seen`, which has no axes of features, is false."""
    new = cell.update(z, _parts(m, states[0]), states, weights)
    if seen is None:
        return new
    keep = [seen[(..., *[tf.newaxis] * (len(s.shape) - len(seen.shape)))] for s in states]
    return [tf.where(k, n, s) for k, n, s in zip(keep, new, states, strict=True)]


def _parts(tensor, state):
    """The parts of a tensor that are as wide as a state."""
    count = tensor.shape[-1] // state.shape[-1]
    return tf.split(tensor, count, -1) if count > 1 else [tensor]


def _at(sequences, t):
    return [None if sequence is None else sequence[t] for sequence in sequences]


def _vjp(tape, outputs, inputs, gradients):
    return tape.gradient(
        outputs,
        inputs,
        output_gradients=list(gradients),
        unconnected_gradients=tf.UnconnectedGradients.ZERO,
    )


def _loop(sequence, backwards, step, states, like):
    """Calls `step(t, states, arrays)` for all t, with one array for each tensor of `like`.

    Returns:
        (the states after the last call, the arrays' values (T, ...)).
    """
    steps = sequence.shape[0] if sequence.shape[0] is not None else tf.shape(sequence)[0]
    arrays = [tf.TensorArray(v.dtype, steps, element_shape=v.shape) for v in like]

    def body(i, states, arrays):
        return i + 1, *step(steps - 1 - i if backwards else i, states, arrays)

    _, states, arrays = tf.while_loop(
        lambda i, *_: i < steps, body, (0, list(states), arrays), maximum_iterations=steps
    )
    return states, [array.stack() for array in arrays]


def _swapped(sequence):
    """(T, B, ...) from (B, T, ...), or back."""
    return tf.transpose(sequence, [1, 0, *range(2, len(sequence.shape))])
