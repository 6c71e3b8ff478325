"""What a forward pass may assign: counts, and states of random generators. They tell no data."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from eager_steps import eager_model
from keras import layers

import tfdp
from tfdp.clipping import Rule, per_example_gradient_norms, register_rule
from tfdp.errors import PrivacyError

X = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
Y = np.zeros(40, np.int32)


class Counts(layers.Layer):
    """Counts its calls."""

    def __init__(self, count=lambda layer, x: layer.calls.assign_add(1)):
        super().__init__()
        self.count = count

    def build(self, shape):
        self.w = self.add_weight(name="w", shape=(shape[-1],), initializer="ones")
        self.kept = self.add_weight(name="kept", shape=(), initializer="zeros", trainable=False)
        self.calls = self.add_weight(
            name="calls", shape=(), dtype="int32", initializer="zeros", trainable=False
        )

    def call(self, x):
        self.count(self, x)
        return x * self.w


class Scales(Counts):
    """Scales by what it counted."""

    def call(self, x):
        return super().call(x) / keras.ops.cast(1 + self.calls, x.dtype)


def counting(layer):
    return keras.Sequential([keras.Input((3,)), layer, layers.Dense(2)])


@pytest.mark.thorough
@pytest.mark.parametrize("microbatch_size", [None, 3])
def test_a_layer_counts_its_calls_once_a_step(small, microbatch_size):
    counter = Scales()
    model = small.model(counting(counter), microbatch_size=microbatch_size)
    counter.calls.assign(0)
    model.fit(small.poisson((X, Y), steps_per_epoch=3), verbose=0)
    assert int(counter.calls) == 3


def mean(x):
    return keras.ops.cast(keras.ops.mean(x), "int32")


def by_a_branch(layer, x):
    return tf.cond(x[0, 0] > 0, lambda: (layer.calls.assign_add(1), 0)[1], lambda: 0)


RAW = {
    "data": lambda layer, x: layer.calls.assign_add(mean(x)),
    "rows": lambda layer, x: layer.calls.assign(tf.size(tf.where(x > 0))),
    "another variable": lambda layer, x: (layer.kept.assign(x[0, 0]), layer.calls.assign_add(1)),
    "a weight": lambda layer, x: layer.kept.assign(layer.w[0]),
    "to a weight": lambda layer, x: layer.w.assign(layer.w * 0.5),
    "branch": by_a_branch,
    "function": lambda layer, x: tf.function(lambda: layer.calls.assign_add(1))(),
}


@pytest.mark.thorough
@pytest.mark.parametrize("count", RAW.values(), ids=RAW)
def test_what_is_more_than_a_count_is_refused(small, count):
    with pytest.raises(PrivacyError, match="updated from the batch.*may keep a count"):
        small.model(counting(Counts(count))).fit(small.poisson((X, Y)), verbose=0)


@pytest.mark.thorough
def test_a_name_makes_no_random_generator(small):
    class Named(layers.Layer):
        def build(self, shape):
            self.state = self.add_weight(
                name="seed_generator_state", shape=(3,), initializer="zeros", trainable=False
            )

        def call(self, x):
            self.state.assign(keras.ops.mean(x, 0))
            return x

    base = counting(Named())
    with pytest.raises(PrivacyError, match="seed_generator_state.*updated from the batch"):
        small.model(base).fit(small.poisson((X, Y)), verbose=0)


class Ticks(Counts):
    """Counts its calls, and has no weight that is trained."""

    def call(self, x):
        self.calls.assign_add(1)
        return x

    def build(self, shape):
        super().build(shape)
        self.w.trainable = False


def test_what_is_kept_does_not_tell_how_many_examples_were_drawn():
    def after(present):
        counter, dropout = Ticks(), layers.Dropout(0.5, seed=7)
        base = keras.Sequential([keras.Input((3,)), counter, dropout, layers.Dense(2)])
        model = eager_model(base, microbatch_size=3)
        counter.calls.assign(0)
        weights = (np.arange(12) < present).astype(np.float32)
        for _ in range(2):
            model.train_on_batch(X[:12], Y[:12], weights)
        assert int(counter.calls) == 2
        return dropout.seed_generator.state.numpy()

    first = after(12)
    assert first[0] != 7  # it went on
    for present in (0, 7):
        np.testing.assert_array_equal(after(present), first)


def test_micro_batches_draw_different_numbers():
    class Seen(layers.Layer):
        def __init__(self):
            super().__init__()
            self.seeds = keras.random.SeedGenerator(3)
            self.seen = []

        def call(self, x):
            drawn = keras.random.uniform((), seed=self.seeds)
            if tf.executing_eagerly():
                self.seen.append(float(drawn))
            return x + drawn

    seen = Seen()
    model = eager_model(counting(seen), microbatch_size=3)
    seen.seen.clear()
    for _ in range(2):
        model.train_on_batch(X[:12], Y[:12], np.ones(12))
    assert len(seen.seen) == len(set(seen.seen)) == 8


class Noisy(Scales):
    """Draws nearly the same number for all examples, for which the fallback runs each by itself."""

    def __init__(self):
        super().__init__()
        self.seeds = keras.random.SeedGenerator(3)

    def call(self, x):
        return super().call(x) * keras.random.uniform((), 1.0, 1.00001, seed=self.seeds)


@pytest.mark.parametrize("layer", [Scales, Noisy])
def test_a_layer_that_is_run_again_counts_from_where_it_was(layer):
    counter, x = layer(), keras.Input((3,))
    model = keras.Model(x, counter(layers.ReLU()(counter(x))))
    y = np.ones((4, 3), np.float32)
    counter.calls.assign(0)
    found = per_example_gradient_norms(model, X[:4], y, "mse")
    assert int(counter.calls) == 2
    for i in range(4):  # w·relu(w·x / 2) / 3
        x = np.maximum(X[i], 0.0)
        gradient = 2 / 3 * (x / 6 - 1) * 2 * x / 6
        assert found[i] == pytest.approx(np.linalg.norm(gradient), rel=1e-4)


@pytest.mark.thorough
def test_comparing_a_rule_of_ones_own_counts_nothing(small):
    class Ruled(Scales):
        pass

    @register_rule(Ruled)
    class ScaleRule(Rule):
        def variables(self, layer, args, kwargs):
            return [layer.w]

        def contributions(self, layer, args, kwargs, gradients):
            scaled = args[0] / tf.cast(1 + layer.calls, args[0].dtype)
            return [(layer.w, tfdp.clipping.PerExampleGradients(gradients[0] * scaled))]

    model = small.model(counting(Ruled()))
    model.fit(small.poisson((X, Y), steps_per_epoch=4), verbose=0)
    assert int(model.layers[0].layers[0].calls) == 4


def test_draws_in_a_loop_around_no_weight_are_refused_clearly(small):
    class Loops(layers.Layer):
        def __init__(self):
            super().__init__()
            self.seeds = keras.random.SeedGenerator(3)

        def call(self, x):
            def body(i, h):
                return i + 1, keras.random.dropout(h, 0.5, seed=self.seeds)

            return keras.ops.while_loop(lambda i, h: i < 3, body, (0, x), maximum_iterations=3)[1]

    with pytest.raises(PrivacyError, match="random generator.*draws inside a loop"):
        small.model(counting(Loops())).fit(small.poisson((X, Y)), verbose=0)
