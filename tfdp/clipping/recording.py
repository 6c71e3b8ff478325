"""Seeing every layer call and every variable read of one forward pass.

The forward pass runs inside a `keras.StatelessScope`, so that each read of a variable passes
through `get_current_value` (this is how reads are attributed to the layer that makes them) and
each assignment is held back until it is known to be harmless. Layer calls are seen by wrapping
`layer.call` for the duration of the pass; this is the one place that does so.
"""

import contextlib
import dataclasses
import threading
from typing import Any

import keras
import tensorflow as tf

from tfdp._compat.keras import all_layers, takes_training
from tfdp.runtime.external_table import external_tables

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
    reads: dict = dataclasses.field(default_factory=dict)  # id -> trainable variable
    seeds: dict = dataclasses.field(default_factory=dict)  # id -> SeedGenerator state
    children: list = dataclasses.field(default_factory=list)
    calls_of_layer: dict = dataclasses.field(default_factory=dict)

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
        self.recorder.on_read(variable)
        return super().get_current_value(variable)

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
        self.layer_index = {id(layer): i for i, layer in enumerate(all_layers(model))}
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
        call = LayerCall(layer, key, parent, args, kwargs, graph=current_graph())
        if parent is None:
            self.root = call
        else:
            parent.children.append(call)
        self._stack.append(call)
        try:
            call.outputs = self.run(call, run)
        finally:
            self._stack.pop()
        return call.outputs

    def run(self, call, run):
        return run(*call.args, **call.kwargs)

    def on_read(self, variable):
        if getattr(_ACTIVE, "constant", False):
            return
        if self._stack and id(variable) in self.trainable:
            self._stack[-1].reads[id(variable)] = variable

    def on_update(self, variable):
        if self._stack and is_seed_state(variable):
            self._stack[-1].seeds[id(variable)] = variable

    @contextlib.contextmanager
    def recording(self):
        """Wraps the calls of every layer of the model while the context is open."""
        wrapped = []
        for layer in all_layers(self.model):
            wrapped.append((layer, layer.__dict__.get("call")))
            # Written to the instance's dictionary: Keras' attribute tracking must not see it.
            layer.__dict__["call"] = _wrap(layer, layer.call)
        previous = getattr(_ACTIVE, "recorder", None)
        _ACTIVE.recorder = self
        try:
            with RecordingScope(self) as scope:
                yield scope
        finally:
            _ACTIVE.recorder = previous
            for layer, own in wrapped:
                if own is None:
                    del layer.__dict__["call"]
                else:
                    layer.__dict__["call"] = own


@contextlib.contextmanager
def paused():
    """Calls inside this context reach no recorder."""
    previous = getattr(_ACTIVE, "recorder", None)
    _ACTIVE.recorder = None
    try:
        yield
    finally:
        _ACTIVE.recorder = previous


def constant(variable):
    """A variable's value as a float32 constant: neither gradient nor recorder notices the read.

    For layers that look at a weight without training it by that look (Re-Attention's norms).
    """
    previous = getattr(_ACTIVE, "constant", False)
    _ACTIVE.constant = True
    try:
        return tf.stop_gradient(tf.cast(tf.convert_to_tensor(variable.value), tf.float32))
    finally:
        _ACTIVE.constant = previous


def note_read(variable):
    """Reports a read of what is no Keras variable, but trained as one."""
    recorder = getattr(_ACTIVE, "recorder", None)
    if recorder is not None:
        recorder.on_read(variable)


def trained_variables(model):
    """The trainable variables, then the external tables, by name."""
    tables = external_tables(layer for layer in all_layers(model) if layer.trainable)
    return model.trainable_variables + sorted(tables, key=lambda table: table.name)


def _wrap(layer, original):
    def call(*args, **kwargs):
        recorder = getattr(_ACTIVE, "recorder", None)
        if recorder is None:
            return original(*args, **kwargs)
        return recorder.on_call(layer, original, args, kwargs)

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
    """Builds a model that Keras would build at its first call, on one example of zeros."""
    if not model.built:
        with tf.init_scope():
            model(tf.nest.map_structure(lambda t: tf.zeros((1, *t.shape[1:]), t.dtype), x))


def input_structure(model):
    """The symbolic inputs of a model with defined inputs, in the structure it is called with.

    Raises:
        ValueError: for a model whose inputs are only known from data.
    """
    inputs = getattr(model, "inputs", None)
    if not inputs:
        raise ValueError(
            f"Model {model.name!r} has no defined inputs: pass a batch of them as argument `x`."
        )
    if isinstance(model, keras.Sequential) or isinstance(
        getattr(model, "model", None), keras.Sequential
    ):
        return inputs[0]
    return model.input
