"""Seeing every layer call and every variable read of one forward pass.

The forward pass runs inside a `keras.StatelessScope`, so that each read of a variable passes
through `get_current_value` (this is how reads are attributed to the layer that makes them) and
each assignment is held back until it is known to be harmless. Layer calls are seen by wrapping
`layer.call` for the duration of the pass; this is the one place that does so.
"""

import contextlib
import dataclasses
import inspect
import threading
from typing import Any

import keras
import tensorflow as tf

from tfdp._compat.keras import all_layers, takes_training, training_of_call
from tfdp.data.provenance.variable_values import is_released
from tfdp.errors import PrivacyError
from tfdp.runtime.external_table import external_tables
from tfdp.runtime.strategies import scope_of
from tfdp.runtime.threads import holding

_ACTIVE = threading.local()


@dataclasses.dataclass(eq=False)
class LayerCall:
    """One call of one layer, in a tree that mirrors the nesting of calls."""

    layer: keras.Layer
    key: tuple
    parent: "LayerCall | None"
    args: tuple = ()
    kwargs: dict = dataclasses.field(default_factory=dict)
    outputs: Any = None
    graph: Any = None
    training: Any = None  # what layers inherit that have no argument `training` of their own
    operations: range = range(0)  # places in `graph` of the operations that the call made
    rule: Any = None  # that covers the call, if it knows the variables
    probes: list = dataclasses.field(default_factory=list)  # where its rule needs gradients
    reads: dict = dataclasses.field(default_factory=dict)  # id -> trainable variable
    seeds: dict = dataclasses.field(default_factory=dict)  # id -> SeedGenerator state
    seed_values: list = dataclasses.field(default_factory=list)  # that others have left behind
    children: list = dataclasses.field(default_factory=list)
    calls_of_layer: dict = dataclasses.field(default_factory=dict)

    def made(self):
        """The operations that the call made, in its graph."""
        return self.graph.get_operations()[self.operations.start : self.operations.stop]

    def subtree(self):
        yield self
        for child in self.children:
            yield from child.subtree()

    def subtree_reads(self):
        reads = {}
        for call in self.subtree():
            reads.update(call.reads)
        return reads

    def subtree_seeds(self):
        seeds = {}
        for call in self.subtree():
            seeds.update(call.seeds)
        return seeds


class RecordingScope(keras.StatelessScope):
    """Reports reads and writes of Keras variables to a recorder."""

    def __init__(self, recorder):
        super().__init__(collect_losses=True)
        self.recorder = recorder
        self.updates = {}

    def get_current_value(self, variable):
        value = super().get_current_value(variable)
        self.recorder.on_read(variable, value)
        return value

    def add_update(self, update):
        variable, value = update
        self.updates[id(variable)] = (variable, value)
        self.recorder.on_update(variable)
        super().add_update(update)


class Recorder:
    """Builds the call tree of a forward pass. Subclasses decide what a call does.

    Args:
        model: the model, the reads of whose trained variables are recorded.
    """

    def __init__(self, model):
        self.model = model
        self.trainable = {id(v): v for v in trained_variables(model)}
        self._variables = {id(v) for v in model.variables}
        self.layer_index = {id(layer): i for i, layer in enumerate(all_layers(model))}
        self.others = {}  # read, and none of the model's
        self.root = None
        self._stack = []

    def on_call(self, layer, run, args, kwargs):
        parent = self._stack[-1] if self._stack else None
        if parent is None:
            key = ()
        else:
            nth = parent.calls_of_layer.get(id(layer), 0)
            parent.calls_of_layer[id(layer)] = nth + 1
            key = parent.key + ((self.layer_index[id(layer)], nth),)
        graph = current_graph()
        call = LayerCall(layer, key, parent, args, kwargs, graph=graph)
        call.training = training_of_call(layer)
        if parent is None:
            self.root = call
        else:
            parent.children.append(call)
        self._stack.append(call)
        if graph is not None:
            call.operations = range(graph.version, graph.version)
        try:
            call.outputs = _rows_of_texts(call, self.run(call, run))
        finally:
            self._stack.pop()
        if graph is not None:
            call.operations = range(call.operations.start, graph.version)
        return call.outputs

    def run(self, call, run):
        return run(*call.args, **call.kwargs)

    def on_read(self, variable, value=None):
        if getattr(_ACTIVE, "constant", False) or not self._stack:
            return
        if is_released(variable) and id(variable) not in self._variables:
            raise PrivacyError(
                f"Variable {variable.path} holds a private release that would not be charged, "
                f"because its layer is not among the layers of model {self.model.name!r}. It is "
                "called in a Lambda, or stored in an object that Keras does not inspect. Make it "
                "an attribute of the model or of one of its layers, or a layer of a functional "
                "model."
            )
        if id(variable) not in self._variables:
            self.others[id(variable)] = variable
        if id(variable) in self.trainable:
            self._stack[-1].reads[id(variable)] = variable
        elif value is not None and is_seed_state(variable):
            self._stack[-1].seed_values.append(value)

    def on_update(self, variable):
        if self._stack and is_seed_state(variable):
            self._stack[-1].seeds[id(variable)] = variable

    @contextlib.contextmanager
    def recording(self):
        """Wraps the calls of every layer of the model while the context is open."""
        with contextlib.ExitStack() as stack:
            for layer in all_layers(self.model):
                call = _wrap(layer, _in_python(layer.call))
                stack.enter_context(_replaced_call(layer, call))
            stack.enter_context(holding(_ACTIVE, "recorder", self))
            yield stack.enter_context(RecordingScope(self))


@contextlib.contextmanager
def _replaced_call(layer, call):
    own = layer.__dict__.get("call")
    # Written to the instance's dictionary: Keras' attribute tracking must not see it.
    layer.__dict__["call"] = call
    try:
        yield
    finally:
        if own is None:
            del layer.__dict__["call"]
        else:
            layer.__dict__["call"] = own


def paused():
    """Calls inside this context reach no recorder."""
    return holding(_ACTIVE, "recorder", None)


@contextlib.contextmanager
def called_in_python(layer):
    """Inside this context no call of this layer, or of one below it, is traced apart.

    A `tf.function` that was traced before would not see other values of the variables.
    """
    traced = [one for one in all_layers(layer) if _in_python(one.call) is not one.call]
    with contextlib.ExitStack() as stack:
        for one in traced:
            stack.enter_context(_replaced_call(one, _in_python(one.call)))
        yield


def _in_python(call):
    traced = isinstance(call, tf.types.experimental.PolymorphicFunction)
    return call.python_function if traced else call


def constant(variable):
    """A variable's value as a float32 constant: neither gradient nor recorder notices the read.

    For layers that look at a weight without training it by that look (Re-Attention's norms).
    """
    with _constants():
        return tf.stop_gradient(tf.cast(tf.convert_to_tensor(variable.value), tf.float32))


def _constants():
    """Inside this context no read of a variable is noticed."""
    return holding(_ACTIVE, "constant", True)


def note_read(variable):
    """Reports a read of what is no Keras variable, but trained as one."""
    recorder = getattr(_ACTIVE, "recorder", None)
    if recorder is not None:
        recorder.on_read(variable)


def read_as_rows(table, read):
    """What `read()` computes from weights, of which a step takes the gradient at the result alone.

    Outside of a recorded pass it is what it always is.

    Args:
        table: the `ExternalTable` whose rows the result are.
        read: function without arguments, to a tensor.
    """
    if getattr(_ACTIVE, "recorder", None) is None:
        return read()
    note_read(table)
    with paused(), _constants():
        return tf.stop_gradient(read())


def trained_variables(model):
    """The trainable variables, then the external tables, by name."""
    tables = external_tables(layer for layer in all_layers(model) if layer.trainable)
    return model.trainable_variables + sorted(tables, key=lambda table: table.name)


def _rows_of_texts(call, outputs):
    """Gives the outputs of what takes texts apart the number of rows that their shape has lost.

    One row for each text, which is checked as the step runs: TextVectorization, tokenizers.
    """
    texts = [t for t in tf.nest.flatten((call.args, call.kwargs)) if isinstance(t, tf.Tensor)]
    rows = {t.shape[0] for t in texts if t.dtype == tf.string and t.shape.rank}
    if len(rows) != 1 or None in rows or any(t.dtype != tf.string for t in texts):
        return outputs
    if call.layer.trainable_variables:
        return outputs

    def restore(tensor):
        if not isinstance(tensor, tf.Tensor) or not tensor.shape.rank or tensor.shape[0]:
            return tensor
        return tf.ensure_shape(tensor, [*rows, *tensor.shape[1:]])

    return tf.nest.map_structure(restore, outputs)


def is_patched(layer):
    """Whether somebody put another `call` into this object, which its class says nothing about.

    For use while calls are recorded.
    """
    return getattr(vars(layer).get("call"), "is_patched", False)


def _wrap(layer, original):
    first = next(iter(inspect.signature(original).parameters), None)

    def call(*args, **kwargs):
        recorder = getattr(_ACTIVE, "recorder", None)
        if recorder is None:
            return original(*args, **kwargs)
        if not args and first in kwargs:  # rules look for their input among `args`
            args = (kwargs.pop(first),)
        return recorder.on_call(layer, original, args, kwargs)

    call.is_patched = "call" in vars(layer)
    return call


def is_seed_state(variable):
    """Whether a variable is the state of a `keras.random.SeedGenerator`."""
    return variable.name == "seed_generator_state"


def current_graph():
    """The graph being traced, or None in eager execution."""
    return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


def call_model(model, x):
    """The training-mode forward pass, as Keras' own train step makes it."""
    return model(x, training=True) if takes_training(model) else model(x)


def ensure_built(model, x):
    """Builds a model that Keras would build at its first call, on one example of zeros.

    Its variables are made where `fit` would make them: under the strategy of the model.
    """
    known = all(d is not None for t in tf.nest.flatten(x) for d in t.shape[1:])
    # `Model.build` of a subclass that has none of its own makes the variables of no layer.
    if not model.built or (known and not all(layer.built for layer in all_layers(model))):
        with tf.init_scope(), scope_of(model):
            model(tf.nest.map_structure(lambda t: tf.zeros((1, *t.shape[1:]), t.dtype), x))


def input_structure(model):
    """The symbolic inputs of a model with defined inputs, in the structure it is called with.

    Raises:
        ValueError: for a model whose inputs are only known from data.
    """
    inputs = getattr(model, "inputs", None)
    if not inputs:
        raise ValueError(
            f"Model {model.name!r} has no defined inputs. Pass a batch of inputs as argument `x`."
        )
    if isinstance(model, keras.Sequential) or isinstance(
        getattr(model, "model", None), keras.Sequential
    ):
        return inputs[0]
    return model.input
