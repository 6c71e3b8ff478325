"""V̂: what one example can change in it. Without noise the survivors show V̂ itself."""

import numpy as np
import pytest
import tensorflow as tf

from tfdp.noise import NoiseSource
from tfdp.selection import ContributionMap


def contributions(rows, example_mask, norm=1.0, num_rows=50):
    """V̂ as a vector, through the public interface: a step without noise and a tiny threshold."""
    found, noisy = ContributionMap(
        tf.constant(rows, tf.int64), tf.constant(example_mask), num_rows, norm
    )._survivors(1e-9, 0.0, NoiseSource(0))
    total = np.zeros(num_rows)
    total[found.numpy()] = noisy().numpy()
    return total


@pytest.mark.thorough_after(1)
@pytest.mark.parametrize("norm", [0.5, 1.0, 3.0])
def test_one_example_changes_the_map_by_at_most_the_contribution_norm(norm):
    generator = np.random.default_rng(0)
    for length in (1, 2, 7, 40):
        rows = generator.integers(-1, 50, (6, length))
        rows[:, 0] = np.abs(rows[:, 0])
        with_all = contributions(rows, [True] * 6, norm)
        for i in range(6):
            without = contributions(rows, [j != i for j in range(6)], norm)
            change = np.linalg.norm(with_all - without)
            distinct = len(set(rows[i][rows[i] >= 0]))
            np.testing.assert_allclose(change, min(norm, distinct**0.5), rtol=1e-12)
            assert change <= norm * (1 + 1e-12)


def test_a_batch_of_one_example_is_one_example_not_one_for_each_of_its_ids():
    # Fault 2 of other libraries: a squeeze made every id of a lone example an example.
    rows = [[4, 9, 9, 20, 33]]
    total = contributions(rows, [True])
    np.testing.assert_allclose(total[[4, 9, 20, 33]], 0.5)
    assert np.linalg.norm(total) <= 1 + 1e-12


def test_a_repeated_id_of_an_example_counts_once():
    np.testing.assert_allclose(contributions([[7, 7, 7]], [True])[7], 1.0)
    np.testing.assert_allclose(contributions([[7], [7], [7]], [True] * 3)[7], 3.0)


def test_padding_and_absent_examples_contribute_nothing():
    total = contributions([[3, -1, -1], [8, 3, 1]], [True, False])
    np.testing.assert_array_equal(np.flatnonzero(total), [3])
    np.testing.assert_allclose(total[3], 1.0)


def test_nothing_but_survivors_is_public():
    shown = [name for name in vars(ContributionMap) if not name.startswith("_")]
    assert shown == ["survivors"]
    built = ContributionMap(tf.constant([[1]], tf.int64), tf.constant([True]), 5, 1.0)
    public = {k for k in vars(built) if not k.startswith("_")}
    assert public == {"num_rows", "contribution_norm"}
