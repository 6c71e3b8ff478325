"""What tfdp expects of other packages beyond their public interfaces."""

import ast
import functools
import pathlib

import dp_accounting
import keras
import numpy as np
import processes
import pytest
import tensorflow as tf
from dp_accounting.pld import privacy_loss_distribution

import tfdp
from tfdp._compat import dp_accounting as accountants
from tfdp._compat import keras as compat
from tfdp._compat.tensorflow import (
    dtype_of_variable,
    inputs_of,
    may_reorder,
    tapes_record,
    traces_for_xla,
)

ROOT = pathlib.Path(tfdp.__file__).parent
#: Private names that are public by another agreement: named tuples.
ALLOWED = ("_replace", "_fields")


@functools.cache
def modules():
    """{path: syntax tree} of all of tfdp but its room for other packages."""
    paths = [path for path in sorted(ROOT.rglob("*.py")) if "_compat" not in path.parts]
    return {path: ast.parse(path.read_text()) for path in paths}


def names_of_tfdp():
    """Everything that a module of tfdp defines, and every attribute that it sets."""
    for node in [node for tree in modules().values() for node in ast.walk(tree)]:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, (ast.Attribute, ast.Name)) and isinstance(node.ctx, ast.Store):
            yield node.attr if isinstance(node, ast.Attribute) else node.id


def private_uses(tree, own):
    """Private attributes that no module of tfdp defines, and imports from within packages."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            names = [node.attr]
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("getattr", "hasattr"):
            names = [a.value for a in node.args[1:2] if isinstance(a, ast.Constant)]
        elif isinstance(node, ast.ImportFrom):
            names = [p for p in node.module.split(".") if p in ("src", "python")]
            names = [f"_{name}" for name in names]
        else:
            continue
        for name in names:
            private = name.startswith("_") and not name.startswith(("__", "_tfdp"))
            if private and name not in own and name not in ALLOWED:
                yield name, node.lineno


def test_private_names_of_other_packages_are_used_in_one_room():
    own = {*names_of_tfdp(), "_compile_arguments"}  # which is set past Keras' tracking, by its name
    uses = {path.relative_to(ROOT): [*private_uses(t, own)] for path, t in modules().items()}
    assert len(uses) > 300
    assert not {path: found for path, found in uses.items() if found}


def nested():
    inner = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, name="inner")])
    x = keras.Input((3,))
    return keras.Model(x, keras.layers.Dense(1, name="outer")(inner(x)))


@pytest.mark.thorough
def test_all_layers_lists_the_model_and_what_is_nested():
    model = nested()
    found = compat.all_layers(model)
    assert found[0] is model or model in found
    assert {"inner", "outer"} <= {layer.name for layer in found}


def test_whether_a_model_takes_training_is_known():
    class Without(keras.Model):
        def call(self, x):
            return x

    assert compat.takes_training(nested()) and not compat.takes_training(Without())


def test_masks_and_logits_are_found_where_keras_keeps_them():
    rows = keras.layers.Embedding(5, 2, mask_zero=True)(tf.constant([[1, 0]]))
    np.testing.assert_array_equal(compat.mask_of(rows), [[True, False]])
    assert compat.mask_of(tf.zeros(3)) is None
    compat.set_mask(rows, tf.constant([[False, True]]))
    np.testing.assert_array_equal(keras.layers.GlobalAveragePooling1D()(rows), rows[:, 1].numpy())
    logits = tf.constant([[1.0, 2.0]])
    probabilities = keras.activations.softmax(logits)
    assert compat.logits_of(probabilities) is not None
    assert compat.logits_of(tf.nn.softmax(logits)) is None
    # Keras' losses look there.
    compat.set_logits(probabilities, tf.constant([[9.0, 0.0]]))
    loss = keras.losses.sparse_categorical_crossentropy(tf.constant([0]), probabilities)
    assert float(loss[0]) < 0.001


def test_the_training_argument_of_the_calls_around_is_known():
    class Inner(keras.layers.Layer):
        def call(self, x):
            seen.append(compat.training_of_call(self))
            return x

    class Outer(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.inner = Inner()

        def call(self, x, training=None):
            return self.inner(x)

    seen, outer = [], Outer()
    outer(tf.ones((1, 2)))
    seen.clear()
    for training in (True, False, None):
        outer(tf.ones((1, 2)), training=training)
    assert seen == [True, False, None]


def test_calls_of_a_graph_come_in_the_order_in_which_they_run():
    names = [node.operation.name for node in compat.calls_of_graph(nested())]
    assert names[-1] == "outer" and len(names) == 3
    assert compat.calls_of_graph(keras.layers.Dense(1)) == []


def test_models_know_whether_they_have_a_strategy():
    assert not compat.has_strategy(nested())
    with tf.distribute.OneDeviceStrategy("/cpu:0").scope():
        assert compat.has_strategy(nested())


def test_a_model_is_built_from_a_specification():
    model = keras.Sequential([keras.layers.Dense(2)])
    model.compile("adam", "mse", metrics=["mae"])
    shapes = keras.KerasTensor((None, 3)), keras.KerasTensor((None, 2)), None
    compat.build_from_specification(model, shapes)
    assert model.built and model.optimizer.built and len(model.weights) == 2


def test_optimizers_know_the_places_of_their_variables():
    a, b = keras.Variable([1.0]), keras.Variable([2.0], name="bias")
    optimizer = keras.optimizers.SGD(weight_decay=0.1)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    optimizer.build([a, b])
    assert [compat.variable_index(optimizer, v) for v in (a, b)] == [0, 1]
    assert compat.is_decayed(optimizer, a) and not compat.is_decayed(optimizer, b)


@pytest.mark.thorough
def test_hooks_of_models_are_called_by_keras(tmp_path):
    class Model(compat.ModelHooks):
        not_exported = ("state",)
        gathered = 0

        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1)
            self.state = tf.train.Checkpoint(v=tf.Variable(1.0, name="not_exported"))

        def call(self, x):
            return self.dense(x)

        def gather_results(self, logs, gather):
            type(self).gathered += 1
            return gather(logs)

    model = Model()
    model.compile("sgd", "mse")
    x = np.ones((4, 2), np.float32)
    model.fit(x, x[:, :1], verbose=0)
    assert Model.gathered
    tf.train.Checkpoint(m=model).write(str(tmp_path / "checkpoint"))
    model.export(str(tmp_path / "exported"), verbose=False)
    for place, held in (("checkpoint", True), ("exported/variables/variables", False)):
        names = tf.train.load_checkpoint(str(tmp_path / place)).get_variable_to_shape_map()
        assert any("state/" in name for name in names) is held


def test_inputs_of_a_dataset_are_what_it_was_made_from():
    first = tf.data.Dataset.range(3)
    (found,) = inputs_of(first.batch(2))
    assert found is first


@pytest.mark.parametrize("deterministic", [True, False, None])
def test_datasets_know_whether_their_order_matters(deterministic):
    parallel = tf.data.Dataset.range(3).map(abs, num_parallel_calls=2, deterministic=deterministic)
    assert may_reorder(parallel) == (deterministic is False)
    assert not may_reorder(tf.data.Dataset.range(3))


@pytest.mark.thorough_after(1)
@pytest.mark.parametrize("kind", ["rdp", "pld"])
def test_accountants_take_further_events(kind):
    class Mine(dp_accounting.DpEvent):
        pass

    class Refused(dp_accounting.DpEvent):
        pass

    base = accountants.RdpAccountant if kind == "rdp" else accountants.PldAccountant

    class Accountant(base):
        def take(self, event, count, do_compose):
            if isinstance(event, Refused):
                return True, self.refusal(event, "never")
            if not isinstance(event, Mine):
                return False, None
            if do_compose and kind == "rdp":
                self.add(count * np.asarray(self.orders) / 2)  # a Gaussian of multiplier 1
            elif do_compose:
                losses = privacy_loss_distribution.from_gaussian_mechanism(
                    1.0, value_discretization_interval=self.interval
                )
                self.add(losses.self_compose(count))
            return True, None

    accountant = Accountant()
    assert accountant.supports(Mine())
    assert not accountant.supports(dp_accounting.SelfComposedDpEvent(Refused(), 3))
    accountant.compose(dp_accounting.ComposedDpEvent([Mine(), dp_accounting.GaussianDpEvent(1.0)]))
    plain = getattr(dp_accounting, kind)
    plain = plain.RdpAccountant() if kind == "rdp" else plain.PLDAccountant()
    plain.compose(dp_accounting.GaussianDpEvent(1.0), 2)
    assert accountant.get_epsilon(1e-5) == pytest.approx(plain.get_epsilon(1e-5), rel=1e-3)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "order",
    [
        "keras, tfdp",
        "tfdp, keras",
        pytest.param("keras, tfdp.accounting", marks=pytest.mark.evidence),
    ],
)
def test_files_load_in_either_order_of_imports(small, tmp_path, order):
    model = small.model()
    model.save(tmp_path / "m.keras")
    # The server has imported Keras; here it is imported once more, in its turn.
    script = (
        "import sys\n"
        "for name in [name for name in sys.modules if name.split('.')[0] == 'keras']:\n"
        "    del sys.modules[name]\n"
        f"import {order}\n"
        "print(type(keras.models.load_model(sys.argv[1])).__name__)\n"
    )
    shown = processes.run(script, tmp_path / "m.keras")
    assert shown.strip() == "PrivateModel"


@pytest.fixture(scope="module")
def trained(small):
    model = small.model(compile_kwargs={"run_eagerly": True})
    model.fit(small.poisson(steps_per_epoch=1), verbose=0)
    return model


@pytest.mark.parametrize("kind", ["m.keras", "m.weights.h5"])
def test_files_of_the_inner_model_carry_the_charges(small, trained, tmp_path, kind):
    model, inner = trained, trained.model
    if kind == "m.keras":
        inner.save(tmp_path / kind)
        loaded = keras.models.load_model(tmp_path / kind)
    else:
        inner.save_weights(tmp_path / kind)
        loaded = small.base()
        loaded.load_weights(tmp_path / kind)
    assert type(loaded) is keras.Sequential
    for a, b in zip(inner.get_weights(), loaded.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    again = tfdp.make_private(loaded)
    assert again.ledger == model.ledger and len(again.ledger)
    again.compile(small.optimizer(), loss=small.loss)
    assert again.privacy_statement().epsilon == model.privacy_statement().epsilon
    assert not any("elsewhere" in s for s in again.privacy_statement().assumptions)


def test_plain_keras_reads_the_files_of_an_inner_model(trained, tmp_path):
    trained.model.save(tmp_path / "m.keras")
    script = (
        "import sys, keras, numpy as np\n"
        "m = keras.models.load_model(sys.argv[1])\n"
        "assert 'tfdp' not in sys.modules\n"
        "print(float(np.abs(m.get_weights()[0]).sum()))\n"
    )
    shown = processes.run(script, tmp_path / "m.keras")
    assert float(shown) == pytest.approx(float(np.abs(trained.get_weights()[0]).sum()), rel=1e-6)


def test_add_weight_makes_what_keras_would_make():
    """Wrapped, to remember initializers; by their names they give the same values at each call."""
    layer = keras.layers.Layer()
    for given in ({"initializer": "he_normal"}, {"initializer": "zeros"}, {}, {"dtype": "int32"}):
        keras.utils.set_random_seed(1)
        made = layer.add_weight(shape=(3, 2), **given)
        keras.utils.set_random_seed(1)
        expected = layer.add_weight.__wrapped__(layer, shape=(3, 2), **given)
        assert made.dtype == expected.dtype
        np.testing.assert_array_equal(made, expected)
        if made.dtype == "float32":
            again = vars(made)["_tfdp_initializer"]((3, 2))
            np.testing.assert_array_equal(made, again)


def test_handles_know_the_dtype_of_their_variable():
    for dtype in (tf.float32, tf.bfloat16, tf.int64):
        assert dtype_of_variable(tf.Variable(tf.zeros([2], dtype)).handle) == dtype
    table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, -1)
    assert dtype_of_variable(table.resource_handle) is None
    assert dtype_of_variable(None) is None


def test_tapes_record_inside_of_init_scope():
    def derivative():
        x = tf.constant(3.0)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = x * x
        return tape.gradient(y, x)

    with tf.init_scope():
        assert derivative() is None
        with tapes_record():
            assert float(derivative()) == 6.0
        assert derivative() is None
    assert float(derivative()) == 6.0


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_convolutional_lstms_have_the_cell_that_is_described(rank):
    layer = getattr(keras.layers, f"ConvLSTM{rank}D")(1, 2)
    assert type(layer.cell) is compat.ConvLSTMCell


def test_a_trace_for_xla_is_known_from_within():
    seen = []

    def look():
        seen.append(traces_for_xla())
        return tf.constant(0)

    def outer():
        look()
        tf.cond(tf.constant(True), look, look)
        return tf.function(look, autograph=False)()

    tf.function(outer, autograph=False, jit_compile=True)()
    assert seen == [True] * 4
    seen.clear()
    tf.function(outer, autograph=False)()
    assert seen == [False] * 4 and not traces_for_xla()
