"""Layers without a rule that draw random numbers: what is differentiated is what was drawn."""

import logging
import warnings

import keras
import numpy as np
import pytest
import slow
import tensorflow as tf
from keras import layers, ops

from tfdp.clipping import per_example_gradient_norms
from tfdp.clipping.plan.planning import make_clipping_plan
from tfdp.clipping.rules import fallback


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


class Draws(layers.Layer):
    """Reads a weight, and multiplies by random numbers of some shape and law."""

    def __init__(self, draw):
        super().__init__()
        self.draw = draw
        self.dropout = layers.Dropout(0.5)
        self.seeds = keras.random.SeedGenerator(3)

    def build(self, shape):
        self.w = self.add_weight(name="w", shape=(shape[-1], 2))

    def call(self, x, training=None):
        x = ops.tanh(ops.matmul(self.dropout(x, training=training), self.w))
        return x * ops.cast(self.draw(ops.shape(x), self.seeds), x.dtype)


def of_rows(shape, seed):
    first = keras.random.normal(shape, dtype="float32", seed=seed)
    return first + keras.random.truncated_normal((shape[0], 1, 2), dtype="float32", seed=seed)


def in_a_loop(shape, seed):
    return tf.map_fn(lambda _: keras.random.uniform((), dtype="float32", seed=seed), tf.zeros(2))


AT_ONCE = {
    "laws of rows": of_rows,
    "uniform and integers": lambda shape, seed: (
        keras.random.uniform(shape, 1, 2, dtype="float32", seed=seed)
        * ops.cast(keras.random.randint((shape[0], 3, 1), 1, 5, seed=seed), "float32")
    ),
}
APART = {
    "for the batch": lambda shape, seed: keras.random.normal((3, 2), dtype="float32", seed=seed),
    "of another law": lambda shape, seed: keras.random.gamma(shape, 2, dtype="float32", seed=seed),
    "in a loop": in_a_loop,
}


def model_of(draw):
    return lambda: keras.Sequential(
        [
            keras.Input((3, 4), dtype=keras.config.dtype_policy().compute_dtype),
            Draws(draw),
            layers.Flatten(),
            layers.Dense(1),
        ]
    )


def plan_of(check):
    (planned, _) = make_clipping_plan(check.model, check.x).calls.values()
    assert planned.rule is None and len(planned.seeds) == 2
    return planned


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "graph"),
    slow.cases(
        [(name, graph) for name in AT_ONCE for graph in (True, False)],
        slow=[("uniform and integers", True), ("laws of rows", False)],
    ),
)
def test_numbers_of_all_examples_are_drawn_at_once(brute_force, mean_loss, name, graph):
    check = brute_force(
        model_of(AT_ONCE[name]), normal(4, 3, 4), mean_loss("mse", normal(4, 1) + 9)
    )
    assert plan_of(check).draws_at_once
    assert np.all(check.check(graph=graph) > 0.01)


@pytest.mark.parametrize("name", APART)
def test_other_numbers_are_drawn_by_example(brute_force, mean_loss, name):
    check = brute_force(model_of(APART[name]), normal(4, 3, 4), mean_loss("mse", normal(4, 1) + 9))
    assert not plan_of(check).draws_at_once


def test_under_xla_each_example_draws_by_itself(brute_force, mean_loss):
    check = brute_force(model_of(of_rows), normal(3, 3, 4), mean_loss("mse", normal(3, 1)))
    check.model.jit_compile = True
    norms, _ = check.private(1.0, jit_compile=True)
    assert np.all(norms > 1e-4)


@pytest.mark.thorough_after(1)
@pytest.mark.parametrize("graph", [True, False], ids=["graph", "eager"])
@pytest.mark.filterwarnings("ignore:Layer .* has no clipping rule, and TensorFlow cannot")
def test_without_a_vectorized_loop_the_same_is_drawn_and_nan_stays_in_its_example(
    brute_force, mean_loss, monkeypatch, graph
):
    monkeypatch.setattr(fallback, "_vectorized", lambda *args: None)
    x = normal(4, 3, 4)
    check = brute_force(model_of(of_rows), x, mean_loss("mse", normal(4, 1) + 9))
    if not graph:
        check.check()
    without, _ = check.private(1.0, graph=graph)
    x[1] = np.nan
    check.x = tf.constant(x)
    norms, _ = check.private(1.0, graph=graph)
    assert not np.isfinite(norms[1])
    np.testing.assert_allclose(norms[[0, 2, 3]], without[[0, 2, 3]], rtol=1e-5)


def test_a_loop_of_keras_runs_on_all_examples_at_once():
    class Tied(keras.Model):
        """Reads the table itself, so that no layer inside it follows a rule."""

        def __init__(self):
            super().__init__()
            self.table, self.rnn = keras.layers.Embedding(5, 2), keras.layers.SimpleRNN(2)

        def call(self, x):
            return self.rnn(self.table(x)) @ keras.ops.transpose(self.table.embeddings)

    model, x, y = Tied(), np.arange(12).reshape(4, 3) % 5, np.ones((4, 5))
    model(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = per_example_gradient_norms(model, x, y, "mse")
    for i, norm in enumerate(found):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x[i : i + 1]) - 1.0))
        gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
        np.testing.assert_allclose(norm, tf.linalg.global_norm(gradients), rtol=1e-5)


class LoopInLoop(keras.layers.Layer):
    """What TensorFlow cannot run on all examples at once."""

    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], shape[-1]))

    def call(self, x):
        def twice(x):
            return keras.ops.fori_loop(0, 2, lambda i, x: keras.ops.tanh(x @ self.kernel), x)

        return keras.ops.fori_loop(0, 2, lambda i, x: twice(x), x)


@pytest.mark.thorough
def test_a_layer_that_runs_example_by_example_says_so_once_and_logs_nothing():
    model = keras.Sequential([keras.Input((2,)), LoopInLoop(name="own_loop")])
    logged = []
    handler = logging.Handler()
    handler.emit = logged.append
    tf.get_logger().addHandler(handler)
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            x = np.random.default_rng(0).normal(size=(4, 2)).astype(np.float32)
            for _ in range(2):
                per_example_gradient_norms(model, x, np.zeros((4, 2)), "mse")
    finally:
        tf.get_logger().removeHandler(handler)
    assert not [r for r in logged if "pfor" in r.getMessage() or "created at" in r.getMessage()]
    assert (
        sum(
            "'own_loop'" in str(w.message) and "one example at a time" in str(w.message)
            for w in said
        )
        == 1
    )
