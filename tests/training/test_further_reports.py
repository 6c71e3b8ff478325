"""Models that people could not train privately elsewhere, written as they would write them here."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from eager_steps import eager_model
from keras import layers, ops
from small_models import Small

import tfdp
from tfdp.clipping import per_example_gradient_norms
from tfdp.errors import PrivacyError

N = 40
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(N, 4)).astype("float32"), RNG.normal(size=(N, 1)).astype("float32")


def check(model, x, y):
    """Norms are those of single examples, by a tape; and a step is charged."""
    model(tf.nest.map_structure(lambda a: a[:1], x))
    few = tf.nest.map_structure(lambda a: a[:6], x)
    norms = per_example_gradient_norms(model, few, y[:6], keras.losses.MeanSquaredError())
    weights = [v.value for v in model.trainable_variables]
    for i, norm in enumerate(norms):
        one = tf.nest.map_structure(lambda a, i=i: a[i : i + 1], few)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(one) - y[i : i + 1]) ** 2)
        gradients = [tf.convert_to_tensor(g) for g in tape.gradient(loss, weights) if g is not None]
        assert norm == pytest.approx(float(tf.linalg.global_norm(gradients)), rel=1e-4)
    private = eager_model(model, "mse")
    private.fit(Small.poisson((x, y), steps_per_epoch=1), verbose=0)
    assert private.optimizer.steps_taken == 1
    assert 0 < private.privacy_statement(1e-3).epsilon < np.inf


@pytest.mark.thorough
def test_word2vec_looks_one_table_up_with_two_lengths():
    word, one, five = keras.Input((), dtype="int32"), *(
        keras.Input((k,), dtype="int32") for k in (1, 5)
    )  # fmt: skip
    vector, context = layers.Embedding(30, 4)(word)[:, None], layers.Embedding(30, 4)
    scores = [ops.sum(vector * context(ids), -1) for ids in (one, five)]
    model = keras.Model([word, one, five], ops.concatenate(scores, -1))
    x = tuple(RNG.integers(0, 30, shape) for shape in ((N,), (N, 1), (N, 5)))
    check(model, x, np.tile(np.float32([1, 0, 0, 0, 0, 0]), (N, 1)))


class Decoder(keras.Model):
    """One normalization behind each of its blocks."""

    def __init__(self):
        super().__init__()
        self.blocks = [layers.Dense(4, "relu") for _ in range(3)]
        self.norm, self.head = layers.LayerNormalization(), layers.Dense(1)

    def call(self, x):
        found = []
        for block in self.blocks:
            x = x + block(x)
            found.append(self.head(self.norm(x)))
        return ops.concatenate(found, -1)


@pytest.mark.thorough
def test_one_normalization_behind_each_block():
    check(Decoder(), X, np.repeat(Y, 3, 1))


class Denoiser(keras.Model):
    """Inputs by name, one of them the time step."""

    def __init__(self):
        super().__init__()
        self.time, self.down = layers.Embedding(10, 8), layers.Dense(8, "silu")
        self.up = layers.Dense(4)

    def call(self, inputs):
        h = self.down(inputs["x"]) + self.time(inputs["timesteps"])
        return self.up(ops.concatenate([h, inputs["x"]], -1))


@pytest.mark.thorough
def test_a_diffusion_model_takes_noised_data_and_time_steps():
    check(Denoiser(), {"x": X, "timesteps": RNG.integers(0, 10, N)}, X[::-1].copy())


class DecayedAttention(layers.Layer):
    """Scores decay with a distance that is computed from scores, without a gradient."""

    def build(self, shape):
        self.parts = [layers.Dense(4) for _ in range(3)]
        for part in self.parts:
            part.build(shape)
        self.gamma = self.add_weight(shape=(), initializer="ones", name="gamma")

    def call(self, x):
        q, k, v = (part(x) for part in self.parts)
        scores = ops.matmul(q, ops.transpose(k, (0, 2, 1)))
        distance = ops.cumsum(ops.stop_gradient(ops.softmax(scores)), -1)
        decay = ops.exp(-ops.softplus(self.gamma) * distance)
        return ops.matmul(ops.softmax(scores * decay), v)


@pytest.mark.thorough
def test_attention_that_decays_with_a_distance():
    inside = [DecayedAttention(), layers.Flatten(), layers.Dense(1)]
    x = RNG.normal(size=(N, 5, 4)).astype("float32")
    check(keras.Sequential([keras.Input((5, 4)), *inside]), x, Y)


@pytest.mark.thorough
def test_two_gru_layers_and_a_dense_one():
    inside = [layers.GRU(4, return_sequences=True), layers.GRU(3), layers.Dense(1)]
    x = RNG.normal(size=(N, 5, 4)).astype("float32")
    check(keras.Sequential([keras.Input((5, 4)), *inside]), x, Y)


def test_a_regularized_layer_and_draws_without_a_record_train():
    inside = [layers.Dense(3, kernel_regularizer="l2"), layers.Dense(1)]
    base = keras.Sequential([keras.Input((4,)), *inside])
    model = tfdp.make_private(base, validate=False)
    optimizer = tfdp.optimizers.DPOptimizer("sgd", noise_multiplier=1.0)
    model.compile(optimizer, loss="mse", run_eagerly=True)
    few = Small.poisson((X, Y), batch=1, steps_per_epoch=8)  # a third of the draws is empty
    logs = model.fit(few, verbose=0).history
    assert model.optimizer.steps_taken == 8 and np.isfinite(logs["loss"]).all()


@pytest.mark.thorough
def test_an_embedding_trains_with_a_clipnorm_of_the_wrapped_optimizer():
    inside = [layers.Embedding(10, 4), layers.Flatten(), layers.Dense(1)]
    model = tfdp.make_private(keras.Sequential([keras.Input((5,), dtype="int32"), *inside]))
    adam = keras.optimizers.Adam(0.01, clipnorm=100)
    model.compile(tfdp.optimizers.DPOptimizer(adam, noise_multiplier=1.0), loss="mse")
    ids = RNG.integers(0, 10, (N, 5))
    model.fit(Small.poisson((ids, Y), steps_per_epoch=1), verbose=0)
    assert model.optimizer.steps_taken == 1


@pytest.mark.thorough
def test_a_model_of_words_to_which_layers_were_added():
    model = keras.Sequential()
    for layer in (keras.Input((), dtype="string"), layers.StringLookup(vocabulary=["a", "b"]),
                  layers.Embedding(3, 4), layers.Dense(1)):  # fmt: skip
        model.add(layer)
    model = eager_model(model, "mse")
    words = RNG.choice(["a", "b", "c"], N)
    model.fit(Small.poisson((words, Y), steps_per_epoch=1), verbose=0)
    assert model.optimizer.steps_taken == 1


@pytest.mark.thorough
def test_weights_of_a_checkpoint_bring_their_charges_and_train_on(tmp_path):
    path = tmp_path / "model.weights.h5"
    first, second = eager_model(), eager_model()
    first.fit(Small.poisson(steps_per_epoch=2), verbose=0)
    first.save_weights(path)
    second.load_weights(path)
    second.fit(Small.poisson(steps_per_epoch=2), verbose=0)
    epsilons = [m.privacy_statement(1e-3).epsilon for m in (first, second)]
    assert epsilons[1] > epsilons[0]


def test_gradients_of_a_tape_name_the_loop_that_works():
    model = eager_model(keras.Sequential([keras.Input((4,)), layers.Dense(1)]), "mse")
    weights = [v.value for v in model.trainable_variables]
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(X) - Y) ** 2)
    with pytest.raises(PrivacyError, match="train_on_batch` on the batches that"):
        model.optimizer.apply(tape.gradient(loss, weights), model.trainable_variables)


def test_a_graph_convolution_over_all_records_is_explained():
    adjacency = tf.eye(N)
    mixing = layers.Lambda(lambda x: ops.matmul(adjacency, x))
    model = keras.Sequential([keras.Input((4,)), mixing, layers.Dense(1)])
    private = tfdp.make_private(model)
    private.compile(tfdp.optimizers.DPOptimizer("sgd", noise_multiplier=1.0), loss="mse")
    with pytest.raises(ValueError, match="Dimensions must be equal") as raised:
        private.fit(Small.poisson((X, Y), steps_per_epoch=1), verbose=0)
    assert "needs another number" in raised.value.__notes__[-1]
