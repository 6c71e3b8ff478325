"""Both mechanisms have the distribution that is accounted for.

Statistical tests reject at 1e-6 each, with fixed seeds.
"""

import time

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from tfdp.attention_release.chi_square import WORDS, chi_square_from_bits
from tfdp.attention_release.mechanisms import (
    noisy_gram,
    noisy_product,
    rounded,
    sampled_covariance,
)
from tfdp.noise import ServingNoiseSource, standard_normal_from_bits

FALSE_ALARM = 1e-6


@pytest.fixture
def source():
    return ServingNoiseSource(seed=7)


def drawn_k_samples(sigma, num_samples, draws, rng):
    """The paper's algorithm, literally and by numpy: k draws from N(0, Sigma), their covariance."""
    g = np.linalg.cholesky(sigma) @ rng.standard_normal((draws, len(sigma), num_samples))
    return g @ np.swapaxes(g, 1, 2) / num_samples


def k_sample(x, ridge, num_samples, source):
    """The same with normals of true tails, as a release would have to take them."""
    n = x.shape[-2]
    sigma = tf.matmul(x, x, transpose_b=True) + ridge * tf.eye(n, dtype=tf.float64)
    shape = tf.concat([tf.shape(x)[:-1], [num_samples]], 0)
    g = tf.linalg.cholesky(sigma) @ standard_normal_from_bits(source.bits(shape))
    return tf.matmul(g, g, transpose_b=True) / num_samples


@pytest.mark.thorough
@pytest.mark.parametrize(
    "degrees", [(1, 2), (3, 4), (17, 1000), (99_999, 10**6), (10**11, 1)], ids=str
)
def test_chi_square_variates_have_the_chi_square_distribution(degrees, source):
    draws = chi_square_from_bits(source.bits([50_000, 2, WORDS]), degrees).numpy()
    for column, one in zip(draws.T, degrees, strict=True):
        assert stats.kstest(column, stats.chi2(one).cdf).pvalue > FALSE_ALARM
    assert abs(np.corrcoef(draws.T)[0, 1]) < 5 / np.sqrt(len(draws))


def test_chi_square_variates_have_true_tails():
    bits = np.full([1, WORDS], 2**63, np.uint64)
    bits[0, 17:] = 2**40  # uniforms near 0: whatever is proposed is accepted
    for word, expected in ((np.uint64(2**9), 1), (np.uint64(2**9 + 1), -1)):
        bits[0, 1] = word  # a normal 8.3 standard deviations out; tf.random.normal stops at 5.678
        draw = chi_square_from_bits(tf.constant(bits), [10_000]).numpy()[0]
        assert expected * (draw - 10_000) / np.sqrt(20_000) > 8


@pytest.mark.parametrize("degrees", [2, 3, 4])
@pytest.mark.parametrize("factor, taken", [(0.99, 1), (1.01, 2)])
def test_a_proposal_is_accepted_up_to_its_probability_and_not_beyond(degrees, factor, taken):
    """The first of two proposals is taken if its uniform number is just below the probability."""
    bits = np.full([1, WORDS], 2**63, np.uint64)
    bits[0, 1] = 2**58  # a normal 2.2 standard deviations out
    z = standard_normal_from_bits(tf.constant(bits)).numpy()[0]
    shape = degrees / 2  # Marsaglia and Tsang (2000)
    d = shape - 1 / 3
    v = (1 + z / np.sqrt(9 * d)) ** 3
    probability = np.exp(z[1] ** 2 / 2 + d - d * v[1] + d * np.log(v[1]))
    assert 0.5 < probability < 0.97
    bits[0, 17] = np.uint64(factor * probability * 2.0**64)
    bits[0, 18] = 2**40  # a uniform number near 0: the second is accepted
    draw = chi_square_from_bits(tf.constant(bits), [degrees]).numpy()[0]
    assert draw == pytest.approx(2 * d * v[taken], rel=1e-12)


def test_a_proposal_below_zero_is_never_accepted():
    bits = np.full([1, WORDS], 2**63, np.uint64)
    bits[0, 17:] = 2**40  # uniform numbers near 0
    bits[0, 1] = 2**9 + 1  # a normal of -8.3, whose 1 + cz is below 0
    z = standard_normal_from_bits(tf.constant(bits)).numpy()[0, 2]
    draw = chi_square_from_bits(tf.constant(bits), [2]).numpy()[0]
    assert draw == pytest.approx(4 / 3 * (1 + z / np.sqrt(6)) ** 3, rel=1e-12)


@pytest.mark.thorough
@pytest.mark.parametrize("num_samples", [1, 2, 3, 12, 400])
def test_bartlett_and_k_samples_have_one_distribution(num_samples, source):
    rng = np.random.default_rng(0)
    x = rng.normal(size=[3, 2])
    ridge, draws = 0.5, 20_000
    sigma = x @ x.T + ridge * np.eye(3)
    batch = tf.tile(tf.constant(x)[None], [draws, 1, 1])
    fast = sampled_covariance(batch, ridge, num_samples, source).numpy()
    slow = drawn_k_samples(sigma, num_samples, draws, rng)
    upper = np.triu_indices(3)
    i, j = upper
    exact = (
        sigma[i][:, i] * sigma[j][:, j] + sigma[i][:, j] * sigma[j][:, i]
    ) / num_samples  # Isserlis
    for sample in (fast, slow):
        entries = sample[:, i, j]
        error = (entries.mean(0) - sigma[i, j]) / np.sqrt(np.diag(exact) / draws)
        assert np.abs(error).max() < 5.5
        centred = entries - sigma[i, j]
        products = centred[:, :, None] * centred[:, None, :]
        error = (products.mean(0) - exact) / (products.std(0) / np.sqrt(draws))
        assert np.abs(error).max() < 6
    for a, b in zip(*upper, strict=True):
        assert stats.ks_2samp(fast[:, a, b], slow[:, a, b]).pvalue > FALSE_ALARM
    determinant = np.linalg.det(fast), np.linalg.det(slow)  # a function of all entries at once
    if num_samples >= 3:
        assert stats.ks_2samp(*determinant).pvalue > FALSE_ALARM


def test_sample_covariance_is_symmetric_positive_semidefinite_of_rank_k(source):
    x = tf.constant(np.random.default_rng(1).normal(size=[4, 9, 5]))
    for num_samples in (2, 9, 5000):
        released = sampled_covariance(x, 0.3, num_samples, source).numpy()
        np.testing.assert_allclose(released, np.swapaxes(released, 1, 2), rtol=1e-11)
        eigenvalues = np.linalg.eigvalsh(released)
        assert eigenvalues.min() > -1e-12 * eigenvalues.max()
        assert np.all(np.linalg.matrix_rank(released) == min(num_samples, 9))


@pytest.mark.thorough
@pytest.mark.parametrize(
    "num_samples, factor", [(10_000, 10), pytest.param(100_000, 100, marks=pytest.mark.evidence)]
)
def test_bartlett_is_many_times_faster_than_k_samples(source, num_samples, factor):
    x = tf.constant(np.random.default_rng(2).normal(size=[128, 64]))
    seconds = {}
    for name, mechanism in (("slow", k_sample), ("fast", sampled_covariance)):
        run = tf.function(
            lambda x, mechanism=mechanism: mechanism(x, 1.0, num_samples, source), autograph=False
        )
        run(x)
        times = []
        for _ in range(2 if name == "slow" else 20):
            start = time.perf_counter()
            run(x).numpy()
            times.append(time.perf_counter() - start)
        seconds[name] = min(times)
    print(f"Bartlett {seconds['slow'] / seconds['fast']:.0f} times faster")
    assert seconds["slow"] > factor * seconds["fast"], seconds


@pytest.mark.thorough
def test_gram_noise_is_isotropic_in_frobenius_norm(source):
    x = np.random.default_rng(3).normal(size=[4, 3])
    stddev, draws = 2.5, 30_000
    batch = tf.tile(tf.constant(x)[None], [draws, 1, 1])
    noise = noisy_gram(batch, 4.0, stddev / 4.0, source).numpy() - x @ x.T
    np.testing.assert_allclose(noise, np.swapaxes(noise, 1, 2), rtol=0, atol=1e-13)
    i, j = np.triu_indices(4)
    coordinates = noise[:, i, j] * np.where(i == j, 1.0, np.sqrt(2)) / stddev
    for column in coordinates.T:
        assert stats.kstest(column, "norm").pvalue > FALSE_ALARM
    correlation = np.corrcoef(coordinates.T) - np.eye(len(i))
    assert np.abs(correlation).max() < 6 / np.sqrt(draws)


@pytest.mark.thorough
def test_product_noise_is_independent_on_every_entry(source):
    q, k = np.random.default_rng(4).normal(size=[2, 3, 5])
    stddev, draws = 0.7, 30_000
    batch = tf.zeros([draws, 1, 1], tf.float64)
    noise = noisy_product(batch + q, batch + k, 0.2, stddev / 0.2, source).numpy() - q @ k.T
    coordinates = noise.reshape(draws, 9) / stddev
    for column in coordinates.T:
        assert stats.kstest(column, "norm").pvalue > FALSE_ALARM
    assert np.abs(np.corrcoef(coordinates.T) - np.eye(9)).max() < 6 / np.sqrt(draws)


def test_examples_and_heads_have_noise_of_their_own(source):
    x = tf.zeros([2, 2, 3, 2], tf.float64)
    for release in (
        noisy_gram(x, 1.0, 1.0, source),
        noisy_product(x, x, 1.0, 1.0, source),
        sampled_covariance(x, 1.0, 20, source),
    ):
        corner = release.numpy()[..., 0, 1].ravel()
        assert len(set(corner)) == 4


class GridSeen:
    """Stands for a source: keeps the grid, and adds nothing."""

    def release(self, values, grid, scale=None):
        self.grid = grid
        return values


@pytest.mark.parametrize("mechanism", [noisy_gram, noisy_product])
def test_the_grid_is_as_fine_as_all_entries_of_the_matrix_need(mechanism):
    source, x = GridSeen(), tf.ones([3, 8, 2], tf.float64)
    mechanism(*([x] if mechanism is noisy_gram else [x, x]), 4.0, 0.5, source)
    # 2^-20 of the sensitivity, by the root of 64 entries.
    assert float(source.grid.step) == 2.0**-20 * 4 / 8
    # What rounding to the grid moves, and clipping may exceed, is made up for.
    assert float(source.grid.stddev) == 0.5 * 4 * (1 + 2.0**-19 + 2.0**-20)


def test_a_sampled_covariance_is_rounded_to_a_grid():
    exact = np.random.default_rng(5).normal(size=[2, 4, 4])
    step = 2.0**-20 * 8 / 4  # a ridge of 8, 16 entries
    expected = np.round(exact / step) * step
    assert np.all(expected != exact)
    np.testing.assert_array_equal(rounded(tf.constant(exact), 8.0), expected)
