"""The memory-efficient survivors are those of algorithm 1's naive O(V) implementation.

Distribution tests have a false-alarm rate of 1e-6 each; seeds make them repeatable.
"""

import math

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from tfdp.noise import NoiseSource
from tfdp.noise.draws import AtOnce, distinct_below, each_with_probability
from tfdp.selection import ContributionMap

FALSE_ALARM = 1e-6
ROWS = [[0, 1, 1, 2], [0, 3, -1, -1], [0, 4, 5, -1], [0, 999, -1, -1], [0, 6, -1, -1]]
PRESENT = [True, True, True, True, False]


def naive_contributions(rows, example_mask, num_rows, contribution_norm):
    """V̂ as algorithm 1 writes it, one array of V numbers for each example."""
    total = np.zeros(num_rows)
    for ids, there in zip(rows, example_mask, strict=True):
        v = np.zeros(num_rows)
        v[[j for j in ids if j >= 0]] = 1.0
        if there:
            total += v * min(1.0, contribution_norm / np.linalg.norm(v))
    return total


def replicated(rows, example_mask, num_rows, copies):
    """The same batch in `copies` disjoint ranges of rows: one call makes `copies` draws."""
    rows = np.asarray(rows, np.int64)
    shifted = [np.where(rows >= 0, rows + c * num_rows, -1) for c in range(copies)]
    return np.concatenate(shifted), np.tile(example_mask, copies)


@tf.function(autograph=False, reduce_retracing=True)
def _survivors(rows, example_mask, num_rows, threshold, noise_multiplier, norm, source):
    found, noisy = ContributionMap(rows, example_mask, num_rows, norm)._survivors(
        threshold, noise_multiplier, source
    )
    return found, noisy()


def survivors(rows, example_mask, num_rows, threshold, noise_multiplier, norm=1.0, seed=1):
    found = _survivors(
        tf.constant(rows, tf.int64),
        tf.constant(example_mask, tf.bool),
        num_rows,
        threshold,
        noise_multiplier,
        norm,
        NoiseSource(seed),
    )
    return [t.numpy() for t in found]


@pytest.mark.thorough_after(1)
@pytest.mark.parametrize("threshold, copies", [(0.7, 1_000), (2.0, 3_000), (4.5, 20_000)])
def test_every_row_survives_as_often_as_in_the_naive_algorithm(threshold, copies):
    num_rows, noise_multiplier, norm = 1000, 1.5, 1.2
    data = replicated(ROWS, PRESENT, num_rows, copies)
    rows, _ = survivors(*data, num_rows * copies, threshold, noise_multiplier, norm)
    observed = np.bincount(rows % num_rows, minlength=num_rows)

    mean = naive_contributions(ROWS, PRESENT, num_rows, norm)
    exact = stats.norm.sf((threshold - mean) / (noise_multiplier * norm))
    z = (observed - copies * exact) / np.sqrt(copies * exact * (1 - exact))
    assert stats.chi2.sf(np.sum(z**2), num_rows) > FALSE_ALARM
    touched = mean > 0
    assert touched.sum() == 7
    assert stats.chi2.sf(np.sum(z[touched] ** 2), touched.sum()) > FALSE_ALARM

    draws = 4000
    noise = np.random.default_rng(0).standard_normal((draws, num_rows))
    naive = (mean + noise_multiplier * norm * noise >= threshold).sum(0)
    both = naive + observed
    expected = np.stack([both * draws, both * copies]) / (draws + copies)
    statistic = np.sum((np.stack([naive, observed]) - expected) ** 2 / np.maximum(expected, 1e-9))
    rates = expected.sum(0) / (draws + copies)  # two-sample, each cell a Bernoulli frequency
    statistic /= np.mean(1 - rates[rates > 0])
    assert stats.chi2.sf(statistic, (both > 0).sum()) > FALSE_ALARM


@pytest.mark.parametrize("left", [0, 5, 9])
def test_the_last_untouched_rows_survive_as_often_as_any(left):
    # Nine of ten rows are touched. A step may choose among the one that is left, not among ten.
    source, draws = NoiseSource(7), 1000
    others = [row for row in range(10) if row != left]

    def one(_):
        rows = tf.constant([others], tf.int64)
        found = ContributionMap(rows, tf.constant([True]), 10, 0.1).survivors(0.8, 8.0, source)
        return tf.math.bincount(tf.cast(found, tf.int32), minlength=10, maxlength=10)

    @tf.function(autograph=False)
    def many():
        return tf.map_fn(one, tf.range(draws), parallel_iterations=1)

    survived = many().numpy().sum(0)
    contributions = np.where(np.arange(10) == left, 0.0, 0.1 / 3)
    rates = stats.norm.sf((0.8 - contributions) / 0.8)
    z = (survived - draws * rates) / np.sqrt(draws * rates * (1 - rates))
    assert stats.chi2.sf(np.sum(z**2), 10) > FALSE_ALARM
    assert abs(z[left]) < stats.norm.isf(FALSE_ALARM / 2)


def test_number_of_survivors_of_a_draw_has_the_naive_distribution():
    num_rows, copies, noise_multiplier, threshold = 1000, 5_000, 2.0, 4.0
    rows, _ = survivors(
        *replicated(ROWS, PRESENT, num_rows, copies), num_rows * copies, threshold, noise_multiplier
    )
    untouched = rows[~np.isin(rows % num_rows, [0, 1, 2, 3, 4, 5, 999])]
    counts = np.bincount(untouched // num_rows, minlength=copies)
    law = stats.binom(num_rows - 7, stats.norm.sf(threshold / noise_multiplier))
    edges = np.arange(10, 37)
    probability = np.diff(np.concatenate([[0], law.cdf(edges), [1]]))
    observed = np.histogram(counts, np.concatenate([[-1], edges + 0.5, [num_rows]]))[0]
    assert stats.chisquare(observed, probability * copies).pvalue > FALSE_ALARM


@pytest.mark.parametrize(
    "probability, num_rows", [(1e-1, 10**6), (1e-3, 10**8), (1e-5, 10**10), (1e-8, 2**42)]
)
def test_untouched_rows_survive_with_probability_p_at_uniform_positions(probability, num_rows):
    threshold = float(stats.norm.isf(probability))
    rows, _ = survivors([[3, num_rows - 1]], [True], num_rows, threshold, 1.0)
    rows = rows[~np.isin(rows, [3, num_rows - 1])]
    z = (len(rows) - num_rows * probability) / math.sqrt(num_rows * probability)
    assert abs(z) < stats.norm.isf(FALSE_ALARM / 2)
    assert stats.kstest(rows / num_rows, "uniform").pvalue > FALSE_ALARM
    for modulus in (2, 3, 64):  # positions made in float32 are multiples of large powers of 2
        counts = np.bincount(rows % modulus, minlength=modulus)
        assert stats.chisquare(counts).pvalue > FALSE_ALARM


def test_positions_are_uniform_in_a_table_of_two_to_the_31_rows():
    # Fault 4: positions from gaps in float32.
    num_rows = 2**31
    rows, _ = survivors([[5]], [True], num_rows, float(stats.norm.isf(1e-5)), 1.0)
    assert len(rows) == len(set(rows)) and rows.dtype == np.int64
    assert stats.kstest(rows / num_rows, "uniform").pvalue > FALSE_ALARM
    gaps = np.diff(rows) * len(rows) / num_rows
    assert stats.kstest(gaps, "expon").pvalue > FALSE_ALARM
    assert stats.chisquare(np.bincount(rows % 256, minlength=256)).pvalue > FALSE_ALARM


@pytest.mark.thorough_after(1)
@pytest.mark.parametrize("count, bound", [(2, 5), (4, 6), (3, 3), (0, 3)])
def test_every_subset_is_as_likely_as_every_other(count, bound):
    source, draws = NoiseSource(3), 4000

    @tf.function(autograph=False)
    def many():
        one = tf.function(
            lambda _: distinct_below(
                source, tf.constant(count, tf.int64), tf.constant(bound, tf.int64)
            ),
            autograph=False,
        )
        return tf.map_fn(
            one,
            tf.range(draws),
            parallel_iterations=1,
            fn_output_signature=tf.TensorSpec([None], tf.int64),
        )

    drawn = many().numpy()
    assert drawn.shape == (draws, count)
    kinds, counts = np.unique(drawn, axis=0, return_counts=True)
    assert len(kinds) == math.comb(bound, count)
    if len(kinds) > 1:
        assert stats.chisquare(counts).pvalue > FALSE_ALARM


@pytest.mark.parametrize("probability", [0.15, 0.6])
def test_every_integer_is_in_the_set_with_its_probability_independently(probability):
    source, draws = NoiseSource(6), 4000

    @tf.function(autograph=False)
    def many():
        def one(_):
            found = each_with_probability(source, tf.constant(probability, tf.float64), 3)
            return tf.math.bincount(tf.cast(found, tf.int32), minlength=3, maxlength=3)

        return tf.map_fn(one, tf.range(draws), parallel_iterations=1)

    kinds = (many().numpy() > 0) @ [1, 2, 4]
    members = np.array([bin(kind).count("1") for kind in range(8)])
    law = probability**members * (1 - probability) ** (3 - members)
    assert stats.chisquare(np.bincount(kinds, minlength=8), law * draws).pvalue > FALSE_ALARM


def test_what_cannot_be_used_of_the_bits_is_drawn_again():
    bound = 2**62 + 1  # half of the integers below 2^63 would favour small ones
    found = each_with_probability(NoiseSource(2), tf.constant(1e4 / bound, tf.float64), bound)
    assert abs(len(found) - 1e4) < 100 * stats.norm.isf(FALSE_ALARM / 2)


def test_words_drawn_at_once_are_used_once_and_in_no_loop():
    words = AtOnce(NoiseSource(3), 5)
    drawn = np.concatenate([words.bits((2,)), words.bits((3,))])
    assert len(np.unique(drawn)) == 5
    with pytest.raises(RuntimeError, match="1 more random words, 5 used"):
        words.bits((1,))

    @tf.function(autograph=False)
    def in_a_loop():
        words = AtOnce(NoiseSource(3), 100)
        # Not by tf.map_fn: what is raised inside leaves TensorFlow's variable scope changed.
        one = lambda i, _: (i + 1, words.bits((1,)))  # noqa: E731
        return tf.while_loop(lambda i, _: i < 3, one, (0, tf.zeros([1], tf.uint64)))

    with pytest.raises(RuntimeError, match="inside=True"):
        in_a_loop()


def test_integers_below_a_bound_that_does_not_divide_the_range_of_bits_are_uniform():
    bound = 3 * 2**61  # a plain remainder would double the weight of the first third
    drawn = distinct_below(
        NoiseSource(4), tf.constant(2000, tf.int64), tf.constant(bound, tf.int64)
    )
    assert len(drawn) == 2000
    assert stats.kstest(drawn.numpy() / bound, "uniform").pvalue > FALSE_ALARM


def test_contributions_of_touched_survivors_are_those_of_their_noise():
    # A row that two examples share stands out of the noise: V ~ N(2, 2²) above the threshold.
    draws, threshold = 20_000, 1.0
    rows = np.repeat(np.arange(draws), 2)[:, None]
    found, contributions = survivors(rows, [True] * len(rows), draws, threshold, 2.0, seed=9)
    share = stats.norm.sf((threshold - 2.0) / 2.0)
    z = (len(found) - draws * share) / math.sqrt(draws * share * (1 - share))
    assert abs(z) < stats.norm.isf(FALSE_ALARM / 2)
    law = stats.truncnorm((threshold - 2.0) / 2.0, np.inf, 2.0, 2.0)
    assert stats.kstest(contributions, law.cdf).pvalue > FALSE_ALARM
    assert contributions.min() >= threshold


def test_contributions_of_untouched_survivors_are_the_tail_of_the_noise():
    threshold, noise_multiplier, norm = 6.0, 2.0, 1.5
    rows, contributions = survivors([[0]], [True], 500_000, threshold, noise_multiplier, norm)
    contributions = contributions[rows > 0]
    assert len(contributions) > 5000
    law = stats.truncnorm(threshold / (noise_multiplier * norm), np.inf, 0, noise_multiplier * norm)
    assert stats.kstest(contributions, law.cdf).pvalue > FALSE_ALARM
    assert contributions.min() >= threshold


def test_survivors_come_in_the_order_of_rows_whoever_touched_them():
    rows, _ = survivors([[999], [500], [0]], [True] * 3, 1000, 0.5, 2.0)
    assert np.all(np.diff(rows) > 0)


def test_all_rows_touched_and_no_rows_touched_are_ordinary_cases():
    rows, contributions = survivors([[0, 1, 2]], [True], 3, 0.5, 0.0)
    np.testing.assert_array_equal(rows, [0, 1, 2])
    np.testing.assert_allclose(contributions, 3**-0.5)
    rows, _ = survivors([[0, 1, 2]], [False], 3, 1e-3, 0.0)
    assert len(rows) == 0
    rows, _ = survivors([[-1, -1]], [True], 10**6, 3.0, 1.0)
    assert abs(len(rows) - 1350) < 6 * 37
