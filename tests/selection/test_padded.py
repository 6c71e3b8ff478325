"""Survivors of a fixed size are those of the naive algorithm, cut by the noisy map alone.

Distribution tests have a false-alarm rate of 1e-6 each; seeds make them repeatable.
"""

import numpy as np
import pytest
import slow
import tensorflow as tf
from scipy import stats

from tfdp.noise import NoiseSource
from tfdp.selection import NO_ROW, AdaFEST
from tfdp.selection import padded as padded_rows
from tfdp.selection.padded import (
    _distinct,
    _touched,
    _untouched,
    _with_largest,
    padded_survivors,
)
from tfdp.selection.tables import TableActivity, split_padded_rows

ROWS = np.array([[0, 1, 1, 2], [0, 3, -1, -1], [0, 4, 5, -1], [0, 39, -1, -1], [0, 6, -1, -1]])
PRESENT = np.array([True, True, True, True, False])
NUM_ROWS, THRESHOLD, SIGMA, NORM, DRAWS = 40, 1.5, 1.5, 1.2, 3000


def naive(capacity):
    """(DRAWS, V) bool: noise on every row, of the survivors the largest V stay."""
    mean = np.zeros(NUM_ROWS)
    for ids, there in zip(ROWS, PRESENT, strict=True):
        rows = np.unique(ids[ids >= 0])
        mean[rows] += there * min(1.0, NORM / np.sqrt(len(rows)))
    noise = np.random.default_rng(0).standard_normal((DRAWS, NUM_ROWS))
    noisy = mean + SIGMA * NORM * noise
    survives = noisy >= THRESHOLD
    rank = np.argsort(np.argsort(-noisy, axis=1), axis=1)
    return survives & (rank < capacity)


def many(draw, draws):
    """int64 (draws, capacity): one call of a graph."""

    @tf.function(autograph=False)
    def loop():
        return tf.map_fn(draw, tf.range(draws), parallel_iterations=1, dtype=tf.int64)

    return loop().numpy()


def padded(capacity, jit_compile):
    source = NoiseSource(5)

    @tf.function(jit_compile=jit_compile, autograph=False)
    def draw(_):
        return padded_survivors(
            tf.constant(ROWS), tf.constant(PRESENT), NUM_ROWS, NORM, THRESHOLD, SIGMA, capacity,
            source,
        )  # fmt: skip

    survives = np.zeros((DRAWS, NUM_ROWS), bool)
    for i, rows in enumerate(many(draw, DRAWS)):
        assert len(rows) == min(capacity, NUM_ROWS) and np.all(np.diff(rows) >= 0)
        real = rows[rows < NO_ROW]
        assert len(set(real)) == len(real)
        survives[i, real] = True
    return survives


@pytest.mark.parametrize(
    "capacity, jit_compile",
    slow.cases([(100, True), (8, True), (8, False)], slow=[(100, True), (8, False)]),
)
def test_rows_survive_and_are_cut_as_in_the_naive_algorithm(capacity, jit_compile):
    expected, found = naive(capacity), padded(capacity, jit_compile)
    both = (expected.mean(0) + found.mean(0)) / 2
    z = (found.mean(0) - expected.mean(0)) / np.sqrt(2 * both * (1 - both) / DRAWS)
    assert stats.chi2.sf(np.sum(z**2), NUM_ROWS) > 1e-6
    table = [np.bincount(c, minlength=NUM_ROWS) for c in (expected.sum(1), found.sum(1))]
    table = np.array(table)[:, np.sum(table, 0) > 40]
    assert table.shape[1] == 1 or stats.chi2_contingency(table).pvalue > 1e-6
    assert (found.sum(1) == capacity).any() == (capacity < NUM_ROWS)


def test_the_last_untouched_rows_survive_as_often_as_any():
    # Nine of ten rows are touched: there is one other row, and never a second that survives.
    source, draws, survived = NoiseSource(7), 1000, np.zeros(10)
    rows = tf.constant([[0, 1, 2, 3, 4, 6, 7, 8, 9]])

    def one(_):
        there = tf.constant([True])
        return padded_survivors(rows, there, 10, 0.1, 0.8, 8.0, 10, source)

    for found in many(one, draws):
        survived[found[found < NO_ROW]] += 1
    contributions = np.where(np.arange(10) == 5, 0.0, 0.1 / 3)
    rates = stats.norm.sf((0.8 - contributions) / 0.8)
    z = (survived - draws * rates) / np.sqrt(draws * rates * (1 - rates))
    assert stats.chi2.sf(np.sum(z**2), 10) > 1e-6 and abs(z[5]) < stats.norm.isf(5e-7)


def test_where_all_rows_are_touched_there_is_no_other_row():
    # Noise so large that another row, if there were one, would have passed in half of the cases.
    for seed in range(20):
        touched = tf.constant([0, 1, 2, NO_ROW], tf.int64)
        number, threshold = tf.constant(3, tf.int64), tf.constant(0.1, tf.float64)
        stddev = tf.constant(10.0, tf.float64)
        rows, values = _untouched(touched, number, 3, threshold, stddev, 1, NoiseSource(seed))
        assert rows.numpy() == NO_ROW and values.numpy() == -np.inf


def test_an_untouched_row_that_just_survives_has_no_less_than_the_threshold(monkeypatch):
    # The tail of the only row is, to the last bits, that of the threshold.
    one, beyond = tf.constant(1.0, tf.float64), []
    for threshold in np.linspace(0.5, 6.0, 50):
        spacing = tf.constant([-np.log1p(-stats.norm.sf(threshold))], tf.float64)
        monkeypatch.setattr(
            padded_rows.draws, "standard_exponential", lambda *_, found=spacing: found
        )
        rows, values = _untouched(
            tf.constant([NO_ROW]), tf.constant(0, tf.int64), 1,
            tf.constant(threshold, tf.float64), one, 1, NoiseSource(0),
        )  # fmt: skip
        if rows.numpy() == 0:
            beyond.append(values.numpy()[0] - threshold)
    assert len(beyond) > 10 and min(beyond) >= 0


def test_places_below_a_bound_that_does_not_divide_the_range_of_bits_are_uniform():
    bound = 3 * 2**61  # a plain remainder would double the weight of the first third
    needed, number = tf.ones([2000], tf.bool), tf.constant(bound, tf.int64)
    drawn = _distinct(NoiseSource(4), needed, number, bound)
    assert len(set(drawn.numpy())) == 2000
    assert stats.kstest(drawn.numpy() / bound, "uniform").pvalue > 1e-6


def test_the_cut_does_not_spare_touched_rows():
    # Noise far above the counts: touched rows have no more right to a place than others.
    source = NoiseSource(6)
    rows = tf.constant(np.arange(10)[None])
    kept = np.zeros(200)

    def draw(_):
        return padded_survivors(rows, tf.constant([True]), 200, 1.0, 1e-3, 100.0, 20, source)

    for found in many(draw, 1500):
        kept[found] += 1
    assert stats.chisquare(kept).pvalue > 1e-6


def test_capacity_is_checked_and_part_of_the_configuration():
    for wrong in (0, 1.5, True, "many"):
        with pytest.raises(ValueError, match="capacity"):
            AdaFEST(1.0, capacity=wrong)
    again = AdaFEST.from_config(AdaFEST(1.0, capacity=7).get_config())
    assert again.capacity == 7 and again.describe()["capacity"] == 7


@pytest.mark.parametrize("jit_compile", [False, True])
def test_the_largest_stay_where_there_are_more_than_places(jit_compile):
    never, capacities = -np.inf, (1, 2, 3, 4, 6)
    rows = tf.constant([7, NO_ROW, 3, 30, 5, 9], tf.int64)
    noisy = tf.constant([1.5, never, 4.0, never, 2.0, 3.0], tf.float64)
    largest = tf.function(
        lambda: [_with_largest(rows, noisy, capacity) for capacity in capacities],
        jit_compile=jit_compile, autograph=False,
    )  # fmt: skip
    for capacity, found in zip(capacities, largest(), strict=True):
        expected = [3, 9, 5, 7][:capacity]
        assert sorted(found.numpy()) == sorted(expected + [NO_ROW] * (capacity - len(expected)))


@pytest.mark.parametrize("touched", [[-1, -1], [3, 4]])
def test_whether_survivors_find_no_place_is_known_from_the_survivors_alone(touched, monkeypatch):
    # Half of 200 rows survive by noise alone, for 10 places: with and without an example.
    monkeypatch.setattr(padded_rows, "_with_largest", lambda _, noisy, k: noisy)
    rows, there, source = tf.constant([touched], tf.int64), tf.constant([True]), NoiseSource(0)
    draw = tf.function(
        lambda: padded_survivors(rows, there, 200, 1.0, 0.1, 100.0, 10, source), autograph=False
    )
    for _ in range(20):
        assert np.sum(draw().numpy() > -np.inf) >= 11


@pytest.mark.parametrize("jit_compile", [False, True])
def test_touched_rows_are_counted_once_for_each_example_that_is_there(jit_compile):
    # 40 and beyond are no rows of a table of 40; padding and the last example do not count.
    ids = np.array(
        [[0, 1, 1, 2], [0, 3, -1, -1], [0, 40, 2**62 + 3, -1], [0, 39, -1, -1], [0, 6, 1, -1]]
    )

    @tf.function(jit_compile=jit_compile, autograph=False)
    def touched():
        return _touched(tf.constant(ids), tf.constant(PRESENT), NUM_ROWS, 1.0, False)

    rows, sums, count = touched()
    assert count.numpy() == 5
    np.testing.assert_array_equal(rows.numpy()[:5], [0, 1, 2, 3, 39])
    assert np.all(rows.numpy()[5:] == NO_ROW)
    third, half = 3**-0.5, 2**-0.5
    np.testing.assert_allclose(
        sums.numpy()[:5], [third + half + third + half, third, third, half, half], rtol=1e-12
    )


@pytest.mark.parametrize("jit_compile", [False, True])
def test_rows_of_several_tables_are_parted(jit_compile):
    tables = [TableActivity(str(size), size, None) for size in (2, 5, 3, 100)]
    rows = np.array([0, 1, 3, 6, 10, 12, 109, NO_ROW])  # none of the third table

    @tf.function(jit_compile=jit_compile, autograph=False)
    def split():
        return split_padded_rows(tf.constant(rows), tables)

    expected = [[0, 1], [1, 4], [], [0, 2, 99]]
    for table, found, own in zip(tables, split(), expected, strict=True):
        # No longer than the table, and no longer than the capacity.
        assert found.shape == (min(8, table.num_rows),)
        np.testing.assert_array_equal(found, own + [NO_ROW] * (len(found) - len(own)))
