"""Exact per-example gradients of any layer: vector-Jacobian products, one example at a time.

Slower than a rule and with one copy of the layer's parameters for each example, but it needs to
know nothing about the layer. A layer that draws random numbers inside must draw the same in both
passes: for all examples at once, if it can (`draws.py`), else example by example, each with its own
seed, in the forward pass too.
"""

import contextlib
import types
import warnings
import weakref

import keras
import tensorflow as tf

from tfdp._compat.keras import logits_of, mask_of, set_logits, set_mask
from tfdp._compat.tensorflow import tapes_record
from tfdp._compat.vectorized import draws_of_a_batch, vectorized_map
from tfdp.clipping.probes import differentiable
from tfdp.clipping.recording import called_in_python, paused
from tfdp.clipping.sums.factoring import contributions_in
from tfdp.errors import PrivacyError

_ONE_BY_ONE = weakref.WeakSet()  # layers of which that was said


class Calls(keras.Layer):
    """Calls a function without autocasting; everything in it sees this layer's `training`."""

    def __init__(self):
        # A scope begins with a letter; a policy of 16 bits would turn autocasting on.
        super().__init__(autocast=False, dtype="float32", name="calls")
        self._convert_input_args = False
        self._allow_non_tensor_positional_args = True

    def call(self, function, training=None):
        return function()


def run(recorded, call, batch_size, compiled):
    """The outputs of a call without a rule; notes in `recorded` what drawing again takes.

    Args:
        recorded: the `RecordedCall`.
        call: the layer's own `call`.
        batch_size: number of examples.
        compiled: whether XLA compiles the step.
    """
    planned = recorded.planned
    if planned.seeds and (compiled or not planned.draws_at_once):
        recorded.seeds = _example_seeds(planned, batch_size)
        return _run_by_example(recorded)
    recorded.drawn_at_once = bool(planned.seeds)
    shape = tf.stack([batch_size, 1])
    recorded.seeds = [tf.tile(state.value[tf.newaxis], shape) for state in planned.seeds]
    return call(*recorded.args, **recorded.kwargs)


def _example_seeds(planned, batch_size):
    """One seed for each example and random generator; advances the generators by one."""
    seeds = []
    for state in planned.seeds:
        value = state.value
        shape = tf.stack([batch_size, 2])
        seeds.append(
            tf.cast(
                tf.random.stateless_uniform(
                    shape, tf.cast(value, tf.int64), minval=None, maxval=None, dtype=tf.int32
                ),
                value.dtype,
            )
        )
        state.assign(value + tf.constant([0, 1], value.dtype))
    return seeds


def _run_by_example(recorded):
    """The layer's outputs, each example computed by itself, one after another.

    Not by vectorized_map: loops and random numbers inside it lose the static shapes that the
    backward pass needs.
    """
    examples, rebuild = _split(recorded)

    def one(elements):
        tensors, seeds = elements
        scope[:] = [_scope(recorded, seeds)]
        outputs = _call(recorded, rebuild(tensors), scope[0])
        values, put_together[:] = _take_apart(outputs)
        return [t[0] for t in values]

    put_together, scope = [], []
    elements = (examples, recorded.seeds)
    first = one(tf.nest.map_structure(lambda t: t[0], elements))  # for its shapes, and its counts
    for variable, _ in recorded.counts:
        variable.assign(scope[0].get_current_value(variable))
    signature = [tf.TensorSpec(t.shape, t.dtype) for t in first]
    values = tf.map_fn(one, elements, fn_output_signature=signature)
    return put_together[0](values)


def refuse_other_computations(planned, call):
    """Refuses a call without a rule that computes something else when it is run again.

    Args:
        planned: its `PlannedCall`.
        call: its `LayerCall` in the graph of a plain forward pass, which gets more operations.

    Raises:
        PrivacyError: if the operations are others, or their floating-point constants.
    """
    graph = call.graph
    first = call.made()
    start = len(graph.get_operations())
    run = types.SimpleNamespace(planned=planned, training=call.training, counts=[])
    with graph.as_default(), tapes_record():  # those in the layer: a plan is made in `init_scope`
        scope = _scope(run, [state.value for state in planned.seeds])
        _call(run, (call.args, call.kwargs), scope)
    kinds, numbers = _computation(first)
    kinds_again, numbers_again = _computation(graph.get_operations()[start:])
    if kinds != kinds_again or not numbers_again <= numbers:
        layer = call.layer
        raise PrivacyError(
            f"Layer {layer.name!r} ({type(layer).__name__}) has no clipping rule, so tfdp ran it "
            "again for each example, and it then computed something else. Its results may depend "
            "only on its arguments, its weights, and its own `keras.random.SeedGenerator`s. If "
            "the model sets values on it between its calls, pass them as arguments of `call`."
        )


def _computation(operations):
    """Types of operations, and the numbers that Python gave them the first time."""
    kinds, numbers = [], set()
    for op in operations:
        if op.type == "Const" and op.outputs[0].dtype.is_floating:
            numbers.add(op.get_attr("value").SerializeToString())
        elif op.type not in ("Const", "Identity", "NoOp", "Placeholder", "ReadVariableOp"):
            kinds.append(op.type)
    return kinds, numbers


def contributions(recorded, gradients, compiled=False):
    """Pairs of variable and contribution for a call without a rule.

    Args:
        recorded: the `RecordedCall`.
        gradients: gradients of the summed losses at its probes.
        compiled: whether XLA compiles the step. It cannot compile a vectorized loop inside a
            layer (an RNN); examples then follow one another.
    """
    planned = recorded.planned
    examples, rebuild = _split(recorded)
    parameters = [tf.convert_to_tensor(v.value) for v in planned.variables]

    def gradients_of(call, seeds, s):
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(parameters)
            pairs = zip(planned.variables, parameters, strict=True)
            outputs = differentiable(_call(recorded, call, _scope(recorded, seeds, pairs)))
            # As `with_probes` orders them.
            outputs += [z for z in map(logits_of, outputs) if z is not None]
        return tape.gradient(
            outputs,
            parameters,
            output_gradients=[g for _, g in zip(outputs, s, strict=True)],
            unconnected_gradients=tf.UnconnectedGradients.ZERO,
        )

    def of_example(elements):
        tensors, seeds, s = elements
        return gradients_of(rebuild(tensors), seeds, [tf.expand_dims(g, 0) for g in s])

    def of_row(i):
        n = tf.shape(gradients[0])[0]
        rows = tf.range(n) == i
        s = [tf.where(tf.reshape(rows, [-1] + [1] * (g.shape.rank - 1)), g, 0) for g in gradients]
        # Its inputs in every row: 0 times the NaN of another example would be NaN.
        tensors = tf.nest.map_structure(lambda t: t[i], examples)
        return gradients_of(rebuild(tensors, n), [s[0] for s in recorded.seeds], s)

    elements = (examples, recorded.seeds, gradients)
    with paused():
        found = None if compiled else _vectorized(of_example, elements, recorded.drawn_at_once)
        if found is None:
            if not compiled:
                _say_once(planned.layer)
            pairs = zip(planned.variables, parameters, strict=True)
            signature = [tf.TensorSpec(v.shape, p.dtype) for v, p in pairs]
            one = of_example
            if recorded.drawn_at_once:  # all rows run, to draw as they did; one has gradients
                one, elements = of_row, tf.range(tf.shape(gradients[0])[0])
            found = tf.map_fn(one, elements, fn_output_signature=signature)
    return [
        (v, contribution)
        for v, g in zip(planned.variables, found, strict=True)
        for contribution in contributions_in(g)
    ]


def _vectorized(function, elements, drawn_at_once):
    """What `vectorized_map` gives, or None if it has no way to it, as for lists in nested loops."""
    try:
        with draws_of_a_batch() if drawn_at_once else contextlib.nullcontext():
            return vectorized_map(function, elements)
    except (NotImplementedError, TypeError, ValueError):
        return None


def _say_once(layer):
    if layer not in _ONE_BY_ONE:
        _ONE_BY_ONE.add(layer)
        warnings.warn(
            f"Layer {layer.name!r} has no clipping rule, and TensorFlow cannot run it on all "
            "examples at once (it has a loop in a loop, or a branch around sublayers). tfdp runs "
            "it one example at a time: the numbers are the same, but it is slow. Write a rule "
            "(`tfdp.clipping.register_rule`) for speed.",
            stacklevel=2,
        )


def _split(recorded):
    """The tensors that have the batch axis, and a function that rebuilds a call on one example.

    The function takes the example's tensors and masks, and in how many rows it is to stand.
    """
    structure = (recorded.args, recorded.kwargs)
    flat = tf.nest.flatten(structure)
    aligned = iter(recorded.planned.aligned)
    split = [isinstance(t, tf.Tensor) and next(aligned) for t in flat]
    # None cannot pass through vectorized_map: masks travel in a list of their own.
    masks = [mask_of(t) if has_axis else None for t, has_axis in zip(flat, split, strict=True)]
    examples = (
        [t for t, s in zip(flat, split, strict=True) if s],
        [m for m in masks if m is not None],
    )

    def repeated(tensor, like, rows):
        tensor = tf.expand_dims(tensor, 0)
        if rows is None:
            return tensor
        return tf.ensure_shape(tf.repeat(tensor, rows, axis=0), like.shape)

    def rebuild(elements, rows=None):
        tensors, example_masks = iter(elements[0]), iter(elements[1])
        values = []
        for value, is_split, mask in zip(flat, split, masks, strict=True):
            if is_split:
                value = repeated(next(tensors), value, rows)
                if mask is not None:
                    set_mask(value, repeated(next(example_masks), mask, rows))
            values.append(value)
        return tf.nest.pack_sequence_as(structure, values)

    return examples, rebuild


def _take_apart(outputs):
    """All tensors of the outputs, with their masks and logits, and [what puts others together]."""
    flat = tf.nest.flatten(outputs)
    tensors = [t for t in flat if isinstance(t, tf.Tensor)]
    beside = [(setter, i, value) for getter, setter in _BESIDE
              for i, value in enumerate(map(getter, tensors)) if value is not None]  # fmt: skip

    def put_together(values):
        new = values[: len(tensors)]
        for (setter, i, _), value in zip(beside, values[len(tensors) :], strict=True):
            setter(new[i], value)
        remaining = iter(new)
        filled = [next(remaining) if isinstance(t, tf.Tensor) else t for t in flat]
        return tf.nest.pack_sequence_as(outputs, filled)

    return tensors + [value for _, _, value in beside], [put_together]


_BESIDE = ((mask_of, set_mask), (logits_of, set_logits))


def _scope(recorded, seeds, parameters=()):
    """What a call reads when it is run again: the seeds and counts that it had, and parameters."""
    given = [*parameters, *recorded.counts, *zip(recorded.planned.seeds, seeds, strict=True)]
    return keras.StatelessScope(given)


def _call(recorded, call, scope):
    (args, kwargs), planned = call, recorded.planned
    with paused(), called_in_python(planned.layer), scope:
        around = Calls()
        return around(lambda: planned.layer(*args, **kwargs), training=recorded.training)
