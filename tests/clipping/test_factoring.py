"""Layers without a rule: products are found in what was formed for each example."""

import keras
import numpy as np
import pytest
import slow
import tensorflow as tf
from keras import layers, ops

from tfdp.clipping import OuterProduct, PerExampleGradients, engine
from tfdp.clipping.sums.factoring import contributions_in

SIZE, LENGTH, IN, OUT = 4, 5, 6, 6  # square: no shape tells a matrix from its transpose


class Reads(layers.Layer):
    """A layer of one's own, which reads its weight in some way."""

    def __init__(self, way, shape=(IN, OUT)):
        super().__init__()
        self.way, self.shape_of_w = way, shape

    def build(self, shape):
        self.w = self.add_weight(name="w", shape=self.shape_of_w)

    def call(self, x):
        return ops.tanh(self.way(x, self.w))


WAYS = {
    "ops.matmul": ops.matmul,
    "tf.matmul": tf.matmul,
    "tensordot": lambda x, w: tf.tensordot(x, w, 1),
    "transposed": lambda x, w: ops.matmul(x, ops.transpose(w)),
    "twice": lambda x, w: ops.matmul(ops.tanh(ops.matmul(x, w)), w),
    "there and back": lambda x, w: ops.matmul(ops.tanh(ops.matmul(x, w)), ops.transpose(w)),
}


def seen_in(brute, **kwargs):
    """The contributions to each variable in one check of a traced step."""
    seen, original = {}, engine.variable_gradient

    def watched(variable, contributions):
        if not tf.executing_eagerly():
            seen[variable.name] = [type(c) for c in contributions]
        return original(variable, contributions)

    engine.variable_gradient = watched
    try:
        brute.check(graph=True, **kwargs)
    finally:
        engine.variable_gradient = original
    return seen


VECTORS, SEQUENCES = (IN,), (LENGTH, IN)


@pytest.mark.thorough_after(2)
@pytest.mark.parametrize(
    ("name", "shape"),
    slow.cases(
        [(name, shape) for name in WAYS for shape in (VECTORS, SEQUENCES)],
        slow=[(name, VECTORS) for name in WAYS if name not in ("ops.matmul", "there and back")],
    ),
)
def test_products_are_exact_and_never_formed(brute_force, mean_loss, name, shape):
    def build():
        return keras.Sequential([keras.Input(shape, dtype=keras.config.floatx()),
                                 Reads(WAYS[name]), layers.Flatten(), layers.Dense(1)])  # fmt: skip

    rng = np.random.default_rng(1)
    y = rng.normal(size=(SIZE, 1))
    x = rng.normal(size=(SIZE, *shape)).astype("float32")
    seen = seen_in(brute_force(build, x, mean_loss("mse", y)))
    assert set(seen["w"]) == {OuterProduct}
    assert len(seen["w"]) == (2 if name in ("twice", "there and back") else 1)


@pytest.mark.thorough
def test_a_weight_of_more_axes_keeps_them(brute_force, mean_loss):
    def way(x, w):
        return ops.matmul(x, ops.reshape(w, (IN, 6)))

    def build():
        return keras.Sequential([keras.Input((LENGTH, IN), dtype=keras.config.floatx()),
                                 Reads(way, (IN, 2, 3)), layers.Flatten(),
                                 layers.Dense(1)])  # fmt: skip

    rng = np.random.default_rng(1)
    x = rng.normal(size=(SIZE, LENGTH, IN)).astype("float32")
    seen = seen_in(brute_force(build, x, mean_loss("mse", rng.normal(size=(SIZE, 1)))))
    assert seen["w"] == [OuterProduct]


def multiplied(contribution, shape):
    if isinstance(contribution, PerExampleGradients):
        return contribution.values
    matrix = tf.matmul(contribution.left, contribution.right, transpose_a=True)
    return contribution.layout.to_variable(matrix, shape)


def product(x, y, **kwargs):
    return tf.matmul(x, y, transpose_a=True, **kwargs)


# What is made of two tensors (B, T, n), and whether it is to be seen as products of factors.
FORMS = {
    "product": (product, True),
    "other sides": (lambda x, y: tf.matmul(tf.linalg.matrix_transpose(x), y), True),
    "right one": (
        lambda x, y: product(x, tf.linalg.matrix_transpose(y), transpose_b=True), True,
    ),
    "sum": (lambda x, y: product(x, y) + product(y, x), True),
    "many": (lambda x, y: tf.add_n([product(x, y), product(x, x), product(y, y)]), True),
    "transpose": (lambda x, y: tf.transpose(product(x, y), [0, 2, 1]), True),
    "more axes": (lambda x, y: tf.reshape(product(x, y), [SIZE, IN, 2, 3]), True),
    "broadcast axis": (
        lambda x, y: tf.reduce_sum(product(x[:, tf.newaxis], y[:, tf.newaxis]), 1), True,
    ),
    # From here on the factors are those of something else.
    "row by row": (lambda x, y: tf.reshape(product(x, y), [SIZE, IN * OUT]), False),
    "cut and turned": (
        lambda x, y: tf.reshape(
            tf.transpose(tf.reshape(product(x, y), [SIZE, 9, 4]), [0, 2, 1]), [SIZE, IN, OUT]
        ), False,
    ),
    "cut rows": (lambda x, y: tf.reshape(product(x, y), [SIZE, 4, 9]), False),
    "sum of rows": (lambda x, y: tf.reduce_sum(product(x, y), 1), False),
    "scaled": (lambda x, y: 2.0 * product(x, y), False),
    "plus a column": (lambda x, y: product(x, y) + x[:, 0, :, tf.newaxis], False),
    "plus another": (lambda x, y: product(x, y) + tf.exp(product(y, x)), False),
    "plus the first": (lambda x, y: product(x, y) + product(x[:1], y[:1]), False),
    "two matrices": (lambda x, y: product(tf.stack([x, y], 1), tf.stack([y, y], 1)), False),
    "plus one for all": (lambda x, y: product(x, y) + product(x, y)[:1], False),
    "one for all": (lambda x, y: product(x[:1], y), False),
    "of two axes": (
        lambda x, y: tf.reduce_sum(product(tf.stack([x, y], 1), tf.stack([y, y], 1)), 1), False,
    ),
    "other order": (lambda x, y: tf.transpose(product(x, y), [1, 0, 2])[:SIZE], False),
    "difference": (lambda x, y: product(x, y) - product(y, x), False),
    "low precision": (
        lambda x, y: product(tf.cast(x, tf.bfloat16), tf.cast(y, tf.bfloat16)), False,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_factors_are_found_where_they_are_and_nowhere_else(name):
    form, factored = FORMS[name]
    kinds = []

    @tf.function(autograph=False)
    def both(x, y):
        gradient = form(x, y)
        found = contributions_in(gradient)
        kinds[:] = {type(c) for c in found}
        again = tf.add_n([multiplied(c, gradient.shape[1:]) for c in found])
        return tf.cast(gradient, tf.float32), again

    rng = np.random.default_rng(2)
    x, y = (tf.constant(rng.normal(size=(SIZE, LENGTH, IN)), tf.float32) for _ in range(2))
    gradient, again = both(x, y)
    np.testing.assert_allclose(again, gradient, rtol=1e-5, atol=1e-5)
    assert kinds == [OuterProduct if factored else PerExampleGradients]


def test_factors_of_a_batch_of_unknown_size():
    kinds = []

    @tf.function(autograph=False, input_signature=[tf.TensorSpec((None, LENGTH, IN))] * 2)
    def again(x, y):
        (found,) = contributions_in(product(x, y))
        kinds.append(type(found))
        return multiplied(found, (IN, OUT))

    x = tf.random.normal((3, LENGTH, IN))
    np.testing.assert_allclose(again(x, x + 1), product(x, x + 1), rtol=1e-5, atol=1e-5)
    assert kinds == [OuterProduct]


def test_tensors_without_a_graph_are_taken_as_they_are():
    (found,) = contributions_in(tf.ones((2, 3, 4)))
    assert isinstance(found, PerExampleGradients)
