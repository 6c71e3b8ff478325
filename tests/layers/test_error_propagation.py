"""The propagated variances against Monte Carlo, and against the paper's own table."""

import numpy as np
import pytest
import tensorflow as tf

from tfdp.layers import error_propagation as propagate

DRAWS = 40_000
GENERATOR = np.random.default_rng(5)


def sampled(values):
    """Mean over features of the variance over draws (axis 0)."""
    return values.var(axis=0).mean()


def test_relu_of_a_standard_normal_is_the_papers_table():
    # Eq. 5.6 as printed (minus c², not minus E²) does not give the table's 0.3408.
    value = propagate.relu(tf.constant([1.0]), tf.zeros((1, 1)))
    assert float(value[0]) == pytest.approx(0.5 - 1 / (2 * np.pi), rel=1e-6)
    assert float(value[0]) == pytest.approx(0.3408, abs=1e-4)


@pytest.mark.thorough_after(2)
@pytest.mark.parametrize("mean", [-1.5, -0.3, 0.0, 0.4, 2.0])
@pytest.mark.parametrize("variance", [1e-8, 0.01, 0.5, 3.0])
def test_relu(mean, variance):
    z = np.linspace(-12, 12, 200_001)
    weight = np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi) * (z[1] - z[0])
    x = np.maximum(mean + np.sqrt(variance) * z, 0)
    exact = np.sum(weight * x**2) - np.sum(weight * x) ** 2
    value = float(propagate.relu(tf.constant([variance]), tf.fill((1, 3), mean))[0])
    assert value == pytest.approx(exact, rel=1e-4, abs=1e-9)


def test_relu_averages_over_units_and_keeps_zero():
    mean = tf.constant([[-5.0, 5.0]])
    assert float(propagate.relu(tf.constant([0.04]), mean)[0]) == pytest.approx(0.02, rel=1e-4)
    np.testing.assert_array_equal(propagate.relu(tf.constant([0.0]), mean), [0.0])


def test_dense():
    inputs, kernel = GENERATOR.normal(size=6), GENERATOR.normal(size=(6, 40))
    error, variance = 0.3, 0.5
    x = inputs + np.sqrt(variance) * GENERATOR.normal(size=(DRAWS // 8, 6))
    w = kernel + error * GENERATOR.normal(size=(DRAWS // 8, 6, 40))
    y = np.einsum("nd,ndk->nk", x, w) + error * GENERATOR.normal(size=(DRAWS // 8, 40))
    value = propagate.dense(*(tf.constant(a, tf.float32) for a in
                              ([variance], [np.sum(inputs**2)], kernel, error)))  # fmt: skip
    assert float(value[0]) == pytest.approx(sampled(y), rel=0.03)


def test_dense_by_hand():
    """Of x = (3, 4) with variance 0.5, a kernel of squares 4 + 9 + 1 + 4 and an error of 0.1."""
    kernel = [[2.0, 3.0], [1.0, 2.0]]
    value = propagate.dense(*map(tf.constant, ([0.5], [25.0], kernel, 0.1)))
    expected = 2 * 0.5 * 0.01 + 0.5 * 18 / 2 + 0.01 * 25 + 0.01
    assert float(value[0]) == pytest.approx(expected, rel=1e-5)


def test_layer_norm_to_first_order():
    inputs, scale = 2.0 * GENERATOR.normal(size=64), GENERATOR.uniform(0.5, 2.0, 64)
    error, variance = 0.05, 0.01

    def normalise(x, g, b):
        spread = x.var(-1, keepdims=True) + 1e-6
        return g * (x - x.mean(-1, keepdims=True)) / np.sqrt(spread) + b

    x = inputs + np.sqrt(variance) * GENERATOR.normal(size=(DRAWS // 4, 64))
    noise = error * GENERATOR.normal(size=(2, DRAWS // 4, 64))
    value = propagate.layer_norm(*(tf.constant(a, tf.float32) for a in
                                   ([variance], inputs[None], scale, error)))  # fmt: skip
    wanted = sampled(normalise(x, scale + noise[0], noise[1]))
    assert float(value[0]) == pytest.approx(wanted, rel=0.05)


def test_attention():
    scores = GENERATOR.dirichlet(np.ones(5), (2, 3, 4))  # (B, heads, T, S)
    variance = GENERATOR.uniform(0.1, 1.0, (2, 3, 5))
    values = np.sqrt(variance)[..., None] * GENERATOR.normal(size=(2, 3, 5, DRAWS))
    wanted = np.einsum("bhts,bhsn->bhtn", scores, values).var(-1)
    found = propagate.attention(tf.constant(variance), tf.constant(scores))
    np.testing.assert_allclose(found, wanted, rtol=0.05)


@pytest.mark.parametrize(("rate", "training", "wanted"), [(0.2, True, 1.25), (0.2, False, 1.0),
                                                          (0.0, True, 1.0)])  # fmt: skip
def test_dropout(rate, training, wanted):
    assert float(propagate.dropout(tf.constant(1.0), rate, training)) == pytest.approx(wanted)
