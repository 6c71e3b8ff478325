"""What is differentiated is what was computed: no way past the probes, nothing twice."""

import dataclasses

import keras
import numpy as np
import pytest
import slow
import tensorflow as tf
from keras import layers

import tfdp
from tfdp.clipping.engine import backward
from tfdp.clipping.losses import example_mask_of
from tfdp.clipping.plan.planning import make_clipping_plan
from tfdp.errors import PrivacyError


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def floats():
    return keras.config.dtype_policy().compute_dtype


class OwnHead(layers.Layer):
    """One weight and an activation that Keras' losses look behind."""

    def __init__(self, activation):
        super().__init__()
        self.activation = activation

    def build(self, shape):
        self.w = self.add_weight(name="w", shape=(shape[-1], 3))

    def call(self, x):
        return self.activation(keras.ops.matmul(x, self.w))


class OwnDense(layers.Dense):
    def call(self, x):
        return super().call(x)


def lora(activation):
    layer = layers.Dense(3, activation)
    layer.build((None, 4))
    layer.enable_lora(2)
    return layer


HEADS = {
    "softmax": (lambda: OwnHead(keras.activations.softmax), "sparse_categorical_crossentropy"),
    "tf softmax": (lambda: OwnHead(tf.nn.softmax), "sparse_categorical_crossentropy"),
    "sigmoid": (lambda: OwnHead(keras.activations.sigmoid), "binary_crossentropy"),
    "tf sigmoid": (lambda: OwnHead(tf.sigmoid), "binary_crossentropy"),
    "dense subclass": (lambda: OwnDense(3, "softmax"), "sparse_categorical_crossentropy"),
    "lora": (lambda: lora("sigmoid"), "binary_crossentropy"),
    "dense": (lambda: layers.Dense(3, "softmax"), "sparse_categorical_crossentropy"),
}


@pytest.mark.thorough_after(4)
@pytest.mark.parametrize(
    ("name", "graph"),
    slow.cases(
        [(name, graph) for name in HEADS for graph in (True, False)],
        slow=[("tf softmax", True), ("tf sigmoid", True), ("dense subclass", True),
              ("dense", True)],
    ),
)  # fmt: skip
def test_losses_do_not_look_past_the_probes(brute_force, mean_loss, name, graph):
    head, loss = HEADS[name]
    labels = np.array([0, 1, 2, 1], np.int32)
    y = labels if loss.startswith("sparse") else np.eye(3, dtype=np.float32)[labels]
    build = lambda: keras.Sequential([keras.Input((4,), dtype=floats()), head()])  # noqa: E731
    true = brute_force(build, normal(4, 4), mean_loss(loss, y)).check(graph=graph)
    assert np.all(true > 0.01)


def test_saturated_probabilities_train_as_in_keras(brute_force):
    # Where a probability is 0 in float32, Keras takes the gradient at the logits it belongs to.
    model = keras.Sequential([keras.Input((1,)), OwnHead(keras.activations.softmax)])
    model.set_weights([np.array([[0.0, 500.0, 0.0]])])
    norms = tfdp.clipping.per_example_gradient_norms(
        model, np.ones((1, 1)), np.array([0]), "sparse_categorical_crossentropy"
    )
    np.testing.assert_allclose(norms, [2**0.5], rtol=1e-6)


class TwoOutputs(layers.Layer):
    """The first output is used to make the second."""

    def build(self, shape):
        self.a = self.add_weight(name="a", shape=(shape[-1], 3))
        self.b = self.add_weight(name="b", shape=(3, 2))

    def call(self, x):
        scores = keras.ops.tanh(keras.ops.matmul(x, self.a))
        return scores, keras.ops.matmul(scores, self.b), scores


class UsesAll(keras.Model):
    def __init__(self):
        super().__init__()
        self.two = TwoOutputs()
        self.head = layers.Dense(1)

    def call(self, x):
        return self.head(keras.ops.concatenate(self.two(self.head_in(x)), -1))

    def head_in(self, x):
        return x


def recurrent(layer, **kwargs):
    def build():
        x = keras.Input((2, 3), dtype=floats())
        return keras.Model(x, layers.Dense(1)(layer(3, unroll=True, **kwargs)(layers.Dense(3)(x))))

    return build


def with_scores():
    x = keras.Input((4, 3), dtype=floats())
    h = layers.Dense(3)(x)
    a, scores = layers.AdditiveAttention()([h, h], return_attention_scores=True)
    pooled = layers.Flatten()(layers.Concatenate()([a, scores]))
    return keras.Model(x, layers.Dense(1)(pooled))


TWICE = {
    "two outputs": (UsesAll, (3,)),
    "gru": (recurrent(layers.GRU), (2, 3)),
    "lstm": (recurrent(layers.LSTM), (2, 3)),
    "rnn": (recurrent(layers.SimpleRNN), (2, 3)),
    "attention scores": (with_scores, (4, 3)),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", TWICE)
def test_an_output_that_feeds_another_counts_once(brute_force, mean_loss, name):
    build, shape = TWICE[name]
    check = brute_force(build, normal(3, *shape), mean_loss("mse", normal(3, 1) + 9))
    check.check(graph=True)


class Drawing(layers.Layer):
    """Draws random numbers in some way."""

    def __init__(self, draw):
        super().__init__()
        self.draw = draw

    def build(self, shape):
        self.w = self.add_weight(name="w", shape=(shape[-1],), initializer="ones")

    def call(self, x):
        return self.draw(x * self.w)


GENERATOR = tf.random.Generator.from_seed(1)
SHARED = keras.random.SeedGenerator(3)
DRAWS = {
    "tf dropout": lambda x: tf.nn.dropout(x, 0.5),
    "tf random": lambda x: x * tf.random.uniform(tf.shape(x)),
    "in a loop": lambda x: tf.map_fn(lambda row: row * tf.random.normal([3]), x),
    "in a branch": lambda x: tf.cond(x[0, 0] > 0, lambda: tf.nn.dropout(x, 0.5), lambda: x),
    "generator": lambda x: x * GENERATOR.uniform(tf.shape(x)),
    "constant seed": lambda x: keras.random.dropout(x, 0.5, seed=7),
    "stateless": lambda x: x * tf.random.stateless_normal(tf.shape(x), [1, 2]),
    "shuffled": lambda x: tf.transpose(tf.random.shuffle(tf.transpose(x))),
}


@pytest.mark.thorough_after(3)
@pytest.mark.parametrize("name", DRAWS)
def test_random_numbers_that_cannot_be_drawn_again_are_refused(name):
    model = keras.Sequential([keras.Input((3,)), Drawing(DRAWS[name]), layers.Dense(1)])
    with pytest.raises(PrivacyError, match="drawing.*keras.random.SeedGenerator"):
        make_clipping_plan(model, tf.zeros((1, 3)))


def test_random_numbers_beside_the_fallback_are_served():
    model = keras.Sequential(
        [keras.Input((3,)), layers.Lambda(lambda x: tf.nn.dropout(x, 0.5)), layers.Dense(1)]
    )
    assert make_clipping_plan(model, tf.zeros((1, 3))).calls


def test_a_seed_that_is_drawn_outside_is_refused():
    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.seeds = keras.random.SeedGenerator(3)
            self.layer = Drawing(lambda x: tf.nn.experimental.stateless_dropout(x, 0.5, self.seed))
            self.seed = None

        def call(self, x):
            self.seed = tf.cast(self.seeds.next(), tf.int32)
            return self.layer(x)

    with pytest.raises(PrivacyError, match="drawing.*keras.random.SeedGenerator"):
        make_clipping_plan(Model(), tf.zeros((1, 3)))


class OwnLSTM(layers.LSTM):
    def call(self, sequences, initial_state=None, mask=None, training=False):
        return super().call(sequences, initial_state, mask, training)


@pytest.mark.thorough
def test_seed_generators_are_served_where_loops_draw():
    model = keras.Sequential(
        [keras.Input((4, 3)), OwnLSTM(2, dropout=0.5, recurrent_dropout=0.5), layers.Dense(1)]
    )
    (lstm, _) = make_clipping_plan(model, tf.zeros((1, 4, 3))).calls.values()
    assert lstm.seeds


class Block(layers.Layer):
    """Without a rule, and without an argument `training` of its own."""

    def __init__(self):
        super().__init__()
        self.dropout = layers.Dropout(0.9)

    def build(self, shape):
        self.w = self.add_weight(name="w", shape=(shape[-1],), initializer="ones")

    def call(self, x):
        return self.dropout(x * self.w)


class Transfer(keras.Model):
    def __init__(self):
        super().__init__()
        self.backbone = keras.Sequential([Block(), layers.Dense(3)])
        self.head = layers.Dense(1)

    def call(self, x):
        return self.head(self.backbone(x, training=False))


@pytest.mark.thorough
def test_a_backbone_that_is_not_in_training_stays_so(brute_force, mean_loss):
    brute_force(Transfer, normal(4, 3), mean_loss("mse", normal(4, 1) + 9)).check()


class Traced(layers.Layer):
    def __init__(self):
        super().__init__()
        self.inner = layers.Dense(3)

    def build(self, shape):
        self.w = self.add_weight(name="w", shape=(shape[-1],), initializer="ones")
        self.inner.build(shape)

    def call(self, x):
        return self.inner(x * self.w)


class TracedApart(Traced):
    call = tf.function(Traced.call)


class CallsTwice(keras.Model):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def call(self, x):
        return self.layer(self.layer(x))


@pytest.mark.thorough
def test_calls_that_are_traced_apart_are_seen(brute_force, mean_loss):
    x, losses = normal(4, 3), mean_loss("mse", normal(4, 3) + 9)
    plain = brute_force(lambda: CallsTwice(Traced()), x, losses)
    true = plain.check()
    apart = CallsTwice(TracedApart())
    for size in (3, 5, 4):
        apart(tf.zeros((size, 3)))  # traced before the plan is made
    apart.set_weights(plain.model.get_weights())
    plain.model = apart
    np.testing.assert_allclose(np.sqrt(plain.private(1.0, graph=True)[0]), true, rtol=1e-5)


class Reading(layers.Layer):
    """Reads its weight, and uses it, in some way."""

    def __init__(self, how):
        super().__init__()
        self.how = how
        self.inner = layers.Dense(3)

    def build(self, shape):
        self.w = self.add_weight(name="w", shape=(shape[-1],), initializer="ones")

    @tf.function
    def helper(self, x):
        return x * self.w

    def call(self, x):
        if self.how == "function":
            return self.helper(x)
        if self.how == "recompute":
            return tf.recompute_grad(lambda x: x * self.w)(x)
        return tf.recompute_grad(self.inner)(x) + self.w


@pytest.mark.thorough_after(1)
@pytest.mark.parametrize("how", ["function", "recompute", "recompute a layer"])
def test_reads_that_cannot_be_followed_are_refused(how):
    model = keras.Sequential([keras.Input((3,)), Reading(how), layers.Dense(1)])
    model(tf.zeros((3, 3)))
    with pytest.raises(PrivacyError, match="(tf.function|tf.recompute_grad)"):
        make_clipping_plan(model, tf.zeros((1, 3)))


def test_rematerialized_layers_are_refused():
    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            with keras.RematScope(mode="full"):
                self.dense = layers.Dense(2)

        def call(self, x):
            return self.dense(x)

    model = Model()
    with pytest.raises(PrivacyError, match="RematScope"):
        make_clipping_plan(model, tf.zeros((1, 3)))


def test_custom_gradients_that_hide_no_weight_are_served(brute_force, mean_loss):
    def build():
        return keras.Sequential([keras.Input((3,), dtype=floats()), layers.Dense(4, "silu"),
                                 Drawing(tf.recompute_grad(lambda x: tf.nn.silu(x))),
                                 layers.Dense(1)])  # fmt: skip

    brute_force(build, normal(4, 3), mean_loss("mse", normal(4, 1) + 9)).check(graph=True)


class Physics(keras.Model):
    """The loss is on a derivative of what the network computes."""

    def __init__(self):
        super().__init__()
        self.hidden, self.out = layers.Dense(4, "tanh"), layers.Dense(1)

    def call(self, x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            u = self.out(self.hidden(x))
        return tape.gradient(u, x)


class Keeps(layers.Layer):
    def build(self, shape):
        self.w = self.add_weight(name="w", shape=(shape[-1],))
        self.v = self.add_weight(name="v", shape=(shape[-1],))

    def call(self, x):
        self.kept = keras.ops.tanh(x * self.w)
        return x * self.v + self.kept


class KeepsOutput(Keeps):
    def call(self, x):
        outputs = super().call(x)
        self.kept = outputs
        return outputs


class ReadsWhatWasKept(keras.Model):
    kind = Keeps

    def __init__(self):
        super().__init__()
        self.keeps, self.out = self.kind(), layers.Dense(1)

    def call(self, x):
        return self.out(self.keeps(x)) * keras.ops.sum(self.keeps.kept, -1, keepdims=True)


class ReadsKeptOutput(ReadsWhatWasKept):
    kind = KeepsOutput


class LooksUp(layers.Layer):
    """Uses a tensor of the batch that it is not given."""

    def __init__(self, beside):
        super().__init__()
        self.beside = beside

    def build(self, shape):
        self.w = self.add_weight(name="w", shape=(shape[-1],))

    def call(self, x):
        return keras.ops.tanh(x * self.w + self.beside[0])


class HandsOver(keras.Model):
    def __init__(self):
        super().__init__()
        self.beside = []
        self.layer, self.out = LooksUp(self.beside), layers.Dense(3)

    def call(self, x):
        self.layer.beside[:] = [keras.ops.square(x)]
        return self.out(self.layer(x))


@pytest.mark.thorough_after(1)
@pytest.mark.parametrize("model", [Physics, ReadsWhatWasKept, ReadsKeptOutput, HandsOver])
def test_what_leaves_a_layer_past_its_outputs_is_served_by_the_layer_around(
    brute_force, mean_loss, model
):
    check = brute_force(model, normal(4, 3), mean_loss("mse", normal(4, 3) + 9))
    check.check()
    check.check(graph=True)


def test_a_plan_sees_derivatives_where_a_step_makes_it():
    with tf.init_scope():
        (planned,) = make_clipping_plan(Physics(), tf.zeros((1, 3))).calls.values()
    assert isinstance(planned.layer, Physics)


@pytest.mark.thorough
def test_a_call_that_was_put_into_an_object_is_what_is_differentiated(brute_force, mean_loss):
    def build():
        layer = layers.Dense(3)
        original = layer.call
        object.__setattr__(layer, "call", lambda x, **_: original(x) * keras.ops.sum(layer.kernel))
        model = keras.Sequential([keras.Input((3,), dtype=floats()), layers.Dense(3), layer])
        return model

    brute_force(build, normal(4, 3), mean_loss("mse", normal(4, 3) + 9)).check()


def test_weights_that_cannot_be_clipped_are_refused():
    class Complex(layers.Layer):
        def build(self, shape):
            self.w = self.add_weight(name="w", shape=(3,), dtype="complex64")

        def call(self, x):
            return keras.ops.real(keras.ops.cast(x, "complex64") * self.w)

    model = keras.Sequential([keras.Input((3,)), Complex(), layers.Dense(1)])
    with pytest.raises(PrivacyError, match="w.*complex64.*real"):
        tfdp.make_private(model)
    float8 = keras.Sequential(
        [keras.Input((3,)), layers.Dense(2, dtype="float8_from_mixed_bfloat16")]
    )
    with pytest.raises(PrivacyError, match="float8"):
        tfdp.make_private(float8)


class Unconnected(keras.Model):
    def __init__(self):
        super().__init__()
        self.first, self.second = layers.Dense(3, name="first"), layers.Dense(1)

    def call(self, x):
        return self.second(keras.ops.stop_gradient(self.first(x)))


def test_variables_that_no_example_moves_are_warned_of(small):
    private = tfdp.make_private(Unconnected())
    private.compile(small.optimizer(), loss="mse", run_eagerly=True)
    x, y = small.data()
    with pytest.warns(UserWarning, match="gradient of exactly zero.*first"):
        private.train_on_batch(x, y.astype("float32")[:, None])


@pytest.mark.thorough
def test_a_mended_model_is_not_warned_of(small, recwarn):
    private = tfdp.make_private(keras.Sequential([layers.Dense(3), layers.Dense(1)]))
    private.compile(small.optimizer(), loss="mse", run_eagerly=True)
    x, y = small.data()
    private.train_on_batch(x, y.astype("float32")[:, None])
    assert not [w for w in recwarn if "exactly zero" in str(w.message)]


class Moody(layers.Layer):
    """Has no rule, and computes what somebody told it before."""

    def build(self, shape):
        self.w = self.add_weight(name="w", shape=(shape[-1],), initializer="ones")
        self.seeds = keras.random.SeedGenerator(3)

    def call(self, x):
        noise = keras.random.normal(keras.ops.shape(x), seed=self.seeds)
        return keras.ops.sin(x * self.w * self.mood) + noise


class SetsMoods(keras.Model):
    def __init__(self, moods):
        super().__init__()
        self.moods, self.layer, self.out = moods, Moody(), layers.Dense(2)

    def call(self, x):
        for mood in self.moods:
            self.layer.mood = mood
            x = self.layer(x)
        return self.out(x)


def test_a_call_that_is_another_when_it_is_run_again_is_refused(small):
    eagerly = {"run_eagerly": True}
    x, y = small.data()
    small.model(SetsMoods([2.0, 2.0]), compile_kwargs=eagerly).train_on_batch(x, y)
    with pytest.raises(PrivacyError, match="'moody.*ran it again .*arguments of `call`"):
        small.model(SetsMoods([1.0, 2.0]), compile_kwargs=eagerly).train_on_batch(x, y)


class DropsLayers(keras.Model):
    """Python decides at every trace which layers run."""

    def __init__(self):
        super().__init__()
        self.blocks = [layers.Dense(3) for _ in range(2)]
        self.traces = 0

    def call(self, x):
        self.traces += 1
        for block in self.blocks[: 1 + self.traces % 2]:
            x = block(x)
        return x


def test_layers_that_python_leaves_out_are_refused():
    with pytest.raises(PrivacyError, match="different layers"):
        make_clipping_plan(DropsLayers(), tf.zeros((1, 3)))


def test_a_plan_is_not_followed_by_other_calls():
    model = keras.Sequential([keras.Input((3,)), layers.Dense(3), layers.Dense(1)])
    plan = make_clipping_plan(model, tf.zeros((1, 3)))
    plan.calls["elsewhere"] = dataclasses.replace(next(iter(plan.calls.values())))
    with pytest.raises(PrivacyError, match="different layers"):
        backward(model, plan, tf.zeros((2, 3)), lambda o: o[:, 0], example_mask_of(None, 2))


@pytest.mark.thorough_after(2)
@pytest.mark.parametrize("layer", [
    lambda: layers.Dense(2), lambda: layers.LayerNormalization(), lambda: layers.GRU(2),
    lambda: layers.Conv1D(2, 2), lambda: layers.EinsumDense("abc,cd->abd", (None, 2)),
])  # fmt: skip
def test_layers_are_called_by_keyword(brute_force, mean_loss, layer):
    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.layer, self.out = layer(), layers.Dense(1)
            self.first = "sequences" if isinstance(self.layer, layers.GRU) else "inputs"

        def call(self, x):
            return self.out(inputs=self.layer(**{self.first: x}))

    def losses(outputs):
        return tf.reduce_sum(tf.reshape(tf.square(outputs - 5.0), [4, -1]), 1)

    brute_force(Model, normal(4, 3, 3), losses).check()
