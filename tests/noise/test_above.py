"""Entries above a threshold: the law of a dense release, without its memory.

Distribution tests have a false-alarm rate of 1e-6.
"""

import math

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats
from tensorflow.python.framework import ops

from tfdp.noise import Grid, NoiseSource, above, entries_above

FALSE_ALARM = 1e-6
PLACES = np.array([0, 3, 4, 17, 998], np.int64)
SUMS = np.array([0.3, 2.5, -1.0, 0.7, 0.7])
SIZE = 1000


def found(copies, threshold, stddev=1.3, seed=1, coordinates=50):
    """`copies` independent arrays of SIZE entries in one call: place, value."""
    places = (PLACES + SIZE * np.arange(copies)[:, None]).ravel()
    grid = Grid(stddev, 1.0, coordinates, rounding=0.0)
    return grid, *entries_above(
        NoiseSource(seed), places, np.tile(SUMS, copies), SIZE * copies, grid, threshold
    )


def dense():
    values = np.zeros(SIZE)
    values[PLACES] = SUMS
    return values


def _p_value(counts, rates, copies):
    """Of counts that are Binomial(copies, rates); those of which few are expected count as one."""
    few = copies * rates < 10
    counts = np.append(counts[~few], counts[few].sum())
    variances = copies * np.append(rates[~few] * (1 - rates[~few]), rates[few].sum())
    expected = copies * np.append(rates[~few], rates[few].sum())
    z2 = (counts - expected) ** 2 / np.maximum(variances, 1)
    if variances[-1] < 10:  # so few in all that they follow no chi-square
        z2 = z2[:-1]
    return stats.chi2.sf(z2.sum(), len(z2))


@pytest.mark.parametrize(
    "threshold, copies", [(-0.4, 300), (0.0, 300), (2.1, 5_000), (5.0, 60_000)]
)
def test_every_entry_is_above_as_often_as_in_a_dense_release(threshold, copies):
    grid, places, values = found(copies, threshold)
    stddev = float(grid.stddev)
    assert np.all(np.diff(places) > 0) and places.dtype == np.int64
    assert values.min() >= threshold
    rates = stats.norm.sf((threshold - dense()) / stddev)
    counts = np.bincount(places % SIZE, minlength=SIZE)
    for entries in (np.arange(SIZE), PLACES):
        assert _p_value(counts[entries], rates[entries], copies) > FALSE_ALARM
    # how many of one array: Binomial, as independent entries are
    untouched = places[~np.isin(places % SIZE, PLACES)]
    counts = np.bincount(untouched // SIZE, minlength=copies)
    rate = stats.norm.sf(threshold / stddev)
    law = stats.binom(SIZE - len(PLACES), rate)
    edges = np.unique(law.ppf(np.linspace(0.05, 0.95, 10)))
    expected = np.diff(np.concatenate([[0], law.cdf(edges), [1]])) * copies
    observed = np.histogram(counts, np.concatenate([[-1], edges + 0.5, [SIZE]]))[0]
    assert stats.chisquare(observed, expected).pvalue > FALSE_ALARM


def test_where_most_entries_are_given_the_others_are_no_more_often_above():
    copies, size, given = 40_000, 7, np.array([0, 2, 3, 5, 6])
    places = (given + size * np.arange(copies)[:, None]).ravel()
    grid = Grid(1.0, 1.0, 9, rounding=0.0)
    found_places, _ = entries_above(
        NoiseSource(5), places, np.full(len(places), -50.0), size * copies, grid, 1.0
    )
    counts = np.bincount(found_places % size, minlength=size)
    assert counts[given].sum() == 0
    rate = stats.norm.sf(1.0)
    for j in (1, 4):
        assert stats.binomtest(int(counts[j]), copies, rate).pvalue > FALSE_ALARM


@pytest.mark.parametrize("threshold", [-0.4, 0.0, 2.1, 5.0])
def test_values_have_the_law_of_a_dense_release_that_was_cut(threshold):
    grid, places, values = found(1_000, threshold)
    stddev = float(grid.stddev)
    untouched = values[~np.isin(places % SIZE, PLACES)][:150_000]
    above = stats.norm.sf(threshold / stddev)
    law = (above - stats.norm.sf(untouched / stddev)) / above
    assert stats.kstest(law, "uniform").pvalue > FALSE_ALARM
    (naive,) = NoiseSource(2).release([tf.zeros([300_000], tf.float64)], grid, dtype=tf.float64)
    naive = naive.numpy()
    naive = naive[naive >= threshold]
    assert stats.ks_2samp(untouched, naive).pvalue > FALSE_ALARM
    # the value of an entry that was given stands on its sum
    one = values[places % SIZE == 3]
    above = stats.norm.sf((threshold - 2.5) / stddev)
    law = (above - stats.norm.sf((one - 2.5) / stddev)) / above
    assert stats.kstest(law, "uniform").pvalue > FALSE_ALARM


def test_all_values_are_on_the_grid_of_the_release():
    grid, _, values = found(300, 0.5)
    units = values / float(grid.step)
    np.testing.assert_array_equal(units, np.round(units))
    # no part of the grid is left out: low bits are uniform, those of given places and of others
    for modulus in (2, 64, 1024):
        counts = np.bincount((units % modulus).astype(int), minlength=modulus)
        assert stats.chisquare(counts).pvalue > FALSE_ALARM


def test_at_the_threshold_the_uniform_part_of_the_noise_is_seen():
    # Where the window is wide (W of 2⁻⁶σ to 2⁻⁵σ), entries come up that z alone would not lift, and
    # others fall: at the very threshold the density is that of the sum, with no step in it.
    _, places, values = found(20_000, 2.0, stddev=1.0)
    values = values[~np.isin(places % SIZE, PLACES)]
    near = values[values < 2.0 + 2.0**-5]
    above = stats.norm.sf(2.0) - stats.norm.sf(near)
    law = above / (stats.norm.sf(2.0) - stats.norm.sf(2.0 + 2.0**-5))
    assert stats.kstest(law, "uniform").pvalue > FALSE_ALARM


def test_values_of_places_that_were_not_given_have_the_whole_uniform_part():
    # A normal that rounds to zero leaves the uniform part, of W = 64 grid points.
    numbers = (tf.constant(n, tf.float64) for n in (1.0, 1e-9, 64.0))
    values = above._values(NoiseSource(1), tf.constant(20_000, tf.int64), *numbers).numpy()
    points, counts = np.unique(values, return_counts=True)
    np.testing.assert_array_equal(points, np.arange(-32, 33))
    expected = np.full(65, 20_000 / 64)
    expected[[0, -1]] /= 2  # rounded to the first and the last point from one side only
    assert stats.chisquare(counts, expected).pvalue > FALSE_ALARM


def test_arrays_of_ten_to_the_twelve_entries_cost_what_survives():
    size = 10**12
    places = np.array([5, size - 1], np.int64)
    grid = Grid(1.0, 1.0, 1000, rounding=0.0)
    threshold = float(stats.norm.isf(1e-7))
    found_places, values = entries_above(
        NoiseSource(3), places, np.array([50.0, 50.0]), size, grid, threshold
    )
    assert {5, size - 1} <= set(found_places.tolist())
    count = len(found_places) - 2
    assert abs(count - 1e5) < stats.norm.isf(FALSE_ALARM / 2) * math.sqrt(1e5)
    assert stats.kstest(found_places / size, "uniform").pvalue > FALSE_ALARM
    assert stats.chisquare(np.bincount(found_places % 64, minlength=64)).pvalue > FALSE_ALARM


def test_no_two_calls_and_no_two_entries_share_noise():
    first, second = (
        entries_above(NoiseSource(), PLACES, SUMS, SIZE, Grid(1.0, 1.0, 9, 0.0), 0.0)
        for _ in range(2)
    )
    one, two = (dict(zip(*map(np.ndarray.tolist, found), strict=True)) for found in (first, second))
    both = one.keys() & two.keys()
    # Two draws meet on a grid of millions of points now and then, but not often.
    assert len(both) > 100 and sum(one[place] == two[place] for place in both) <= 1
    assert len(set(one.values())) >= len(one) - 4


def test_all_noise_is_drawn_by_the_source_that_is_given():
    def drawn(seed):
        return found(3, 2.1, seed=seed)[1:]

    first, other, again = drawn(1), drawn(2), drawn(1)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not np.array_equal(first[1], other[1])


def test_how_many_sums_are_given_does_not_tell_in_how_much_runs_eagerly():
    grid, counted = Grid(1.3, 1.0, 50, rounding=0.0), []
    # At the first call functions are traced; then both sides of a block, few and many candidates.
    for given, threshold in (
        (3, 5.0),
        (3, 5.0),
        (2_048, 5.0),
        (2_049, 5.0),
        (40_000, 5.0),
        (3, 0.1),
    ):
        source, before = NoiseSource(1), ops.uid()
        entries_above(source, np.arange(given), np.ones(given), 50_000, grid, threshold)
        source.release_any(tf.zeros([given], tf.float64), grid, tf.float64)
        counted.append(ops.uid() - before)
    assert len(set(counted[1:])) == 1
