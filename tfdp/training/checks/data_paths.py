"""What leaves a training step without having passed through forward noise.

The step is traced on paper: forward pass, loss, gradients. Every tensor computed from the raw
inputs is followed through the graph, up to the outputs of `DPForwardNoise` layers, where it
becomes private. Whatever is still raw among the gradients, the losses and the updated states has
gone around the noise: by a residual connection, by `gradient="propagate"`, by a loss that looks at
the inputs, by a moving statistic.
"""

import dataclasses

import tensorflow as tf

from tfdp._compat.keras import all_layers
from tfdp.clipping.plan.refusals import refuse_layers_beyond_reach
from tfdp.clipping.recording import Recorder, call_model, ensure_built, is_seed_state
from tfdp.errors import PrivacyError
from tfdp.layers import DPForwardNoise
from tfdp.layers.dp_forward_noise import NOISED
from tfdp.training.checks.forward_passes import ForwardPass
from tfdp.training.checks.independence import BATCH_SIZES
from tfdp.training.weights import other_reads

_OTHER_SIZES = (3, 5)
_SHAPES = ("Shape", "ShapeN", "Size", "Rank")
_WRITES = ("Assign", "ResourceScatter", "ResourceApply", "LookupTableInsert", "LookupTableImport")


@dataclasses.dataclass(frozen=True)
class DataPaths:
    """How raw data moves through a training step.

    Args:
        noise: the `DPForwardNoise` layers, once for every call of one in a step.
        variables: paths of the variables that are changed by raw data.
        bypasses: descriptions of the ways around the noise to the model's outputs.
        below: paths of the trainable variables that no gradient reaches.
        passes: `NoisedPass`es of the sizes that a batch may have.
    """

    noise: tuple
    variables: tuple
    bypasses: tuple
    below: tuple
    passes: tuple


def forward_noise_layers(model):
    """The `DPForwardNoise` layers of a model, called or not."""
    return [layer for layer in all_layers(model) if isinstance(layer, DPForwardNoise)]


def find_data_paths(model, x, y, sample_weight=None, batch_size=None):
    """Follows the raw inputs through one training step of a compiled model.

    Args:
        model: a compiled model.
        x, y, sample_weight: a batch, tensors or specs. Only shapes and dtypes are used; axes
            other than the first should be static, or their size counts as private.
        batch_size: that of a step; None if it is not known.

    Returns:
        A `DataPaths`.

    Raises:
        PrivacyError: if the first axis of what a `DPForwardNoise` layer clips is not the batch's;
            for weights that were charged elsewhere.
    """
    ensure_built(model, x)
    refuse_layers_beyond_reach(model)  # the build may have made some
    sizes = BATCH_SIZES
    if batch_size is not None:
        batch_size = max(2, batch_size)
        sizes = batch_size, next(size for size in _OTHER_SIZES if size != batch_size)
    traces = [_Trace(model, (x, y, sample_weight), size) for size in sizes]
    _refuse_calls_without_noise(traces[0].calls)
    graph, seen = traces[0].graph, traces[0].recorder.others.values()
    other_reads.note(model, graph, graph.get_operations(), seen)
    for call, other in zip(*(trace.calls for trace in traces), strict=True):
        rows = tuple(c.outputs.shape[0] for c in (call, other))
        if rows != sizes:
            raise PrivacyError(
                f"Layer {call.layer.name!r} (DPForwardNoise) must be called on (batch, ..., k), "
                "one representation for each example: if an example is spread over several rows, "
                f"it is not clipped as a whole. Received: {rows[0]} and {rows[1]} rows for "
                f"batches of {sizes[0]} and {sizes[1]}"
            )
    passes = tuple(trace.forward for trace in traces)
    return traces[0].paths(passes if batch_size is None else passes[:1])


def _refuse_calls_without_noise(calls):
    for call in calls:
        if not hasattr(call.outputs, NOISED):
            raise PrivacyError(
                f"Layer {call.layer.name!r} (DPForwardNoise) adds no noise in a training step, "
                "because it, or a layer around it, is called with `training=False`. Pass it the "
                "`training` argument of the model's `call`; call other layers separately."
            )


class NoisedPass(ForwardPass):
    """A `ForwardPass` with calls of `DPForwardNoise`.

    Attributes:
        calls: their `LayerCall`s.
    """

    def end(self, root):
        """Called after the forward pass, with the root of its calls."""
        self.root = root
        self.calls = [c for c in root.subtree() if isinstance(c.layer, DPForwardNoise)]


class _Trace:
    """One training step on `batch_size` symbolic examples."""

    def __init__(self, model, batch, batch_size):
        self.model = model
        self.recorder = Recorder(model)
        specs = tf.nest.map_structure(
            lambda t: None if t is None else tf.TensorSpec((batch_size, *t.shape[1:]), t.dtype),
            batch,
        )
        traced = tf.function(self._step, autograph=False).get_concrete_function(*specs)
        self.graph = traced.graph
        captured = len(traced.captured_inputs)
        placeholders = traced.inputs[: len(traced.inputs) - captured]
        # Arguments are in order: those of `x` come first.
        self.inputs = placeholders[: len(tf.nest.flatten(specs[0]))]
        self.calls = self.forward.calls

    def _step(self, x, y, sample_weight):
        model = self.model
        variables = model.trainable_variables
        self.forward = NoisedPass(model, tf.nest.flatten(x))
        with self.recorder.recording() as scope:
            for v in variables:
                if v.regularizer is not None:  # Keras looks for its value in the scope alone
                    scope.add_update((v, v.value))
            with tf.GradientTape() as tape:
                outputs = call_model(model, x)
                self.forward.end(self.recorder.root)
                loss = model.compute_loss(x, y, outputs, sample_weight, training=True)
        gradients = tape.gradient(loss, [v.value for v in variables])
        self.outputs = tf.nest.flatten(outputs)
        self.loss = loss
        self.gradients = list(zip(variables, gradients, strict=True))
        metrics = {id(v) for layer in all_layers(model) for v in layer.metrics_variables}
        self.updates = [
            (v, value)
            for v, value in scope.updates.values()
            if not is_seed_state(v) and id(v) not in metrics
        ]

    def paths(self, passes):
        raw, writers = self._raw_tensors()

        def is_raw(value):
            parts = tf.nest.flatten(value, expand_composites=True)
            return any(isinstance(t, tf.Tensor) and id(t) in raw for t in parts)

        changed = [v.path for v, gradient in self.gradients if is_raw(gradient)]
        changed += [v.path for v, value in self.updates if is_raw(value)]
        changed += [f"what operation {op.name!r} writes" for op in writers]
        bypasses = []
        if any(is_raw(t) for t in self.outputs):
            bypasses.append(self._describe(raw))
        elif is_raw(self.loss):
            bypasses.append("the loss looks at the raw inputs")
        return DataPaths(
            noise=tuple(c.layer for c in self.calls),
            variables=tuple(changed),
            bypasses=tuple(bypasses),
            below=tuple(v.path for v, gradient in self.gradients if gradient is None),
            passes=passes,
        )

    def _raw_tensors(self):
        """Tensors computed from the inputs other than through the noise; operations that write."""
        # A layer called inside a loop or a function of its own has outputs in another graph:
        # they stop nothing here, and what the loop returns stays raw.
        private = {id(c.outputs) for c in self.calls if c.graph is self.graph}
        raw, writers, pending = {}, [], list(self.inputs)
        while pending:
            tensor = pending.pop()
            if id(tensor) in raw or id(tensor) in private:
                continue
            raw[id(tensor)] = tensor
            for op in tensor.consumers():
                if op.type in _SHAPES and tensor.shape.is_fully_defined():
                    continue  # a constant
                if op.type.startswith(_WRITES):
                    writers.append(op)
                pending += op.outputs
        return raw, writers

    def _describe(self, raw):
        """The layers on the way from the inputs to the outputs around the noise, in order."""
        reaching, pending = set(), [t for t in self.outputs if id(t) in raw]
        while pending:
            tensor = pending.pop()
            if id(tensor) in reaching:
                continue
            reaching.add(id(tensor))
            pending += [t for t in tensor.op.inputs if id(t) in raw]
        names = []
        for call in self.recorder.root.subtree():
            outputs = [t for t in tf.nest.flatten(call.outputs) if isinstance(t, tf.Tensor)]
            if call.children or not any(id(t) in reaching for t in outputs):
                continue
            if not isinstance(call.layer, DPForwardNoise) and call.layer.name not in names:
                names.append(call.layer.name)
        return "a path around the noise: " + " -> ".join(["inputs", *names, "outputs"])
