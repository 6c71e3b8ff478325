"""SavedModels get numbers of their own, and compute what they did."""

import itertools
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2
from tensorflow.python.eager import context
from tensorflow.python.framework import ops

import tfdp
from tfdp._compat import saved_model

X = np.array([0.5, -1.0, 2.0], np.float32)


@tf.custom_gradient
def sine(x):
    return tf.sin(x), lambda upstream: 3.0 * upstream * tf.cos(x)


class Twin(tf.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    @tf.function(input_signature=[tf.TensorSpec([3])])
    def twin(self, x):
        return x * self.factor


class Everything(tf.Module):
    """What TensorFlow numbers: functions, branches, loops, gradients, tables, captured tensors."""

    def __init__(self):
        super().__init__()
        self.scale, self.shift = tf.Variable(2.0, name="v_3"), tf.Variable(0.0, name="v_1")
        pairs = tf.lookup.KeyValueTensorInitializer(tf.constant([0, 2]), tf.constant([5, 7]))
        self.table = tf.lookup.StaticHashTable(pairs, -1)
        pairs = tf.lookup.KeyValueTensorInitializer(tf.constant([0, 2]), tf.constant([50, 70]))
        self.other = tf.lookup.StaticHashTable(pairs, -4)
        self.one, self.two = Twin(3.0), Twin(5.0)
        self.offset, self.factor = tf.range(3.0) * 2.0, tf.constant(2, tf.int64) * 2

    @tf.function(input_signature=[tf.TensorSpec([3])])
    def serve(self, x):
        y = sine(x) + tf.cond(x[0] > 0.0, lambda: 2.0 * self.inner(x), lambda: -x)
        _, looped = tf.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, y * self.scale), (0, y))
        found = tf.cast(self.table.lookup(tf.cast(x, tf.int32)), tf.float32)
        found += tf.cast(self.other.lookup(tf.cast(x, tf.int32)), tf.float32)
        counted = (
            tf.data.Dataset.range(4).map(lambda i: i * self.factor).reduce(np.int64(0), tf.add)
        )
        return looped + found + self.offset + self.shift + tf.cast(counted, tf.float32)

    @tf.function(input_signature=[tf.TensorSpec([3])])
    def turn(self, x):
        return tf.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, sine(y)), (0, x))[1]

    @tf.function
    def inner(self, x):
        return x * self.scale


def with_gradient(function):
    x = tf.constant(X)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    return y.numpy(), tape.gradient(y, x).numpy()


def count_by(steps):
    """Moves the counter of the process."""
    for _ in range(steps):
        ops.uid()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Folders of one module, made and saved anew after other work; and what it gives.

    The numbers of the last one pass a power of ten between two functions of one name: as texts, the
    larger number comes first there.
    """
    assert tfdp.serving  # which makes it so
    folders, modules = [], []
    for place in range(3):
        count_by(300)
        folders.append(tmp_path_factory.mktemp("saved"))
        modules.append(Everything())
        modules[-1].one.twin.get_concrete_function()
        now = ops.uid()
        count_by(10 ** len(str(now)) - now if place == 2 else 1)
        modules[-1].two.twin.get_concrete_function()
        expected = with_gradient(modules[-1].serve)
        tf.saved_model.save(modules[-1], str(folders[-1]), signatures=modules[-1].serve)
    return folders, expected, modules


@pytest.mark.thorough
def test_what_else_the_process_computed_is_not_in_a_saved_model(saved):
    one, other, third = ((folder / "saved_model.pb").read_bytes() for folder in saved[0])
    assert one == other == third
    graph = saved_model_pb2.SavedModel.FromString(one).meta_graphs[0].graph_def
    variables = [node for node in graph.node if node.op == "VarHandleOp"]
    assert {"v_1", "v_3"} <= {node.name for node in variables}
    assert {b"v_1", b"v_3"} <= {node.attr["shared_name"].s for node in variables}
    library = graph.library
    numbers = [int(f.signature.name.rsplit("_", 1)[1]) for f in library.function]
    assert numbers == list(range(len(numbers))) and len(numbers) > 10


@pytest.mark.thorough
def test_a_renumbered_model_computes_what_it_did_and_differentiates(saved, tmp_path):
    folders, expected, _ = saved
    loaded = tf.saved_model.load(str(folders[0]))
    np.testing.assert_allclose(with_gradient(loaded.serve), expected, rtol=1e-6)
    np.testing.assert_allclose(loaded.turn(X), np.sin(np.sin(np.sin(X))), rtol=1e-6)
    answer = loaded.signatures["serving_default"](x=tf.constant(X))
    np.testing.assert_allclose(answer["output_0"], expected[0], rtol=1e-6)
    tf.saved_model.save(loaded, str(tmp_path))
    again = tf.saved_model.load(str(tmp_path))
    np.testing.assert_allclose(with_gradient(again.serve), expected, rtol=1e-6)


def test_an_export_traces_a_model_once_and_finds_its_tables(tmp_path):
    traces = []

    class Traced(keras.layers.Layer):
        def call(self, x):
            traces.append(x)
            return keras.ops.one_hot(x, 3)

    inputs = keras.Input((), dtype="string")
    look_up = keras.layers.StringLookup(vocabulary=["a", "b"])
    network = keras.Model(inputs, keras.layers.Dense(1)(Traced()(look_up(inputs))))
    private = tfdp.make_private(network)
    traces.clear()
    tfdp.serving.export(private, tmp_path / "export")
    assert len(traces) == 1
    words = tf.constant(["b", "other"])
    exported = tf.saved_model.load(str(tmp_path / "export"))
    served = exported.serve(words)
    np.testing.assert_allclose(served, network(words), rtol=1e-6)
    # Whoever saves the network by TensorFlow later finds its signature there, as ever.
    tf.saved_model.save(network, str(tmp_path / "saved"))
    saved = tf.saved_model.load(str(tmp_path / "saved"))
    signed = saved.signatures["serving_default"](words)
    np.testing.assert_allclose(signed["output_0"], served, rtol=1e-6)


def test_debug_information_with_the_numbers_of_the_process_is_refused(tmp_path):
    with pytest.raises(ValueError, match="save_debug_info"):
        options = tf.saved_model.SaveOptions(save_debug_info=True)
        tf.saved_model.save(Everything(), str(tmp_path), options=options)
    assert not (tmp_path / "saved_model.pb").exists()


def test_variables_of_one_name_come_in_the_order_in_which_functions_read_them_first():
    first, second, unread = (SimpleNamespace(handle=object(), name="kernel") for _ in range(3))
    one = SimpleNamespace(captured_inputs=[first.handle])
    other = SimpleNamespace(captured_inputs=[second.handle, first.handle])
    for given in itertools.permutations([first, second, unread]):
        assert saved_model._in_order_of_reading(given, [one, other]) == [first, second, unread]


def test_resources_of_one_number_stay_one_and_anonymous_ones_stay_many():
    meta_graph, anonymous = meta_graph_pb2.MetaGraphDef(), context.anonymous_name()
    for name in (b"table_17", anonymous.encode(), b"table_17", b"table_9"):
        meta_graph.graph_def.node.add(op="HashTableV2").attr["shared_name"].s = name
    saved_model.renumber(meta_graph)
    names = [node.attr["shared_name"].s for node in meta_graph.graph_def.node]
    assert names == [b"table_0", anonymous.encode(), b"table_0", b"table_1"]
