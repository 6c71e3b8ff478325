import keras
import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from tfdp.noise import NoiseSource
from tfdp.selection import FEST, NO_ROW, AdaFEST, ExponentialSelection, TableActivity


def table(name, num_rows, ids):
    return TableActivity(name, num_rows, tf.constant(ids, tf.int64))


def select(selection, tables, noise_multiplier=0.0, example_mask=None, seed=0):
    example_mask = (
        tf.ones(tables[0].ids.shape[0], tf.bool) if example_mask is None else example_mask
    )
    choose = selection.select if selection.capacity is None else selection.select_padded
    found = choose(tables, example_mask, noise_multiplier, NoiseSource(seed))
    return [rows.numpy()[rows.numpy() < NO_ROW] for rows in found]


@pytest.mark.parametrize("sigma, ratio", [(1.0, 5.0), (0.3, 0.1), (2.0, 1.0)])
def test_the_two_noises_cost_one_gaussian_and_have_the_ratio(sigma, ratio):
    selection = AdaFEST(1.0, noise_ratio=ratio)
    sigma_1 = selection.contribution_noise_multiplier(sigma)
    sigma_2 = selection.gradient_noise_multiplier(sigma)
    np.testing.assert_allclose(sigma_1 / sigma_2, ratio)
    np.testing.assert_allclose((sigma_1**-2 + sigma_2**-2) ** -0.5, sigma)


@pytest.mark.thorough_after(1)
@pytest.mark.parametrize("capacity", [None, 10**6])
def test_rows_are_drawn_with_the_contribution_noise_and_not_the_gradient_noise(capacity):
    # Fault 3: the split of the noise upside down.
    # False-alarm rate 1e-6. Swapped noises would give σ = 1.02 and hardly a survivor.
    selection = AdaFEST(10.0, noise_ratio=5.0, contribution_norm=1.5, capacity=capacity)
    (rows,) = select(selection, [table("t", 10**6, [[0]])], noise_multiplier=1.0)
    p = stats.norm.sf(10.0 / (np.sqrt(26.0) * 1.5))
    z = (len(rows) - 1e6 * p) / np.sqrt(1e6 * p * (1 - p))
    assert abs(z) < stats.norm.isf(5e-7)


def test_all_tables_share_one_contribution_norm():
    # 4 rows in 26 tables: each counts 1/√4 if they share the norm, 1/√2 or 1 if they do not.
    tables = [table(f"t{i}", 10 + i, [[-1, -1]]) for i in range(24)]
    tables += [table("u", 7, [[6, 2]]), table("v", 9, [[0, 8]])]
    assert all(len(r) == 0 for r in select(AdaFEST(0.51), tables))
    found = select(AdaFEST(0.49), tables)
    np.testing.assert_array_equal(found[24], [2, 6])
    np.testing.assert_array_equal(found[25], [0, 8])
    assert all(len(r) == 0 for r in found[:24])


@pytest.mark.parametrize("capacity", [None, 10])
@pytest.mark.parametrize("length", [1, 2])
def test_an_example_that_repeats_an_id_counts_once_whatever_the_other_tables_hold(length, capacity):
    # Where every table is looked up once, nobody looks for repetitions.
    selection = AdaFEST(1.5, contribution_norm=9.0, capacity=capacity)
    tables = [table("a", 5, [[3] * length] * 2), table("b", 5, [[1], [2]])]
    rows, others = select(selection, tables)
    np.testing.assert_array_equal(rows, [3])  # of two examples
    assert len(others) == 0
    rows, others = select(selection, tables, example_mask=tf.constant([True, False]))
    assert len(rows) == len(others) == 0


def test_a_row_whose_contribution_is_the_threshold_survives():
    (rows,) = select(AdaFEST(2.0), [table("t", 9, [[4], [4], [7]])])
    np.testing.assert_array_equal(rows, [4])


def test_the_same_id_of_two_tables_is_two_rows():
    tables = [table("a", 5, [[1], [1]]), table("b", 5, [[1], [2]])]
    found = select(AdaFEST(1.2), tables)  # V̂: a1 = √2, b1 = b2 = 1/√2
    np.testing.assert_array_equal(found[0], [1])
    assert len(found[1]) == 0


@pytest.mark.parametrize("capacity", [None, 3])
def test_rows_outside_fest_are_left_out_before_the_contributions_are_clipped(capacity):
    within = FEST(2, frequencies={"a": [0, 9, 0, 8, 1], "b": [5, 0, 0, 6, 0]})
    # One row of each example is left, and counts 1: that of the second is the last of all.
    tables = [
        table("a", 5, [[0, 1, 2, 4], [0, 2, 4, -1]]),
        table("b", 5, [[1, 2, -1, -1], [3, 1, 2, 4]]),
    ]
    found = select(AdaFEST(0.99, within=within, capacity=capacity), tables)
    np.testing.assert_array_equal(found[0], [1])
    np.testing.assert_array_equal(found[1], [3])


@pytest.mark.parametrize("capacity", [None, 2000])
def test_noise_alone_lets_only_fest_rows_survive(capacity):
    frequencies = np.zeros(10_000)
    frequencies[::3] = 1
    within = FEST(2000, frequencies=frequencies)
    selection = AdaFEST(1.0, noise_ratio=1.0, within=within, capacity=capacity)
    (rows,) = select(selection, [table("a", 10_000, [[1]])], noise_multiplier=1.0)
    p = stats.norm.sf(1.0 / np.sqrt(2.0))
    assert np.all(rows % 3 == 0) and np.all(rows < 6000)
    assert abs(len(rows) - 2000 * p) < stats.norm.isf(5e-7) * np.sqrt(2000 * p * (1 - p))


@pytest.mark.parametrize(
    "arguments",
    [{"threshold": 0}, {"threshold": 1, "noise_ratio": 0}, {"threshold": 1, "within": 3},
     {"threshold": 1, "contribution_norm": float("inf")}],
)  # fmt: skip
def test_arguments_out_of_range_are_refused(arguments):
    with pytest.raises(ValueError, match="Received"):
        AdaFEST(**arguments)


def test_survives_serialisation_with_the_rows_of_fest():
    selection = AdaFEST(3.0, 2.0, 1.5, within=FEST(1, frequencies={"a": [0.0, 2.0, 1.0]}))
    config = keras.saving.serialize_keras_object(selection)
    again = keras.saving.deserialize_keras_object(config)
    assert again.get_config() == selection.get_config()
    np.testing.assert_array_equal(again.within.rows("a", 3), [1])
    assert again.privacy_assumptions == selection.privacy_assumptions != []
    assert selection.describe() == {
        "name": "AdaFEST", "threshold": 3.0, "noise_ratio": 2.0, "contribution_norm": 1.5,
        "capacity": None, "within": selection.within.describe(),
    }  # fmt: skip


def test_what_a_fest_inside_costs_chose_and_cannot_choose_from_counts():
    within = FEST(1, epsilon=0.5)
    selection = AdaFEST(3.0, within=within)
    for _ in range(2):
        within.adapt({"a": np.arange(4)}, {"a": 4})
        assert selection.version == within.version
        assert selection.privacy_releases == within.privacy_releases != []
    with pytest.raises(ValueError, match="no rows of table 'b'"):
        selection.check({"a": 4, "b": 4})


@pytest.mark.parametrize(
    "selection, names",
    [
        (AdaFEST(3.0), ("threshold", "noise_ratio", "contribution_norm", "within",
                                       "capacity")),
        (FEST(3, epsilon=1.0), ("k", "epsilon", "mechanism")),
        (ExponentialSelection(3), ("num_rows", "noise_ratio")),
    ],
    ids=lambda one: type(one).__name__,
)  # fmt: skip
def test_settings_are_fixed(selection, names):
    for name in names:
        with pytest.raises(AttributeError, match=f"`{name}`"):
            setattr(selection, name, 1.0)
