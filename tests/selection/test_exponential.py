"""Exponential selection: the distribution of the rows, without an array of all rows."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from tfdp.noise import NoiseSource
from tfdp.selection import ExponentialSelection, TableActivity

_NO_NORM = np.nan


def activity(ids, norms, num_rows, name="t"):
    norms = tf.constant(norms, tf.float64)
    return TableActivity(name, num_rows, tf.constant(ids, tf.int64), lambda: norms)


def draw(selection, tables, sigma, count, seed=0, example_mask=None):
    """`count` selections as a list of lists of arrays."""
    source = NoiseSource(seed)
    example_mask = (
        tf.ones(tables[0].ids.shape[0], tf.bool) if example_mask is None else example_mask
    )
    # A graph would take longer to trace than it is run.
    drawn = (selection.select(tables, example_mask, sigma, source) for _ in range(count))
    return [[r.numpy() for r in rows] for rows in drawn]


def draw_many(selection, table, sigma, count, seed=0):
    """int64 (count, k): `count` selections from one table, by one call of a graph."""
    source, example_mask = NoiseSource(seed), tf.ones(table.ids.shape[0], tf.bool)

    @tf.function
    def many():
        return tf.map_fn(
            lambda _: selection.select([table], example_mask, sigma, source)[0],
            tf.range(count),
            parallel_iterations=1,
            fn_output_signature=tf.TensorSpec([None], tf.int64),
        )

    return many().numpy()


def exact_inclusion(utilities, epsilon, k):
    """Probability of each set of k rows by peeling the exponential mechanism."""
    weights = np.exp(epsilon * np.asarray(utilities))
    sets = {}
    for order in itertools.permutations(range(len(weights)), k):
        left, p = weights.sum(), 1.0
        for row in order:
            p *= weights[row] / left
            left -= weights[row]
        sets[tuple(sorted(order))] = sets.get(tuple(sorted(order)), 0.0) + p
    return sets


def test_sets_of_rows_have_the_probabilities_of_the_exponential_mechanism():
    # Utilities 2, 1, 0.5 on rows 1, 4, 2; rows 0, 3, 5 untouched. False alarm: 1e-6.
    ids = [[1, 4], [1, 2], [1, -1]]
    norms = [[0.5, 1.0], [3.0, 0.5], [0.5, _NO_NORM]]
    selection, sigma, n = ExponentialSelection(2, noise_ratio=0.5), 1.0, 6000
    epsilon = 1.0 / selection.utility_noise_scale(sigma)
    expected = exact_inclusion([0, 2.0, 0.5, 0, 1.0, 0], epsilon, 2)
    found = dict.fromkeys(expected, 0)
    for rows in draw_many(selection, activity(ids, norms, 6), sigma, n):
        found[tuple(rows)] += 1
    observed = np.array([found[s] for s in expected], float)
    mean = n * np.array([expected[s] for s in expected])
    assert mean.min() > 5
    statistic = ((observed - mean) ** 2 / mean).sum()
    assert statistic < 60.1  # chi-square with 14 degrees of freedom exceeds it with 1e-7
    flat = np.full(len(mean), n / len(mean))
    assert ((observed - flat) ** 2 / flat).sum() > 500  # and utilities do matter


@pytest.mark.thorough
def test_a_touched_row_of_no_utility_is_drawn_as_often_as_any():
    # It needs a large value of its noise to be the first of 21: noise of another scale shows.
    n, p = 20_000, 1 / 21
    rows = draw_many(ExponentialSelection(1), activity([[7]], [[1e-9]], 21), 2.0, n)
    # Five standard errors, a false alarm of 6e-7; a scale off by 10% is off by more than 7.
    assert abs(np.mean(rows == 7) - p) < 5 * (p * (1 - p) / n) ** 0.5


@pytest.mark.thorough
def test_the_second_untouched_row_is_the_best_of_those_that_are_left():
    # One touched row of hardly any utility, two others: each pair of two is as likely.
    table, draws = activity([[1]], [[1e-3]], 3), 2000
    found = {tuple(rows): 0 for rows in itertools.combinations(range(3), 2)}
    for rows in draw_many(ExponentialSelection(2), table, 50.0, draws):
        found[tuple(rows)] += 1
    # Each is off by 5 standard errors with a probability below 1e-6.
    assert all(abs(n - draws / 3) < 5 * (draws * 2 / 9) ** 0.5 for n in found.values())


def test_the_split_of_the_budget_is_the_stated_one():
    selection = ExponentialSelection(9, noise_ratio=2.0)
    sigma_2 = selection.gradient_noise_multiplier(1.5)
    epsilon = 1.0 / selection.utility_noise_scale(1.5)
    rho = 9 * epsilon**2 / 8 + 0.5 / sigma_2**2
    assert rho == pytest.approx(0.5 / 1.5**2)
    assert sigma_2 == pytest.approx(1.5 * np.sqrt(1.25))
    # Only the Rényi curve of a step is that of one Gaussian: the ledger must be told both.
    assert selection.step_mechanism == "concentrated"
    expected = {"name": "ExponentialSelection", "num_rows": 9, "noise_ratio": 2.0}
    assert selection.describe() == expected


def test_an_example_moves_every_utility_up_by_at_most_one():
    # Without noise. 3 has 1 whatever its norm, 7 nothing (an infinite norm), 5 has 1.4.
    table = activity([[3, 5], [7, 5]], [[1e9, 0.7], [np.inf, 0.7]], 50)
    ((rows,),) = draw(ExponentialSelection(1), [table], 0.0, 1)
    assert list(rows) == [5]
    # 3 has 2, 7 has 1, 5 has 0.8.
    table = activity([[3, 5], [3, 5], [7, -1]], [[1.0, 0.4], [1e3, 0.4], [1.1, 7.0]], 50)
    ((rows,),) = draw(ExponentialSelection(1), [table], 0.0, 1)
    assert list(rows) == [3]


def test_absent_examples_are_not_counted():
    ids, norms = [[3], [5]], [[1.0], [1.0]]
    example_mask = tf.constant([False, True])
    tables = [activity(ids, norms, 2**40)]
    for (rows,) in draw(ExponentialSelection(1), tables, 1e-9, 3, example_mask=example_mask):
        assert list(rows) == [5]


def test_an_absent_example_chooses_no_row_however_large_its_gradient():
    tables = [activity([[3, 5], [5, 9]], [[1.0, 1.0], [0.2, 0.1]], 2**40)]
    example_mask = tf.constant([False, True])
    for (rows,) in draw(ExponentialSelection(1), tables, 1e-9, 3, example_mask=example_mask):
        assert list(rows) == [5]
    # And it does not raise the row that a present example has, too: 5 has 0.2 and 9 has 0.3.
    tables = [activity([[5, -1], [5, 9]], [[1.0, _NO_NORM], [0.2, 0.3]], 2**40)]
    for (rows,) in draw(ExponentialSelection(1), tables, 1e-9, 3, example_mask=example_mask):
        assert list(rows) == [9]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_norm_that_is_not_finite_counts_nothing_and_spoils_no_other(value):
    # Row 5 keeps the 0.4 of the other example; row 3 has none; row 7 has 0.3.
    tables = [activity([[3, 5], [5, 7]], [[value, value], [0.4, 0.3]], 2**40)]
    for (rows,) in draw(ExponentialSelection(2), tables, 1e-9, 3):
        assert list(rows) == [5, 7]


def test_several_tables_share_the_draws_and_rows_stay_sorted_and_distinct():
    a = activity([[0, 1, 2]], [[1.0, 1.0, 1.0]], 10, "a")
    b = activity([[9]], [[1.0]], 2**40, "b")
    for of_a, of_b in draw(ExponentialSelection(6), [a, b], 0.01, 20):
        assert list(of_a) == [0, 1, 2] and len(of_b) == 3 and 9 in of_b
        assert len(set(of_b)) == 3 and (np.diff(of_b) > 0).all() and of_b.dtype == np.int64


def test_as_many_rows_as_there_are_are_all_of_them():
    table = activity([[4]], [[1.0]], 6)
    assert all(list(r) == [0, 1, 2, 3, 4, 5] for (r,) in draw(
        ExponentialSelection(6), [table], 1.0, 5))  # fmt: skip


@pytest.mark.parametrize("arguments", [{"num_rows": 0}, {"num_rows": 2.5}, {"num_rows": True},
                                       {"num_rows": 1, "noise_ratio": 0.0},
                                       {"num_rows": 1, "noise_ratio": np.inf}])  # fmt: skip
def test_arguments_out_of_range_are_refused(arguments):
    with pytest.raises(ValueError, match="Received"):
        ExponentialSelection(**arguments)


def test_more_rows_than_the_tables_have_are_refused():
    with pytest.raises(ValueError, match="at most the 30 rows"):
        ExponentialSelection(31).check({"a": 10, "b": 20})
    ExponentialSelection(30).check({"a": 10, "b": 20})
