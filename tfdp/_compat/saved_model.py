"""SavedModels that do not tell how much TensorFlow had done in this process before.

TensorFlow numbers functions, gradients, tables and captured tensors by one counter of the process,
which every tensor that is computed eagerly moves. It writes these numbers into `saved_model.pb`,
and the functions in an order that follows from them. They tell what was computed besides the model:
how many runs a tuning had, how many pairs of items somebody's record touched.

Every SavedModel comes through one function of TensorFlow that builds its graph, before anything is
written. It is wrapped, and gives new numbers, in the order in which the graph uses what they name.
Keras lists variables by their places in memory; here, in the order in which functions read them.

Keras and TensorFlow trace a model up to four times for one file. Here it is traced once.
"""

import contextlib
import copy
import functools
import re
import threading

import tensorflow as tf
from keras.src.backend.tensorflow.layer import TFLayer
from keras.src.export import saved_model_export_archive as archives
from tensorflow.python.eager import context
from tensorflow.python.saved_model import save, save_context

_GRADIENT = re.compile(r"(CustomGradient|PartitionedCall|StatefulPartitionedCall)-\d+")
_NODE = re.compile(r"key_value_init\d+")  # the node that fills a table which was made eagerly
_NUMBER = re.compile(r"[-_]?\d+")
#: Fields without names, which are most of a graph.
_NAMELESS = {"tensor", "shape", "tensor_shape", "handle_data", "experimental_type", "versions"}


def install():
    """Lets this process write SavedModels with new numbers from now on."""
    build = save._build_meta_graph
    if hasattr(build, "renumbers"):
        return

    @functools.wraps(build)
    def _build_meta_graph(obj, signatures, options, *args, **kwargs):
        if options.save_debug_info:
            raise ValueError(
                "Option `save_debug_info` must be False once tfdp is imported: the debug info "
                "contains TensorFlow's counters, which reveal what else the process computed. "
                "Leave the option out. Received: save_debug_info=True"
            )
        built = build(obj, signatures, options, *args, **kwargs)
        renumber(built[0])
        return built

    list_variables = archives._list_variables_used_by_fns

    @functools.wraps(list_variables)
    def _list_variables_used_by_fns(functions):
        # A function that was traced outside of this context is traced again for the file.
        with save_context.save_context(tf.saved_model.SaveOptions()):
            return tuple(_in_order_of_reading(v, functions) for v in list_variables(functions))

    signature = TFLayer._default_save_signature.fget

    def _default_save_signature(self):
        return None if _exporting.endpoints else signature(self)

    _build_meta_graph.renumbers = True
    save._build_meta_graph = _build_meta_graph
    archives._list_variables_used_by_fns = _list_variables_used_by_fns
    TFLayer._default_save_signature = property(_default_save_signature)


@contextlib.contextmanager
def one_trace_per_endpoint():
    """Lets Keras collect the tables of models without tracing the models.

    It reads every attribute of a model. One of them, the signature that `tf.saved_model.save` would
    give the model, is traced whenever it is read, and thrown away by an export.
    """
    _exporting.endpoints = True
    try:
        yield
    finally:
        _exporting.endpoints = False


class _Exporting(threading.local):
    endpoints = False


_exporting = _Exporting()


def _in_order_of_reading(variables, functions):
    captured = []
    for function in functions:
        concrete = getattr(function, "get_concrete_function", lambda one=function: one)()
        captured += map(id, concrete.captured_inputs)
    place = {one: i for i, one in reversed(list(enumerate(captured)))}
    return sorted(variables, key=lambda v: (place.get(id(v.handle), len(captured)), v.name))


def renumber(meta_graph):
    """Gives new numbers to a `MetaGraphDef` in place; it computes what it did before."""
    library = meta_graph.graph_def.library
    names = _Numbered()
    for name in _in_order_of_use(meta_graph, {f.signature.name: f for f in library.function}):
        names.of(name)
    place = {name: i for i, name in enumerate(names)}
    library.function.sort(key=lambda function: place[function.signature.name])
    _number_arguments(meta_graph)
    gradients, nodes, resources, captured = _Numbered(), _Numbered(), _Numbered(), _Numbered()
    # Variables are numbered in their own graph, and converters look for them by these names.
    variables = {node.name for node in meta_graph.graph_def.node if node.op == "VarHandleOp"}

    def renamed(text, attribute):
        if not _NUMBER.search(text):
            return text
        if text in names:
            return names[text]
        if text in variables:
            return text
        if _GRADIENT.fullmatch(text):
            return gradients.of(text)
        if attribute == "shared_name" and text != context.anonymous_name():
            return resources.of(text)
        if attribute == "_user_specified_name" and text.isdigit():
            return captured.of(text)
        return _NODE.sub(lambda found: nodes.of(found[0]), text)

    _rename(meta_graph, renamed)


def _number_arguments(meta_graph):
    """Names arguments by their places: names of captured tensors and of loops hold numbers."""
    renamed = {}
    for function in meta_graph.graph_def.library.function:
        names = renamed[function.signature.name] = {}
        for i, argument in enumerate(function.signature.input_arg):
            if _NUMBER.search(argument.name):
                names[argument.name] = f"unnamed_argument_{i}"
                argument.name = names[argument.name]
        for node in function.node_def if names else ():
            node.input[:] = [names.get(name, name) for name in node.input]
        for key in sorted(function.ret):
            function.ret[key] = names.get(function.ret[key], function.ret[key])
    for one in meta_graph.object_graph_def.nodes:
        if one.HasField("captured_tensor"):  # for a gradient, "name:0" in a function
            tensor, (name, *place) = one.captured_tensor, one.captured_tensor.name.split(":")
            names = renamed.get(tensor.concrete_function, {})
            tensor.name = ":".join([names.get(name, name), *place])


class _Numbered(dict):
    """New names by old ones: with the place at which they came, and no other number."""

    def of(self, name):
        if name not in self:
            self[name] = f"{_NUMBER.sub('', name) or 'unnamed'}_{len(self)}"
        return self[name]


def _in_order_of_use(meta_graph, functions):
    """Names of functions, each before those that it calls, in the order of the calls."""
    objects = meta_graph.object_graph_def.nodes
    roots = [
        *_functions_of(meta_graph.graph_def.node),
        *(name for one in objects for name in one.function.concrete_functions),
        *(one.bare_concrete_function.concrete_function_name for one in objects),
        *(one.gradient_func for one in meta_graph.graph_def.library.registered_gradients),
        *sorted(functions, key=lambda name: _NUMBER.sub("", name)),
    ]
    found, pending = {}, roots[::-1]
    while pending:
        name = pending.pop()
        if name in functions and name not in found:
            found[name] = True
            pending += list(_functions_of(functions[name].node_def))[::-1]
    return found


def _functions_of(nodes):
    for node in nodes:
        yield node.op
        for key in sorted(node.attr):
            value = node.attr[key]
            yield from (one.name for one in (value.func, *value.list.func))


def _rename(message, renamed, attribute=None):
    """Applies a function of a string, and of the attribute that holds it, to every string."""
    for field, value in message.ListFields():
        if field.name in _NAMELESS:
            continue
        if field.message_type is None:
            if isinstance(value, (str, bytes)):
                setattr(message, field.name, _new(value, renamed, attribute))
            elif field.type in (field.TYPE_STRING, field.TYPE_BYTES):
                value[:] = [_new(one, renamed, attribute) for one in value]
        elif field.message_type.GetOptions().map_entry:
            _rename_entries(value, renamed)
        else:
            for one in [value] if hasattr(value, "ListFields") else value:
                _rename(one, renamed, attribute)


def _rename_entries(entries, renamed):
    """As `_rename`, of a map."""
    moved = {}
    for key in sorted(entries):
        if hasattr(entries[key], "ListFields"):
            _rename(entries[key], renamed, key)
        elif isinstance(entries[key], str):
            entries[key] = renamed(entries[key], None)
        new = renamed(key, None) if isinstance(key, str) else key
        if new != key:
            moved[new] = copy.deepcopy(entries[key])
            del entries[key]
    for key, value in moved.items():
        if hasattr(value, "ListFields"):
            entries[key].CopyFrom(value)
        else:
            entries[key] = value


def _new(text, renamed, attribute):
    if isinstance(text, bytes):
        return renamed(text.decode("latin-1"), attribute).encode("latin-1")
    return renamed(text, attribute)
