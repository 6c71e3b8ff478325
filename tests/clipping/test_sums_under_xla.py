"""Norms and clipped sums of a compiled step are those of float64 brute force, in every form."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdp.clipping.rules.embedding import rows_of
from tfdp.clipping.sums.contributions import MATRIX, OuterProduct, PerExampleGradients
from tfdp.clipping.sums.gradients import clipped_sums_of, variable_gradient
from tfdp.clipping.sums.products import POSITIVE, sum_of_squares
from tfdp.runtime.xla import compiling


def compiled(function):
    def compute():
        with compiling(True):
            return function()

    return [x.numpy() for x in tf.function(compute, jit_compile=True, autograph=False)()]


@pytest.mark.thorough_after(1)
@pytest.mark.parametrize("count", [1, 2, 3, 4, 8, 12, 100, 130, 4096])
def test_sums_of_squares(count):
    x = np.random.default_rng(count).normal(size=(5, count)).astype("float32") * 1e3
    (found,) = compiled(lambda: [sum_of_squares(tf.constant(x))])
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, np.sum(x.astype("float64") ** 2, 1), rtol=POSITIVE)


@pytest.mark.thorough
@pytest.mark.parametrize("examples", [3, 256, 257, 320, 333])
@pytest.mark.parametrize("p, r", [(8, 1), (1, 8), (1, 1), (3, 4)])
@pytest.mark.parametrize("length", [1, 2])
def test_products_with_and_without_a_single_column(length, p, r, examples):
    generator = np.random.default_rng(0)
    left = generator.normal(size=(examples, length, p)).astype("float32")
    right = generator.normal(size=(examples, length, r)).astype("float32")
    factors = generator.uniform(0.1, 1.0, examples).astype("float32")
    left[1, 0, 0] = np.nan  # an example that is left out
    kernel = keras.Variable(np.zeros((p, r), "float32"))

    def compute():
        product = OuterProduct(tf.constant(left), tf.constant(right), MATRIX)
        gradient = variable_gradient(kernel, [product])
        norm, bound = gradient.squared_norm()
        sums = clipped_sums_of([gradient], [tf.constant(factors)], tf.math.is_finite(norm))
        return norm, bound, sums[0]

    norm, bound, total = compiled(compute)
    exact = np.einsum("btp,btr->bpr", left.astype("float64"), right.astype("float64"))
    there = np.arange(examples) != 1
    assert not np.isfinite(norm[1])
    norms = np.sum(exact**2, axis=(1, 2))
    # Gradients that exist as tensors are rounded before; the sum below is of them, too.
    rounding = 1e-6 * np.sum(np.abs(left).max(2) * np.abs(right).max(2), axis=1) ** 2 * p * r
    assert np.all(np.abs(norm - norms)[there] <= (bound + (p * r == 1) * rounding)[there])
    expected = np.einsum("b,bpr->pr", factors[there].astype("float64"), exact[there])
    np.testing.assert_allclose(total, expected, rtol=1e-5, atol=2e-5 * np.sqrt(examples))


@pytest.mark.parametrize("examples", [3, 256, 257, 333])
def test_gradients_of_every_example(examples):
    generator = np.random.default_rng(1)
    values = generator.normal(size=(examples, 2, 3)).astype("float32")
    factors = generator.uniform(0.1, 1.0, examples).astype("float32")
    values[0, 1, 2] = np.inf
    variable = keras.Variable(np.zeros((2, 3), "float32"))

    def compute():
        gradient = variable_gradient(variable, [PerExampleGradients(tf.constant(values))])
        norm, _ = gradient.squared_norm()
        sums = clipped_sums_of([gradient], [tf.constant(factors)], tf.math.is_finite(norm))
        return norm, sums[0]

    norm, total = compiled(compute)
    exact = values[1:].astype("float64")
    np.testing.assert_allclose(norm[1:], np.sum(exact**2, axis=(1, 2)), rtol=1e-5)
    expected = np.tensordot(factors[1:].astype("float64"), exact, 1)
    np.testing.assert_allclose(total, expected, rtol=1e-5, atol=2e-5 * np.sqrt(examples))


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_ids_out_of_range_mean_the_row_that_is_looked_up(dtype):
    layer = keras.layers.Embedding(5, 3)
    layer.build()
    ids = np.array([[0, 4, 5, 9, -1, -5], [-6, -99, 2**31 - 1, -(2**31), 1, 2]], dtype)
    if dtype == "int64":
        ids[0, 2:4] = 2**32 + 1, -(2**32) - 1
    s = tf.zeros([*ids.shape, 3])

    looked_up, rows = compiled(lambda: [layer(tf.constant(ids)), rows_of(layer, ids, s).ids])
    assert rows.min() >= 0 and rows.max() <= 4
    np.testing.assert_array_equal(looked_up, layer.embeddings.numpy()[rows])
