"""What an operation without a rule does with examples, found by running it alone on random values.

The operation runs on random inputs, and again with those of one example replaced, by extreme ones,
too. An axis of an output is the examples' if, of all places on it, only those of the replaced
example ever change, and if examples that change their places take their results along. This is a
search and no proof; it sees no data, so that what it finds tells nothing of them.
"""

import numpy as np
import tensorflow as tf

from tfdp.clipping.independence.values import PUBLIC, Joined, Rows

NO_RULE = "is an operation that no rule of tfdp covers"
_TRIES = 16
_TEXTS = np.array([b"", b"a", b"3", b"0.5", b"a word", b"more words than one"], object)
_EXTREMES = (np.nan, np.inf, -np.inf, 1e6, -1e6, 0.0)


def outputs(call):
    """For each output of a `Call` what it holds, by values; `Joined` where that is not found."""
    op = call.op
    if not can_run(op):
        return [Joined(op, NO_RULE, known=False)] * len(op.outputs)
    constants = [call.constant(i) if v is PUBLIC else None for i, v in enumerate(call.values)]
    inputs = Inputs(op.inputs, call.values, constants, call.batch_size)
    candidates = [_candidates(t.shape, call.batch_size) for t in op.outputs]
    found = search(Operation(op), inputs, candidates)
    if any(rows and len(rows) == 1 for rows in found):
        call.body.walk.searched[op.type] = op
    return [r[0] if r and len(r) == 1 else Joined(op, NO_RULE, r == []) for r in found]


def keeps_apart(function, tensors, batch_size):
    """Whether each row of what a function gives is found to be of the same row of its inputs.

    Args:
        function: of tensors to a list of tensors.
        tensors: symbolic ones that have the shapes of its inputs, which are by example.
        batch_size: B.
    """
    inputs = Inputs(tensors, [Rows(0)] * len(tensors), [None] * len(tensors), batch_size)
    traced = tf.function(lambda *values: function(list(values)), autograph=False)
    run = traced.get_concrete_function(*(tf.TensorSpec(t.shape, t.dtype) for t in tensors))
    count = len(run.outputs)
    found = search(
        lambda values: [np.asarray(t) for t in run(*map(tf.constant, values))],
        inputs,
        [[Rows(0)] for _ in range(count)],
    )
    return any(found) and all(rows in (None, [Rows(0)]) for rows in found)


def search(function, inputs, candidates):
    """For each output the candidates that random values leave; None where it never changed."""
    changed = [False] * len(candidates)
    for attempt in tries(function, inputs, np.random.default_rng(), _TRIES):
        for k, (before, after) in enumerate(zip(attempt.before, attempt.after, strict=True)):
            changed[k] |= not attempt.moved and not same(before, after)
            candidates[k] = [rows for rows in candidates[k] if attempt.agrees(k, rows)]
    return [rows if c else None for rows, c in zip(candidates, changed, strict=True)]


def can_run(op):
    """Whether an operation can be run by itself: without resources, states and unknown sizes."""
    tensors = [*op.inputs, *op.outputs]
    return not (op.op_def.is_stateful or "PyFunc" in op.type) and all(
        t.shape.is_fully_defined() and t.dtype not in (tf.resource, tf.variant) for t in tensors
    )


class Attempt:
    """One operation on two batches: with one example replaced, or with all moved by one place.

    Attributes:
        before, after: arrays, one for each output.
        moved: whether the examples moved, in place of one being replaced.
    """

    def __init__(self, before, after, example, batch_size):
        self.before = before
        self.after = after
        self.moved = example is None
        self._example = example
        self._batch_size = batch_size

    def agrees(self, k, rows):
        """Whether output k is as it must be if its examples are where `rows` says."""
        before, after = self.before[k], self.after[k]
        size = before.shape[rows.axis]
        if size % (rows.inner * self._batch_size):  # a shape that follows from drawn inputs
            return False
        if self.moved:
            where = moved(size, rows, self._batch_size)
            return same(before.take(where, rows.axis), after, 1e-4)
        others = np.flatnonzero(owners(size, rows, self._batch_size) != self._example)
        return before.shape == after.shape and same(
            before.take(others, rows.axis), after.take(others, rows.axis)
        )


def owners(size, rows, batch_size):
    """(size,) the example that each place of an axis belongs to."""
    return np.arange(size) // rows.inner % batch_size


def tries(function, inputs, generator, count):
    """Yields `Attempt`s on random inputs; fewer where the function refuses them.

    Args:
        function: of a list of arrays to a list of arrays.
        inputs: its `Inputs`.
        generator: a numpy Generator.
        count: number of attempts.
    """
    for number in range(count):
        largest = (2, 3, 6, 50)[number // 4 % 4]
        before = inputs.draw(generator, largest)
        example = None if number % 4 == 3 else int(generator.integers(inputs.batch_size))
        others = None if example is None else inputs.draw(generator, largest)
        after = inputs.changed(before, others, example, generator)
        try:
            results = function(before), function(after)
        except (tf.errors.OpError, ValueError):  # an index beyond its range, a singular matrix
            continue
        yield Attempt(*results, example, inputs.batch_size)


def same(a, b, tolerance=0.0):
    """Whether two arrays hold the same numbers, NaN among them."""
    if a.shape != b.shape:
        return False
    if not np.issubdtype(a.dtype, np.inexact):
        return bool(np.all(a == b))
    return np.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)


class Inputs:
    """Random inputs of what is searched.

    Args:
        tensors: tensors of the same shapes and types.
        values: what they hold: `PUBLIC` or `Rows`.
        constants: arrays for those that are always the same, else None.
        batch_size: B.
    """

    def __init__(self, tensors, values, constants, batch_size):
        self._tensors = [(t.shape.as_list(), t.dtype) for t in tensors]
        self._values = values
        self._constants = constants
        self.batch_size = batch_size

    def draw(self, generator, largest):
        """A list of arrays; integers are below `largest`."""
        return [
            _random(*tensor, generator, largest) if constant is None else constant
            for tensor, constant in zip(self._tensors, self._constants, strict=True)
        ]

    def changed(self, before, others, example, generator):
        """The inputs with one example replaced, or, if that is None, all moved by one place."""
        found = []
        for i, rows in enumerate(self._values):
            values = before[i]
            if isinstance(rows, Rows) and example is None:
                values = values.take(
                    moved(values.shape[rows.axis], rows, self.batch_size), rows.axis
                )
            elif isinstance(rows, Rows):
                owner = owners(values.shape[rows.axis], rows, self.batch_size)
                mine = (owner == example).reshape([-1, *[1] * (values.ndim - rows.axis - 1)])
                values = np.where(mine, _with_extremes(others[i], generator), values)
            found.append(values)
        return found


def moved(size, rows, batch_size):
    """(size,) from which place each place gets its values when examples move by one."""
    owner = owners(size, rows, batch_size)
    return np.arange(size) + ((owner - 1) % batch_size - owner) * rows.inner


def _random(shape, dtype, generator, largest):
    if dtype == tf.string:  # of few, so that now and then one alone is long
        return generator.choice(generator.choice(_TEXTS, 1 + largest // 3), shape)
    if dtype == tf.bool:
        return generator.random(shape) < 0.5
    if dtype.is_integer:
        return generator.integers(0, largest, shape).astype(dtype.as_numpy_dtype)
    values = generator.normal(size=shape)
    if dtype.is_complex:
        values = values + 1j * generator.normal(size=shape)
    return values.astype(dtype.as_numpy_dtype)


def _with_extremes(values, generator):
    if not np.issubdtype(values.dtype, np.floating) or generator.random() < 0.5:
        return values
    extreme = generator.choice(_EXTREMES, values.shape).astype(values.dtype)
    return np.where(generator.random(values.shape) < 0.5, extreme, values)


def _candidates(shape, batch_size):
    """The axes that may be the examples', and how."""
    found = []
    for axis, size in enumerate(shape):
        if size and size % batch_size == 0:
            found += [Rows(axis, inner) for inner in {1, size // batch_size}]
    return found


def is_static(op):
    """Whether an operation gives the shape of a tensor whose sizes are known."""
    return op.type in ("Shape", "Size", "Rank") and op.inputs[0].shape.is_fully_defined()


def evaluate(tensor):
    """The value of a tensor that is made of constants alone, in one graph; None if it is not."""
    nodes, pending = {}, [tensor.op]
    while pending:
        op = pending.pop()
        if op.name not in nodes:
            if op.type == "Placeholder":
                return None
            if is_static(op):
                with tf.Graph().as_default():
                    value = tf.constant(tf.get_static_value(op.outputs[0]), name="value")
                nodes[op.name] = value.op.node_def
                nodes[op.name].name = op.name
                continue
            # Without what must run before it: that changes no value, and may need a TPU.
            nodes[op.name] = node = _alone(op)
            del node.input[len(op.inputs) :]
            pending += [t.op for t in op.inputs]
    definition = tf.compat.v1.GraphDef(node=nodes.values())
    definition.library.CopyFrom(tensor.graph.as_graph_def().library)
    return _session(definition).run(tensor.name)


def _alone(op):
    """The definition of an operation, which says of no other where the two are to run."""
    node = op.node_def
    for name in ("_class", "_tpu_replicate"):
        node.attr.pop(name, None)
    return node


def _session(definition):
    graph = tf.Graph()
    with graph.as_default():
        tf.graph_util.import_graph_def(definition, name="")
    return tf.compat.v1.Session(graph=graph)


class Operation:
    """One operation of a graph, in a graph of its own."""

    def __init__(self, op):
        definition = tf.compat.v1.GraphDef()
        library = op.graph.as_graph_def()
        definition.versions.CopyFrom(library.versions)
        definition.library.CopyFrom(library.library)
        node = definition.node.add()
        node.CopyFrom(_alone(op))
        del node.input[:]
        node.name, node.device = "operation", ""
        node.attr.pop("_gradient_op_type", None)
        for i, tensor in enumerate(op.inputs):
            given = definition.node.add()
            given.name, given.op = f"input{i}", "Placeholder"
            given.attr["dtype"].type = tensor.dtype.as_datatype_enum
            given.attr["shape"].shape.CopyFrom(tensor.shape.as_proto())
            node.input.append(given.name)
        self._count = len(op.outputs)
        self._session = _session(definition)

    def __call__(self, inputs):
        feeds = {f"input{i}:0": value for i, value in enumerate(inputs)}
        wanted = [f"operation:{k}" for k in range(self._count)]
        return [np.asarray(v) for v in self._session.run(wanted, feeds)]
