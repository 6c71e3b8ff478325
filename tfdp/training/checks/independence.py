"""That each example's loss is its own, proved from the graph of a step before it runs.

Every trace of a step is walked through (`clipping/independence`) as soon as its forward pass and
its losses are there: it is the graph that runs. Gradients of losses that hold of one example each
are that example's own (MATH.md section 2). Where a step has no such graph (it runs eagerly, or its
data leave sizes open), forward pass and losses are traced on paper, at sizes that are known.
"""

import dataclasses

import tensorflow as tf

from tfdp._compat.tensorflow import tapes_record
from tfdp.accounting.charges.notes import Notes
from tfdp.clipping import penalties
from tfdp.clipping.engine import Execution
from tfdp.clipping.plan.counts import advances_of
from tfdp.clipping.plan.side_effects import (
    known_inside,
    refuse_results_of_metrics,
    refuse_side_effects,
)
from tfdp.clipping.plan.tracing import variables_of_metrics
from tfdp.clipping.recording import call_model, trained_variables
from tfdp.errors import PrivacyError
from tfdp.experimental.tpu.resident_models import tables_of
from tfdp.experimental.tpu.resident_table import nothing_looked_up
from tfdp.runtime.external_table import handles_of
from tfdp.training.checks.forward_passes import ForwardPass
from tfdp.training.checks.searched_layers import units_of_losses
from tfdp.training.weights import other_reads

#: What the statement says of the examples of a batch: one of these.
PROVED = (
    "It was proved from the graph of the step that the examples of a batch do not change each "
    "other's gradients."
)
SEARCHED = (
    "the examples of a batch do not change each other's gradients in operation {operation}: it "
    "has no rule, so this was tested on values, not proved"
)
NOT_CHECKED = (
    "the examples of a batch do not depend on each other, in the model and in its loss: this was "
    "not checked"
)


@dataclasses.dataclass(frozen=True)
class Sentences:
    """What the statement says of what was proved, searched by values, or not looked at."""

    proved: str
    searched: str
    not_checked: str


GRADIENTS = Sentences(PROVED, SEARCHED, NOT_CHECKED)
#: Of what forward noise clips.
REPRESENTATIONS = Sentences(
    "It was proved from the graph of the model that the examples of a batch do not change each "
    "other's representations.",
    "the examples of a batch do not change each other's representations in operation {operation}: "
    "it has no rule, so this was tested on values, not proved",
    "the examples of a batch do not change each other's representations: this was not proved",
)
# Of batches whose size is not known, and of axes whose size is not known: what is a whole number of
# parts in one of them is none in another.
BATCH_SIZES = (32, 96)
_SIZES = (32, 17, 256)


def notes_of(found, sentences=GRADIENTS):
    """What the statement says of the steps of a run.

    Args:
        found: for each step that was examined the names of what was searched by values, or None
            if it was not looked at.
        sentences: `Sentences` of what was examined.
    """
    found = list(found)
    names = dict.fromkeys(name for searched in found for name in searched or ())
    assumptions = [sentences.searched.format(operation=name) for name in names]
    if None in found:
        assumptions.append(sentences.not_checked)
    proved = (sentences.proved,) if found and not assumptions else ()
    return Notes(assumptions=tuple(assumptions), remarks=proved)


def examine_on_paper(model, x, y, sample_weight):
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
    data = x, y, sample_weight
    kind = tuple((t.dtype, tuple(t.shape)) for t in tf.nest.flatten(data) if t is not None)
    if tf.executing_eagerly() and kind in model.examined_eagerly:
        return model.examined[kind]
    with tf.init_scope():  # what is run on random values runs now, and in no graph
        with nothing_looked_up():
            steps = _traced(model, data)
        found = [step.found() for step in steps]
    names = None if None in found else tuple(dict.fromkeys(n for one in found for n in one))
    _note(model, kind, names)
    model.examined_eagerly.add(kind)  # the next step of this run would be the same on paper
    return names


def _note(model, kind, found):
    """Notes what was found for steps of a kind, in the run that goes on, too."""
    before, known = notes_of(model.examined.values()), model.examined.get(kind, ())
    # Steps that an earlier trace made have run: what was not proved of them stays.
    both = None if None in (known, found) else tuple(dict.fromkeys((*known, *found)))
    model.examined[kind] = both
    after = notes_of(model.examined.values())
    if after != before:
        model.optimizer.charging.note(after, in_place_of=before)


def _traced(model, data):
    """A step on paper for each of some sizes, where the data leave sizes open."""
    batch_size = tf.nest.flatten(data[0])[0].shape[0]
    sizes = BATCH_SIZES if batch_size is None else (max(2, batch_size),)
    error, steps = None, []
    for batch in sizes:
        for size in _SIZES if _has_unknown_sizes(data) else _SIZES[:1]:
            try:
                steps.append(_on_paper(model, data, batch, size))
            except PrivacyError:
                raise
            except ValueError as failed:  # what is too small for the model's windows, perhaps
                error = error or failed
    if not steps:
        raise error
    return steps


def _on_paper(model, data, batch_size, size):
    steps = []
    specs = tf.nest.map_structure(lambda t: None if t is None else _spec(t, batch_size, size), data)

    def forward(*data):
        step = Step(model, *data)
        plan = model.clipping_plan(data[0])
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            execution = Execution(model, plan, tape, batch_size)
            with execution.recording() as scope:
                outputs = call_model(model, data[0])
        advances_of(model, scope)  # refuses what else is assigned
        losses = step.losses_of(outputs)
        step.end(execution, losses)
        steps[:] = [step]  # where variables are made, it is traced twice
        return losses

    with tapes_record():  # those in the model: this is traced in `tf.init_scope`
        tf.function(forward, autograph=False).get_concrete_function(*specs)
    return steps[0]


class Step(ForwardPass):
    """Forward pass and losses of a step, in the graph that runs them or on paper.

    Args:
        model: the `DPModel`.
        x, y, sample_weight: tensors of the examples.

    Attributes:
        is_known: whether they are in a graph, and all its sizes are known.
        graph, root, losses: the graph, the root of the calls of the forward pass, (B,) the losses.
        probes: tensors at which gradients of single examples are taken.
        places: range of the places of the operations of the losses in the graph.
    """

    def __init__(self, model, x, y, sample_weight):
        self.data = (x, y, sample_weight)
        super().__init__(model, [t for t in tf.nest.flatten(self.data) if t is not None])
        self.name = f"The loss of model {model.name!r}"
        self._can_be_walked = all(isinstance(t, tf.Tensor) for t in self.inputs)
        self.batch_size = tf.nest.flatten(x)[0].shape[0]
        self.is_known = (
            self._can_be_walked
            and not tf.executing_eagerly()
            and all(t.shape.is_fully_defined() for t in self.inputs)
            and self.batch_size > 1
            and not tables_of(model)
        )

    def losses_of(self, outputs):
        """(B,) the losses, without weight penalties."""
        x, y, sample_weight = self.data
        if not tf.executing_eagerly():
            self.places = range(self.graph.version, 0)
        with penalties.apart():
            return self.model.compute_loss(x, y, outputs, sample_weight, training=True)

    def end(self, execution, losses):
        """Called after the losses, with the `Execution` of the forward pass."""
        self.root, self.probes, self.losses = execution.root, execution.probes(), losses
        self._others = execution.others.values()
        self.places = range(self.places.start, self.graph.version)

    def examine(self, execution, losses):
        """Refuses what a step must not do, and notes what was found; see `examine_on_paper`."""
        self.end(execution, losses)
        kind = tuple((t.dtype, tuple(t.shape)) for t in self.inputs)
        with tf.init_scope():
            _note(self.model, kind, self.found())

    def found(self):
        """Names of what was searched by values, None if this step is not looked at."""
        self._refuse_side_effects()
        self._refuse_reads()
        self._note_other_reads()
        self._refuse_other_shapes()
        if not (self.model.validate_independence and self._can_be_walked):
            return None
        return self.prove([self.losses], units_of_losses(self), self.probes)

    def _note_other_reads(self):
        """Notes weights of others that are read, also for the statement of the run that goes on."""
        origin, charging = self.model.weight_origin, self.model.optimizer.charging
        before = Notes(assumptions=origin.assumption())
        forward, losses = self._operations()
        if other_reads.note(self.model, self.graph, forward + losses, self._others):
            charging.note(Notes(assumptions=origin.assumption()), in_place_of=before)

    def where(self, op):
        place = {o.name: i for i, o in enumerate(self.graph.get_operations())}[op.name]
        return self.name if place in self.places else super().where(op)

    def _operations(self):
        """Those of the forward pass and those of the losses; between them generators advance."""
        operations = self.graph.get_operations()
        return (
            operations[self.begin : self.root.operations.stop],
            operations[self.places.start : self.places.stop],
        )

    def _refuse_side_effects(self):
        shown = variables_of_metrics(self.model)
        forward, losses = self._operations()
        refuse_side_effects(self.graph, self.name, shown, forward + losses)
        refuse_results_of_metrics(self.graph, [self.losses], shown, self.name)

    def _refuse_reads(self):
        """Refuses a loss that reads weights: gradients are taken at the calls of layers alone."""
        plan = self.model.clipping_plan(self.data[0])
        behind = {id(v) for v in plan.behind}
        # Not trained at all, of which the plan warns.
        unused = {id(v) for v in plan.unused} - behind
        read = {t.op.name for op in self._operations()[1] for t in op.inputs}
        for variable in trained_variables(self.model):
            handles = known_inside(self.graph, {id(h) for h in handles_of(variable)})
            if id(variable) not in unused and handles & read:
                raise PrivacyError(
                    f"{self.name} reads the trained variable {variable.path!r}. tfdp cannot see "
                    "its gradient for each example there. Compute values that need weights in "
                    "the `call` of the model, and return them as an output that the loss reads."
                )

    def _refuse_other_shapes(self):
        shape = tuple(self.losses.shape)
        if shape != (self.batch_size,):
            raise PrivacyError(
                "The loss must return one number for each example, of shape (batch,); otherwise "
                "it cannot be clipped per example. Reduce the axes of one example only; in a "
                "`compute_loss` of your own, make Keras' losses with `reduction=None`. Received: "
                f"shape {shape} for a batch of {self.batch_size}"
            )


def _has_unknown_sizes(data):
    return any(None in t.shape[1:] for t in tf.nest.flatten(data) if t is not None)


def _spec(tensor, batch_size, size):
    """What a step is traced with; sizes that the data decide have a value."""
    if isinstance(tensor, (tf.RaggedTensor, tf.RaggedTensorSpec)):
        shape = (batch_size, *tensor.shape[1:])
        return tf.RaggedTensorSpec(shape, tensor.dtype, tensor.ragged_rank)
    rest = [size if known is None else known for known in tensor.shape[1:]]
    return tf.TensorSpec((batch_size, *rest), tensor.dtype)
