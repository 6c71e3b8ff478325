"""That each example's loss is its own, proved from the graph of a step before it runs.

Forward pass and losses are traced as the step traces them, at its batch size, and walked through
(`clipping/independence`). Gradients of losses that hold of one example each are that example's own
(MATH.md section 2). Every trace of a step is looked at, and before a run one more: so nothing that
Python decides in between goes unseen.
"""

import inspect

import keras
import tensorflow as tf

from tfdp._compat.keras import all_layers
from tfdp._compat.tensorflow import tapes_record
from tfdp.clipping import fallback
from tfdp.clipping.counts import advances_of
from tfdp.clipping.dataflow import handles_of
from tfdp.clipping.independence import proof
from tfdp.clipping.independence.walk import Unit
from tfdp.clipping.recording import Recorder, call_model, trained_variables
from tfdp.clipping.side_effects import refuse_results_of_metrics, refuse_side_effects
from tfdp.clipping.tracing import variables_of_metrics
from tfdp.errors import PrivacyError
from tfdp.layers import DPForwardNoise, TransitionPrior
from tfdp.layers.tpu_resident_table import nothing_looked_up
from tfdp.training import penalties

#: What the statement says of the examples of a batch: one of these.
PROVED = (
    "That the examples of a batch do not change each other's gradients was proved from the graph "
    "of the step."
)
SEARCHED = (
    "the examples of a batch do not change each other's gradients in operation {operation}: it has "
    "no rule, and this was searched by values, not proved"
)
NOT_CHECKED = (
    "the examples of a batch do not depend on each other, in the model and in its loss: this was "
    "not checked"
)
# Of batches whose size is not known, and of axes whose size is not known: what is a whole number of
# parts in one of them is none in another.
_BATCH_SIZES = (32, 96)
_SIZES = (32, 17, 256)
#: Layers that keep examples apart, as their tests show: noise with a counter for each place, and
#: look-ups of rows of any length.
_APART = (DPForwardNoise, TransitionPrior)
_KERAS = ("keras", "keras_hub", "keras_rs", "tfdp")


def examine(model, x, y, sample_weight):
    """Traces a step's forward pass and losses, and refuses what they must not do.

    Args:
        model: a built `DPModel` that is compiled.
        x, y, sample_weight: tensors or specs of a batch.

    Returns:
        Types of operations that were searched by values, or None if independence is not looked at.

    Raises:
        PrivacyError: for losses of another shape than (B,), that read weights, write to variables
            or follow metrics; for examples that change each other's losses.
    """
    searched = ()
    with tf.init_scope():  # what is run on random values runs now, and in no graph
        with nothing_looked_up():
            steps = _traced(model, (x, y, sample_weight))
        for step in steps:
            found = _examine(model, step, model.clipping_plan(x))
            searched = None if found is None else tuple(dict.fromkeys((*searched, *found)))
    return searched


def _examine(model, step, plan):
    step.refuse_side_effects()
    step.refuse_reads(plan)
    if not (model.validate_independence and step.can_be_walked):
        step.refuse_other_shapes()
        return None
    searched = proof.examine(
        step.graph, step.inputs, step.losses, step.batch_size, step.where, step.units()
    )
    step.refuse_other_shapes()
    step.refuse_other_computations(plan)
    return searched


def _traced(model, data):
    """A step on paper for each of some sizes, where the data leave sizes open."""
    batch_size = tf.nest.flatten(data[0])[0].shape[0]
    error, steps = None, []
    for batch in _BATCH_SIZES if batch_size is None else (max(2, batch_size),):
        for size in _SIZES if _has_unknown_sizes(data) else _SIZES[:1]:
            try:
                steps.append(_Step(model, data, batch, size))
            except ValueError as failed:  # what is too small for the model's windows, perhaps
                error = error or failed
    if not steps:
        raise error
    return steps


class _Step:
    """Forward pass and losses on paper."""

    def __init__(self, model, data, batch_size, size):
        self.model = model
        self.batch_size = batch_size
        self.name = f"The loss of model {model.name!r}"
        recorder = Recorder(model)
        specs = tf.nest.map_structure(
            lambda t: None if t is None else _spec(t, self.batch_size, size), data
        )

        def step(*data):
            self.data = x, y, sample_weight = data
            with recorder.recording() as scope:
                outputs = call_model(model, x)
            advances_of(model, scope)  # refuses what else is assigned
            self._start = tf.compat.v1.get_default_graph().version
            with penalties.apart():
                return model.compute_loss(x, y, outputs, sample_weight, training=True)

        with tapes_record():  # those in the model: this is traced in `tf.init_scope`
            traced = tf.function(step, autograph=False).get_concrete_function(*specs)
        self.graph = traced.graph
        given = len(traced.inputs) - len(traced.captured_inputs)
        self.inputs = traced.inputs[:given]
        self.losses = traced.structured_outputs
        self.root = recorder.root
        self.can_be_walked = not any(
            isinstance(t, tf.RaggedTensorSpec) for t in tf.nest.flatten(specs) if t is not None
        )

    def where(self, op):
        """The layer that an operation belongs to, or the loss, for messages."""
        place = {o.name: i for i, o in enumerate(self.graph.get_operations())}[op.name]
        if place >= self._start:
            return self.name
        inner = None
        for call in self.root.subtree():  # calls inside come later
            if call.graph is self.graph and place in call.operations:
                inner = call.layer
        if inner in (None, self.model):
            return f"Model {self.model.name!r}"
        return f"Layer {inner.name!r} ({type(inner).__name__})"

    def units(self):
        """Layers and losses that are Keras' own, and may be searched by values as a whole."""
        calls = [c for c in self.root.subtree() if c.graph is self.graph]
        calls = [c for c in calls if type(c.layer) in _APART or _is_of_keras(c.layer)]
        found = [_unit_of_layer(call) for call in reversed(calls) if not _holds_composites(call)]
        losses = tf.nest.flatten(getattr(self.model, "_compile_arguments", {}).get("loss"))
        if any(isinstance(loss, keras.losses.CTC) or loss == "ctc" for loss in losses):
            if all(isinstance(loss, str) or _root_of(loss) == "keras" for loss in losses):
                found.append(self._unit_of_losses())
        return found

    def _unit_of_losses(self):
        """Of CTC, whose loop is as long as the longest labels, and leaves other losses alone."""
        given = (self.data[1], self.root.outputs, self.data[2])

        def run(values):
            y, outputs, sample_weight = tf.nest.pack_sequence_as(given, _with_none(given, values))
            with penalties.apart():
                return [self.model.compute_loss(None, y, outputs, sample_weight, training=True)]

        inputs = [t for t in tf.nest.flatten(given) if t is not None]
        operations = range(self._start, len(self.graph.get_operations()))
        return Unit("the losses (CTC)", operations, inputs, [self.losses], run, True)

    def refuse_side_effects(self):
        shown = variables_of_metrics(self.model)
        refuse_side_effects(self.graph, self.name, shown)
        refuse_results_of_metrics(self.graph, [self.losses], shown, self.name)

    def refuse_reads(self, plan):
        """Refuses a loss that reads weights: gradients are taken at the calls of layers alone."""
        inside = {id(outer): inner for outer, inner in self.graph.captures}
        operations = {op.name: i for i, op in enumerate(self.graph.get_operations())}
        unused = {id(v) for v in plan.unused}  # not trained at all, of which the plan warns
        for variable in trained_variables(self.model):
            handles = [inside[id(h)] for h in handles_of(variable) if id(h) in inside]
            readers = [op for handle in handles for op in handle.consumers()]
            if id(variable) not in unused and any(
                operations[op.name] >= self._start for op in readers
            ):
                raise PrivacyError(
                    f"{self.name} reads the trained variable {variable.path!r}, whose gradient for "
                    "each example is not seen there. Compute what needs weights in the `call` of "
                    "the model, and return it as an output that the loss reads."
                )

    def refuse_other_shapes(self):
        shape = tuple(self.losses.shape)
        if shape != (self.batch_size,):
            raise PrivacyError(
                "The loss must give one number for each example, of shape (batch,): what it gives "
                "cannot be clipped per example. Use a `keras.losses.Loss` that reduces over the "
                f"axes of one example only. Received: shape {shape} for a batch of "
                f"{self.batch_size}"
            )

    def refuse_other_computations(self, plan):
        calls = {call.key: call for call in self.root.subtree()}
        for planned in plan.calls.values():
            call = calls.get(planned.key)
            if planned.rule is None and call is not None and call.graph is self.graph:
                fallback.refuse_other_computations(planned, call)


def _unit_of_layer(call):
    structure = (call.args, call.kwargs)
    inputs, outputs = _tensors(structure), _tensors(call.outputs)
    if type(call.layer) in _APART:
        return Unit(call.layer.name, call.operations, inputs, outputs, None, True)
    flat = tf.nest.flatten(structure)
    symbolic = [isinstance(t, tf.Tensor) for t in flat]

    def run(values):
        values = iter(values)
        filled = [next(values) if s else t for t, s in zip(flat, symbolic, strict=True)]
        args, kwargs = tf.nest.pack_sequence_as(structure, filled)
        return _tensors(call.layer(*args, **kwargs))

    name = f"layer {call.layer.name} ({type(call.layer).__name__})"
    return Unit(name, call.operations, inputs, outputs, run)


def _holds_composites(call):
    """Whether ragged or sparse tensors are among arguments or outputs."""
    values = tf.nest.flatten((call.args, call.kwargs, call.outputs))
    return any(tf.is_tensor(t) and not isinstance(t, tf.Tensor) for t in values)


def _tensors(structure):
    return [t for t in tf.nest.flatten(structure) if isinstance(t, tf.Tensor)]


def _with_none(structure, values):
    values = iter(values)
    return [None if t is None else next(values) for t in tf.nest.flatten(structure)]


def _is_of_keras(layer):
    """Whether nothing of a layer without weights is the user's own code."""
    layers = all_layers(layer)
    functions = [f for one in layers for f in vars(one).values() if inspect.isfunction(f)]
    return (
        not layer.trainable_variables
        and not any(isinstance(one, (keras.Model, keras.layers.Lambda)) for one in layers)
        and all(_root_of(one) in _KERAS for one in (*layers, *functions))
    )


def _root_of(one):
    made_by = one if hasattr(one, "__qualname__") else type(one)
    return made_by.__module__.split(".")[0]


def _has_unknown_sizes(data):
    return any(None in t.shape[1:] for t in tf.nest.flatten(data) if t is not None)


def _spec(tensor, batch_size, size):
    """What a step is traced with; sizes that the data decide have a value."""
    if isinstance(tensor, (tf.RaggedTensor, tf.RaggedTensorSpec)):
        shape = (batch_size, *tensor.shape[1:])
        return tf.RaggedTensorSpec(shape, tensor.dtype, tensor.ragged_rank)
    rest = [size if known is None else known for known in tensor.shape[1:]]
    return tf.TensorSpec((batch_size, *rest), tensor.dtype)
