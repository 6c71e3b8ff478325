"""Vectorized loops give the right products, without the broadcast that TensorFlow miscomputes."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import tfdp
from tfdp._compat.vectorized import DRAWS, draws_of_a_batch, vectorized_map

RNG = np.random.default_rng(0)


def normal(*shape):
    return RNG.normal(size=shape)


@st.composite
def products(draw):
    """Shapes of two factors of one element, which of them varies, and what is transposed."""
    m, k, n = (draw(st.integers(1, 4)) for _ in range(3))
    batch = draw(st.lists(st.integers(1, 3), max_size=2))
    x_batch, y_batch = (
        [size if draw(st.booleans()) else 1 for size in batch][draw(st.integers(0, len(batch))) :]
        for _ in range(2)
    )
    transposed = draw(st.booleans()), draw(st.booleans())
    x = [*x_batch, *((k, m) if transposed[0] else (m, k))]
    y = [*y_batch, *((n, k) if transposed[1] else (k, n))]
    return x, y, draw(st.sampled_from(["first", "second", "both"])), transposed


@settings(max_examples=60, deadline=None)
@given(products(), st.integers(1, 4))
def test_products_are_those_of_each_element(case, size):
    x_shape, y_shape, varies, (transpose_a, transpose_b) = case
    x = normal(size, *x_shape) if varies != "second" else normal(*x_shape)
    y = normal(size, *y_shape) if varies != "first" else normal(*y_shape)

    def product(x, y):
        return tf.matmul(x, y, transpose_a=transpose_a, transpose_b=transpose_b)

    if varies == "both":
        found = vectorized_map(lambda pair: product(*pair), (tf.constant(x), tf.constant(y)))
    elif varies == "first":
        found = vectorized_map(lambda one: product(one, tf.constant(y)), tf.constant(x))
    else:
        found = vectorized_map(lambda one: product(tf.constant(x), one), tf.constant(y))
    for i in range(size):
        one = x[i] if varies != "second" else x, y[i] if varies != "first" else y
        np.testing.assert_allclose(found[i], product(*one), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("transposed", [False, True])
def test_no_product_is_broadcast_over_the_loop(transposed):
    fixed, varying = tf.constant(normal(4, 3)), tf.constant(normal(5, 2, 4))

    def gradients(one):
        with tf.GradientTape() as tape:
            tape.watch([fixed, one])
            by = tf.transpose(tf.constant(normal(3, 4))) if transposed else fixed
            loss = tf.tanh(tf.matmul(one[tf.newaxis], by)) * fixed[0]
        return tape.gradient(loss, [one, fixed], unconnected_gradients="zero")

    graph = tf.function(lambda: vectorized_map(gradients, varying)).get_concrete_function().graph
    bodies = [graph, *(graph._get_function(name).graph for name in graph._functions)]
    found = [op for body in bodies for op in body.get_operations() if op.type == "BatchMatMulV2"]
    batches = [[tensor.shape[:-2].as_list() for tensor in op.inputs] for op in found]
    # Of the body before it is vectorized: one element by a matrix, which is right.
    batches = [(left, right) for left, right in batches if (left, right) != ([1], [])]
    assert batches, "the gradient of a shared matrix is a product of what varies"
    assert all(left == right for left, right in batches), batches


def of_loop(rows):
    """The gradient of the last state of a loop, which reads from a list and writes to another."""

    def step(i, state, states):
        state = tf.tanh(state * inputs.read(i))
        return i + 1, state, states.write(i, state)

    with tf.GradientTape() as tape:
        tape.watch(rows)
        inputs = tf.TensorArray(tf.float64, 3).unstack(rows)
        states = tf.TensorArray(tf.float64, 3)
        _, last, _ = tf.while_loop(lambda i, *_: i < 3, step, (0, rows[0], states))
    return tape.gradient(last, rows)


@pytest.mark.thorough
def test_gradients_of_loops_are_those_of_each_element():
    x = tf.constant(normal(4, 3, 5))
    found = tf.function(lambda: vectorized_map(of_loop, x))()
    np.testing.assert_allclose(found, [of_loop(one) for one in x], rtol=1e-12)


@pytest.mark.evidence
def test_tensorflow_cannot_vectorize_gradients_of_loops():
    """If it can do so now, tfdp's converters are not needed any more."""
    x = tf.constant(normal(4, 3, 5))
    with pytest.raises(TypeError, match="variant"):
        tf.function(lambda: tf.vectorized_map(of_loop, x, fallback_to_while_loop=False))()


@pytest.mark.thorough
def test_other_vectorized_maps_are_left_alone():
    ones = tf.ones((3, 2, 4))
    graph = (
        tf.function(
            lambda: tf.vectorized_map(lambda one: tf.matmul(one[tf.newaxis], tf.ones((4, 3))), ones)
        )
        .get_concrete_function()
        .graph
    )
    assert [op for op in graph.get_operations() if op.type == "BatchMatMulV2"]


@pytest.mark.thorough_after(1)
@pytest.mark.skipif(tf.__version__ >= "2.22", reason="TensorFlow computes these products rightly")
@pytest.mark.parametrize("axes, refused", [((1, 5), True), ((2, 5), False), ((5,), False)])
def test_layers_that_make_the_product_are_refused(small, axes, refused, monkeypatch):
    product = keras.layers.Lambda(lambda x: tf.matmul(x, tf.ones((4, 3))))
    layers = [keras.Input((*axes, 4)), product, keras.layers.Flatten(), keras.layers.Dense(2)]
    model = small.model(keras.Sequential(layers))
    x = tf.zeros((1, *axes, 4))
    if not refused:
        assert model.clipping_plan(x)
        return
    with pytest.raises(tfdp.PrivacyError, match="TF_ENABLE_ONEDNN_OPTS"):
        model.clipping_plan(x)
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "0")
    assert model.clipping_plan(x)


LAWS = {
    "uniform": tf.random.stateless_uniform,
    "normal": tf.random.stateless_normal,
    "truncated": tf.random.stateless_truncated_normal,
    "integers": lambda shape, seed: tf.random.stateless_uniform(shape, seed, 0, 100, tf.int32),
    "all integers": lambda shape, seed: tf.random.stateless_uniform(
        shape, seed, None, None, tf.int32
    ),
}


@pytest.mark.thorough_after(1)
@pytest.mark.parametrize("law", LAWS)
def test_elements_draw_the_rows_of_their_batch(law):
    draw, seeds = LAWS[law], tf.tile([[3, 4]], [5, 1])
    with draws_of_a_batch():
        found = vectorized_map(lambda seed: draw([1, 2, 3], seed), seeds)
    np.testing.assert_array_equal(found[:, 0], draw([5, 2, 3], [3, 4]))
    apart = vectorized_map(lambda seed: draw([1, 2, 3], seed), seeds)
    np.testing.assert_array_equal(apart, [draw([1, 2, 3], [3, 4])] * 5)


@pytest.mark.thorough
def test_every_law_that_is_drawn_at_once_is_compared():
    graph = tf.function(lambda: [draw([1], [3, 4]) for draw in LAWS.values()])
    operations = graph.get_concrete_function().graph.get_operations()
    assert {op.type for op in operations} >= set(DRAWS)
