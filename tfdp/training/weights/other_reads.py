"""Weights that a step reads, though Keras does not know them as the model's.

A layer that is called by a global name, in a Lambda, from an object that Keras does not inspect, or
by a loss (a teacher) is none of the model's layers. What its weights learned goes into the model
all the same, so what was charged for them must not be lost.
"""

import contextlib

import tensorflow as tf

from tfdp._compat.tensorflow import dtype_of_variable
from tfdp.accounting.charges import participant
from tfdp.clipping.plan.tracing import variables_of_metrics
from tfdp.data.provenance.variable_values import (
    histories_read,
    layers_of_releases_read,
    variables_with_history,
)
from tfdp.errors import PrivacyError
from tfdp.runtime.external_table import handles_of
from tfdp.training.weights import held_constants

_WAY_OUT = (
    "whose training was charged, but its layer is not among the layers of the model, so its "
    "charges would be lost. {}Make it a part of the model: an attribute that the `__init__` of the "
    "model or of one of its layers sets, or a layer of a functional model. Freeze it if it is not "
    "to be trained."
)
_HIDDEN = (
    "It is called by a global name, in a Lambda, by a loss, or stored in an object that Keras does "
    "not inspect. "
)


class OtherRead:
    """A variable that is known by its handle alone, as `WeightOrigin` looks at variables."""

    def __init__(self, handle, dtype, name):
        self.handle, self.dtype, self.path = handle, dtype, name

    @property
    def value(self):
        return tf.raw_ops.ReadVariableOp(resource=self.handle, dtype=self.dtype)

    @property
    def shape(self):
        return self.value.shape


def note(model, graph, operations, seen=()):
    """Notes the variables that a graph reads and that are none of the model's, and arrays in it.

    The releases of layers that are none of the model's, but are read (by a loss), are charged.

    Args:
        model: the model, whose `weight_origin` takes them.
        graph: the graph.
        operations: those of its operations whose reads of floating-point variables the statement
            lists, if nobody knows where the values come from.
        seen: Keras variables that may be among them, which have names and initializers.

    Returns:
        Whether there are some to be listed that were not noted before.

    Raises:
        PrivacyError: for a variable whose training was charged.
    """
    charged = [variable for variable, _ in variables_with_history()]
    named = {id(h): v for v in (*charged, *seen) for h in handles_of(v)}
    read = {t.op.name for op in operations for t in op.inputs if t.dtype == tf.resource}
    origin = model.weight_origin
    before = len(origin.others) + len(origin.constants)
    origin.constants |= dict.fromkeys(held_constants.sentences_of_code(graph, operations))
    found = list(_reads(model, graph))
    released = layers_of_releases_read({id(handle) for handle, _, _ in found})
    of_releases = {id(h) for layer in released for v in layer.weights for h in handles_of(v)}
    origin.constants |= dict.fromkeys(participant.assumptions_of(released))
    for entry in participant.releases_of(released):
        model.charge_history.charge(entry)
    for handle, dtype, name in found:
        origin.reads[id(handle)] = handle
        if name in read and dtype.is_floating and id(handle) not in of_releases:
            unnamed = OtherRead(handle, dtype, name)
            origin.others.setdefault(id(handle), named.get(id(handle), unnamed))
    refuse_charged(model)
    return len(origin.others) + len(origin.constants) > before


@contextlib.contextmanager
def noted(model, listed=False):
    """Context of a step: notes at its end what all of it reads, regularizers included.

    A step that runs eagerly has no graph; what is checked of it is traced on paper.

    Args:
        model: the model.
        listed: whether the statement lists what is read of unknown origin. In private steps that
            is what forward pass and losses read: the rest is tfdp's own, or an optimizer's.

    Raises:
        PrivacyError: for a variable whose training was charged.
    """
    yield
    if tf.executing_eagerly():
        return
    graph = tf.compat.v1.get_default_graph()
    with tf.init_scope():
        note(model, graph, graph.get_operations() if listed else ())


def _reads(model, graph):
    """(handle, dtype, name in the graph) of variables that are not the model's."""
    optimizer = model.optimizer
    held = [
        *model.variables, *variables_of_metrics(model), *optimizer.variables,
        *getattr(optimizer, "inner_optimizer", optimizer).variables,
    ]  # fmt: skip
    own = {id(handle) for variable in held for handle in handles_of(variable)}
    for _, inner in getattr(graph, "captures", ()):
        handle = _outermost(inner) if inner.dtype == tf.resource else None
        dtype = dtype_of_variable(handle)
        if dtype is not None and id(handle) not in own:
            yield handle, dtype, inner.op.name


def refuse_charged(model):
    """Refuses a model whose steps read weights that were charged elsewhere.

    Raises:
        PrivacyError: if one of the variables noted for it was trained with privacy.
    """
    for variable, history in histories_read(model.weight_origin.reads):
        if model.charge_history.lacks(history):
            raise PrivacyError(
                f"A step of model {model.name!r} reads variable {variable.path!r}, "
                + _WAY_OUT.format(_HIDDEN)
            )


def refuse_charged_data(model, origin):
    """Refuses batches that weights made which were charged elsewhere.

    Args:
        model: the model.
        origin: the `Origin` of the batches.

    Raises:
        PrivacyError: if a function of the dataset read a variable that was trained with privacy.
    """
    for variable, history in origin.read:
        if model.charge_history.lacks(history):
            raise PrivacyError(
                f"A `map` of the batches for model {model.name!r} reads variable "
                f"{variable.path!r}, " + _WAY_OUT.format("")
            )


def _outermost(tensor):
    """The handle outside of all graphs that a captured resource is; None if it is handed in."""
    while tf.is_symbolic_tensor(tensor):
        captures = getattr(tensor.graph, "captures", ())
        tensor = next((outer for outer, inner in captures if inner is tensor), None)
    return tensor
