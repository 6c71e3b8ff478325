"""Sorting and searching give what numpy gives, eagerly and compiled."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdp.runtime import ordering, xla


def compiled(function, *arrays):
    """What a function gives under XLA."""
    return tf.function(function, jit_compile=True, autograph=False)(*map(tf.constant, arrays))


@pytest.mark.thorough_after(1)
@pytest.mark.parametrize("unrolled", [False, True])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("size", [0, 1, 2, 3, 4, 7, 8, 63, 64, 65, 1000])
def test_searches_find_as_many_as_numpy(size, side, unrolled, monkeypatch):
    monkeypatch.setattr(ordering, "_UNROLLED", 1 << 30 if unrolled else -1)
    generator = np.random.default_rng(size)
    # Few different values, so that many are equal; some below all and above all.
    ordered = np.sort(generator.integers(0, 2 * size, size))
    values = np.concatenate([np.arange(-1, 2 * size + 1), [2**62, -(2**62)]])
    expected = np.searchsorted(ordered, values, side)
    for run in (lambda f, *a: f(*map(tf.constant, a)), compiled):
        found = run(lambda o, v: ordering.search(o, v, side), ordered, values)
        assert found.dtype == tf.int64
        np.testing.assert_array_equal(found, expected)


@pytest.mark.thorough
def test_searches_under_xla_do_not_compare_all_pairs():
    # 10^11 of them, minutes; by halving, less than a second.
    ordered, values = np.arange(0, 3 * 10**5, dtype=np.int64), np.arange(3 * 10**5, dtype=np.int64)
    np.testing.assert_array_equal(compiled(ordering.search, ordered, values), values)


@pytest.mark.parametrize("many", [False, True])
def test_a_tpu_compares_few_pairs_at_once_and_halves_for_many(many, monkeypatch):
    monkeypatch.setattr(ordering, "_ALL_PAIRS_ON_TPU", 10 if many else 1000)
    ordered, values = tf.range(0, 100, 5, dtype=tf.int64), tf.range(20, dtype=tf.int64)

    @tf.function(autograph=False)
    def find():
        with xla.compiling(True), xla.for_platform("TPU"):
            return ordering.search(ordered, values)

    kinds = {op.type for op in find.get_concrete_function().graph.get_operations()}
    assert ("LowerBound" in kinds) != many
    np.testing.assert_array_equal(find(), np.searchsorted(ordered.numpy(), values.numpy()))


@pytest.mark.thorough
@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.integers(0, 20), min_size=1, max_size=40),
    st.sampled_from([21, 1000, 2**53, 2**60, 2**63 - 1]),
)
def test_values_are_sorted_with_their_order(values, bound):
    values = np.array(values, np.int64) * ((bound - 1) // 20)
    order = np.argsort(values, kind="stable")
    ordered, places = ordering.sort_with_order(tf.constant(values), bound)
    np.testing.assert_array_equal(ordered, values[order])
    np.testing.assert_array_equal(places, order)


@pytest.mark.thorough
@pytest.mark.parametrize("bound", [50, 2**62])
def test_values_are_sorted_with_their_order_under_xla(bound):
    values = np.random.default_rng(0).integers(0, 50, 300)
    ordered, places = compiled(lambda v: ordering.sort_with_order(v, bound), values)
    np.testing.assert_array_equal(places, np.argsort(values, kind="stable"))
    np.testing.assert_array_equal(ordered, np.sort(values))


def test_rows_are_sorted_each_by_itself():
    values = np.random.default_rng(0).integers(-(2**60), 2**60, (5, 7))
    for found in (ordering.sort(tf.constant(values)), compiled(ordering.sort, values)):
        np.testing.assert_array_equal(found, np.sort(values, axis=1))
