"""What cannot be clipped per example is refused by name; everything else finds its way."""

import keras
import numpy as np
import pytest
import slow
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import layers

import tfdp
from tfdp.clipping import PerExampleGradients, Rule, explain, register_rule
from tfdp.clipping.plan.planning import make_clipping_plan
from tfdp.errors import PrivacyError


def plan_of(model, *shape, dtype=tf.float32):
    return make_clipping_plan(model, tf.zeros((1, *shape), dtype))


def test_batch_normalization_is_refused_by_name():
    # Fault 16.
    model = keras.Sequential([keras.Input((3,)), layers.BatchNormalization(name="mixer")])
    with pytest.raises(PrivacyError, match="'mixer' .*BatchNormalization"):
        plan_of(model, 3)
    with pytest.raises(PrivacyError, match="'mixer' .*BatchNormalization"):
        tfdp.make_private(model)


def test_activity_regularizers_are_refused():
    model = keras.Sequential([keras.Input((3,)), layers.Dense(2, activity_regularizer="l2",
                                                              name="active")])  # fmt: skip
    with pytest.raises(PrivacyError, match="'active'.*activity_regularizer"):
        plan_of(model, 3)


class AddsLoss(layers.Layer):
    def call(self, x):
        self.add_loss(tf.reduce_mean(x))
        return x


class CountsBatches(layers.Layer):
    def build(self, shape):
        self.mean = self.add_weight(shape=(), trainable=False, name="running_mean")

    def call(self, x):
        self.mean.assign(tf.reduce_mean(x))
        return x


def test_losses_and_states_of_the_batch_are_refused():
    for layer, message in ((AddsLoss(), "add_loss"), (CountsBatches(), "running_mean")):
        model = keras.Sequential([keras.Input((3,)), layer, layers.Dense(1)])
        with pytest.raises(PrivacyError, match=message):
            plan_of(model, 3)


def test_stateful_recurrence_is_refused():
    inputs = keras.Input((4, 3), batch_size=1)
    model = keras.Model(inputs, layers.GRU(2, stateful=True)(inputs))
    with pytest.raises((PrivacyError, ValueError)):
        tfdp.clipping.per_example_gradient_norms(
            model, np.zeros((1, 4, 3), np.float32), np.zeros((1, 2)), "mse"
        )


def test_outputs_without_the_batch_axis_are_refused():
    inputs = keras.Input((3,))
    outputs = keras.ops.sum(layers.Dense(2)(inputs), axis=0)
    with pytest.raises(PrivacyError, match="batch axis"):
        plan_of(keras.Model(inputs, outputs), 3)


def test_weight_regularizers_and_metrics_are_allowed():
    model = keras.Sequential([keras.Input((3,)), layers.Dense(2, kernel_regularizer="l2")])
    assert len(plan_of(model, 3).calls) == 1


class Reshaper(keras.Model):
    """Moves the batch axis inside: only the whole model can be told apart by example."""

    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(2)

    def call(self, x):
        flat = keras.ops.reshape(x, (-1, 3))
        return keras.ops.reshape(self.dense(flat), (-1, 4, 2))


@pytest.mark.thorough
def test_layers_inside_reshapes_fall_back_to_the_model(brute_force, mean_loss):
    generator = np.random.default_rng(0)
    x = generator.normal(size=(5, 4, 3)).astype(np.float32)
    y = generator.normal(size=(5, 4, 2)).astype(np.float32) + 5
    check = brute_force(Reshaper, x, mean_loss("mse", y))
    check.check()
    (planned,) = make_clipping_plan(check.model, check.x).calls.values()
    assert planned.rule is None and planned.layer is check.model


class ByExample(layers.Layer):
    """Has no rule, gives outputs (B, 3), and is told in which form it gets the examples."""

    def build(self, *shapes, **kwargs):
        self.scale = self.add_weight(name="scale", shape=(3,), initializer="ones")

    def call(self, x, how):
        if how == "ragged":
            x = tf.reduce_sum(x, axis=1)
        elif how == "transposed":
            x = tf.reduce_sum(x, axis=0)
        elif how == "flattened":
            x = tf.reduce_sum(tf.reshape(x, [-1, 2]), axis=1)
        elif how == "packed":
            x = tf.ensure_shape(tf.math.segment_sum(x["values"], x["rows"]), [x["like"].shape[0]])
        return x[:, tf.newaxis] * self.scale


class InAnotherForm(keras.Model):
    def __init__(self, how):
        super().__init__()
        self.how = how
        self.layer = ByExample()

    def call(self, x):
        form = {
            "ragged": lambda: tf.RaggedTensor.from_tensor(x),
            "transposed": lambda: tf.transpose(x),
            "flattened": lambda: tf.reshape(x, [-1]),
            "packed": lambda: {
                "values": tf.boolean_mask(x, x < 9.0),
                "rows": tf.where(x < 9.0)[:, 0],
                "like": x,
            },
        }[self.how]()
        return self.layer(form, how=self.how)


@pytest.mark.thorough_after(1)
@pytest.mark.parametrize("how", ["ragged", "transposed", "flattened", "packed"])
def test_the_fallback_never_hands_an_example_the_others(brute_force, mean_loss, how):
    # As constants of the call they would enter its gradient.
    generator = np.random.default_rng(0)
    x = generator.normal(size=(4, 2)).astype(np.float32)
    y = generator.normal(size=(4, 3)).astype(np.float32) + 5
    check = brute_force(lambda: InAnotherForm(how), x, mean_loss("mse", y))
    (planned,) = make_clipping_plan(check.model, check.x).calls.values()
    assert planned.rule is None and planned.layer is check.model
    if how != "packed":  # vectorized_map has no boolean_mask
        check.check(("flat",))


def test_inputs_that_cannot_be_divided_by_example_are_refused():
    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.layer = ByExample()

        def call(self, x):
            return self.layer(x, how="ragged")

    ragged = tf.RaggedTensor.from_tensor(tf.ones((4, 2)))
    with pytest.raises(PrivacyError, match="without a clipping rule.*pad examples"):
        make_clipping_plan(Model(), ragged)
    with pytest.raises(PrivacyError, match="from_sparse"):
        make_clipping_plan(
            keras.Sequential([layers.Dense(1)]), tf.sparse.from_dense(tf.ones((4, 2)))
        )


class Squeezed(keras.Model):
    """Shared positions that meet the batch in another way than by plain addition."""

    def __init__(self, how):
        super().__init__()
        self.how = how
        self.positions = layers.Embedding(4, 3)
        self.dense = layers.Dense(2)

    def call(self, x):
        p = self.positions(tf.range(4)[None])
        p = {
            "index": lambda: p[0],
            "mean": lambda: tf.reduce_mean(p, axis=0, keepdims=True),
            "scaled": lambda: 2.0 * p,
            "square": lambda: p * p,
            "flat": lambda: self.positions(tf.range(4))[None],
            "slice": lambda: self.positions(tf.range(4))[:4],
            "plain": lambda: p,
            "both": lambda: p + (p * p)[0],
        }[self.how]()
        return self.dense(keras.ops.tanh(x + p))


@pytest.mark.parametrize(
    "how",
    slow.cases(
        ["index", "mean", "scaled", "square", "flat", "slice", "plain", "both"],
        # "both" and test_positions_shared_by_the_whole_batch stand for them.
        slow=["scaled", "slice", "square", "index", "flat"],
    ),
)
def test_shared_lookups_are_exact_however_they_meet_the_batch(brute_force, mean_loss, how):
    # Fault 13, and copies for each example must not change what the model computes.
    generator = np.random.default_rng(0)
    x = generator.normal(size=(4, 4, 3)).astype(np.float32)
    y = generator.normal(size=(4, 4, 2)).astype(np.float32) + 5
    brute_force(lambda: Squeezed(how), x, mean_loss("mse", y)).check()


def test_plain_shared_lookups_need_no_fallback():
    model = Squeezed("plain")
    model(tf.zeros((1, 4, 3)))
    assert "broadcast" in explain(model, tf.zeros((1, 4, 3)))


class Doubling(layers.Layer):
    def build(self, shape):
        self.factor = self.add_weight(name="factor", shape=(shape[-1],), initializer="ones")

    def call(self, x):
        return 2.0 * x * self.factor


@register_rule(Doubling)
class DoublingRule(Rule):
    def variables(self, layer, args, kwargs):
        return [layer.factor]

    def contributions(self, layer, args, kwargs, gradients):
        (s,) = gradients
        return [(layer.factor, PerExampleGradients(2.0 * tf.cast(s * args[0], tf.float32)))]


class Tripling(Doubling):
    def call(self, x):
        return 3.0 * x * self.factor


def test_users_register_rules_and_subclasses_that_compute_differ(brute_force, mean_loss):
    generator = np.random.default_rng(0)
    x = generator.normal(size=(4, 3)).astype(np.float32)
    y = generator.normal(size=(4, 3)).astype(np.float32) + 9
    for layer, has_rule in ((Doubling, True), (Tripling, False)):

        def build(layer=layer):
            return keras.Sequential([keras.Input((3,)), layer(), layers.Dense(3)])

        check = brute_force(build, x, mean_loss("mse", y))
        planned = next(iter(make_clipping_plan(check.model, check.x).calls.values()))
        assert (planned.rule is not None) == has_rule
        check.check()
    with pytest.raises(ValueError, match="layer classes"):
        register_rule(Doubling())


def test_explain_lists_every_layer_and_what_is_unused():
    inputs = keras.Input((4, 3))
    hidden = layers.PReLU(name="unknown")(layers.Dense(3, name="first")(inputs))
    model = keras.Model(inputs, hidden)
    text = explain(model)
    assert "first" in text and "DenseRule" in text
    assert "unknown" in text and "exact fallback" in text


class Wide(layers.Layer):
    def build(self, shape):
        self.w = self.add_weight(shape=(shape[-1], 100))

    def call(self, x):
        return keras.ops.matmul(x, self.w)


@pytest.mark.thorough_after(1)
@pytest.mark.parametrize("width, slow", [(1000, True), (10, False)])
def test_fallbacks_that_make_a_step_much_longer_are_warned_of_once(small, recwarn, width, slow):
    model = keras.Sequential([keras.Input((width,)), Wide(name="wide"), layers.Dense(1)])
    private = tfdp.make_private(model, validate=False)
    private.compile(small.optimizer(), loss="mse")
    for _ in range(2):
        private.clipping_plan(tf.zeros((2, width)))
    found = [str(w.message) for w in recwarn if "'wide'" in str(w.message)]
    assert len(found) == (1 if slow else 0)
    assert all("about 8 times" in message for message in found)
    assert "exact fallback (~" + ("7.9x)" if slow else "1.1x)") in explain(model)


def test_fallbacks_in_loops_and_by_example_cost_more():
    def slowdown(layer):
        model = keras.Sequential([keras.Input((20, 4)), layer])
        (planned,) = make_clipping_plan(model, tf.zeros((1, 20, 4))).calls.values()
        return planned.slowdown

    class OwnRNN(layers.SimpleRNN):
        def call(self, sequences, initial_state=None, mask=None, training=False):
            return super().call(sequences, initial_state, mask, training)

    assert slowdown(layers.SimpleRNN(8)) == 1.0
    assert 1.5 < slowdown(OwnRNN(8)) < 4 < slowdown(OwnRNN(8, dropout=0.5))


def test_model_without_inputs_needs_a_batch():
    with pytest.raises(ValueError, match="`x`"):
        explain(Squeezed("plain"))


@pytest.mark.thorough
def test_norms_of_single_examples_are_public_api():
    model = keras.Sequential([keras.Input((3,)), layers.Dense(1, use_bias=False)])
    model.set_weights([np.zeros((3, 1))])
    x = np.array([[3.0, 4.0, 0.0], [0.0, 0.0, 2.0]], np.float32)
    norms = tfdp.clipping.per_example_gradient_norms(model, x, np.array([[0.5], [-1.0]]), "mse")
    np.testing.assert_allclose(norms, [5.0, 4.0], rtol=1e-5)
    weighted = tfdp.clipping.per_example_gradient_norms(
        model, x, np.array([[0.5], [-1.0]]), "mse", np.array([2.0, 0.0], np.float32)
    )
    np.testing.assert_allclose(weighted, [10.0, 0.0], rtol=1e-5, atol=1e-15)


@pytest.mark.thorough
@given(
    batch=st.integers(1, 6), time=st.integers(1, 5), width=st.integers(1, 6),
    units=st.integers(1, 6), activation=st.sampled_from(["tanh", None]), bias=st.booleans(),
    seed=st.integers(0, 999),
)  # fmt: skip
@settings(max_examples=6, deadline=None, derandomize=True)
def test_dense_of_any_shape(brute_force, batch, time, width, units, activation, bias, seed):
    generator = np.random.default_rng(seed)

    def build():
        floats = keras.config.dtype_policy().compute_dtype
        return keras.Sequential([keras.Input((time, width), dtype=floats),
                                 layers.Dense(units, activation, use_bias=bias),
                                 layers.LayerNormalization(center=bias),
                                 layers.Dense(2)])  # fmt: skip

    def losses(outputs):
        return tf.reduce_sum(tf.square(outputs - 9.0), axis=[1, 2])

    x = generator.normal(size=(batch, time, width)).astype(np.float32)
    brute_force(build, x, losses).check(clippings=("flat",), tolerance=3e-5)


@given(
    batch=st.integers(1, 5), time=st.integers(1, 6), width=st.integers(1, 4),
    items=st.integers(1, 5), tied=st.booleans(), seed=st.integers(0, 999),
)  # fmt: skip
@settings(max_examples=6, deadline=None, derandomize=True)
def test_tables_of_any_shape(brute_force, batch, time, width, items, tied, seed):
    generator = np.random.default_rng(seed)

    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.table = layers.ReversibleEmbedding(items, width, tie_weights=tied)

        def call(self, x):
            return self.table(keras.ops.tanh(self.table(x)), reverse=True)

    def losses(outputs):
        return tf.reduce_mean(tf.square(outputs - 3.0), axis=[1, 2])

    x = generator.integers(0, items, (batch, time)).astype(np.int32)
    brute_force(Model, x, losses).check(clippings=("normalized",), tolerance=3e-5)


class Keeps(layers.Layer):
    """Hands the batch to something that outlives the step."""

    def __init__(self, keep):
        super().__init__()
        self.keep = keep

    def call(self, x):
        self.keep(x)
        return x


PLACE = tf.Variable(tf.zeros(3))
TABLE = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, 0.0)
QUEUE = tf.queue.FIFOQueue(10, [tf.float32])


def in_a_loop(x):
    tf.while_loop(lambda i: i < 2, lambda i: PLACE.assign_add(x[0])[:1] * 0 + i + 1, [tf.zeros(1)])


KEEPERS = {
    "a variable": lambda x: PLACE.assign(tf.reduce_mean(x, 0)),
    "rows of a variable": lambda x: PLACE.scatter_nd_update([[0]], x[0, :1]),
    "a function of its own": lambda x: tf.function(lambda: PLACE.assign_sub(x[0]))(),
    "a branch": lambda x: tf.cond(x[0, 0] > 0, lambda: PLACE.assign(x[0]) * 0, lambda: x[0]),
    "a loop": in_a_loop,
    "a table": lambda x: TABLE.insert(tf.range(3, dtype=tf.int64), x[0]),
    "a queue": lambda x: QUEUE.enqueue(x[0]),
    "Python": lambda x: tf.py_function(lambda a: a, [x], tf.float32),
    "numpy": lambda x: tf.numpy_function(lambda a: a, [x], tf.float32),
    "a print": tf.print,
    "a file": lambda x: tf.io.write_file("batch.txt", tf.strings.as_string(x[0, 0])),
}


@pytest.mark.parametrize("name", KEEPERS)
def test_what_keeps_the_batch_outside_of_the_model_is_refused(name):
    model = keras.Sequential([keras.Input((3,)), Keeps(KEEPERS[name]), layers.Dense(1)])
    with pytest.raises(PrivacyError, match="without noise"):
        plan_of(model, 3)


@pytest.mark.thorough
def test_what_reads_or_draws_is_not_refused():
    words = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer([0, 1], [0.5, 2.0], tf.int64, tf.float32), 0.0
    )
    drawn, scale = tf.random.Generator.from_seed(1), tf.Variable(2.0)

    def harmless(x):
        tf.debugging.assert_all_finite(x, "finite")
        found = TABLE.lookup(tf.cast(x, tf.int64)) + words.lookup(tf.cast(x, tf.int64))
        found += scale * drawn.normal(tf.shape(x)) + tf.random.uniform(tf.shape(x))
        return tf.map_fn(lambda row: row + tf.random.normal([3]), found)

    assert plan_of(_model_with(Keeps(harmless), 3), 3).calls


def test_vocabularies_are_read():
    lookup = layers.StringLookup(vocabulary=["a", "b"])
    model = keras.Sequential([keras.Input((4,), dtype="string"), lookup, layers.Embedding(5, 2)])
    assert plan_of(model, 4, dtype=tf.string).calls


def _model_with(layer, *shape):
    return keras.Sequential([keras.Input(shape), layers.Dense(3), layer, layers.Dense(1)])


@pytest.mark.parametrize(
    "layer, shape",
    [
        (layers.MixUp(), (4, 4, 3)),
        (layers.CutMix(), (4, 4, 3)),
        (layers.UnitNormalization(axis=0), (3,)),
        (layers.Softmax(axis=0), (3,)),
        (layers.Softmax(axis=(0, 1)), (3,)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_layers_that_mix_examples_are_refused_by_name(layer, shape):
    match = f"{type(layer).__name__}.* mixes the examples.*SharedNegatives"
    with pytest.raises(PrivacyError, match=match):
        tfdp.make_private(_model_with(layer, *shape))
