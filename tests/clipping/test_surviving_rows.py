"""Gradients of sparse tables count only in the rows that survived, however they are computed."""

import numpy as np
import pytest
import tensorflow as tf

from tfdp.clipping.sums.contributions import Rows
from tfdp.clipping.sums.gradients import RowGradients
from tfdp.clipping.sums.surviving_rows import _KeptRows, _MaskedRows
from tfdp.runtime.xla import compiling

IDS = np.array([[0, 3, -1], [5, 5, 3], [1, 2, 4], [9, -1, -1]])
SURVIVORS = np.array([3, 5, 9, 2**63 - 1])  # the last place is not taken
VALUES = np.random.default_rng(0).normal(size=(4, 3, 8)).astype("float32")
VALUES[IDS < 0] = 0.0
FACTORS = np.array([0.5, 2.0, 1.0, 0.25], "float32")


def expected():
    """Squared norms and sums by definition, in float64."""
    gradients = np.zeros((4, 10, 8))
    for i, ids in enumerate(IDS):
        for t, row in enumerate(ids):
            if row in SURVIVORS:
                gradients[i, row] += VALUES[i, t].astype("float64")
    sums = np.tensordot(FACTORS.astype("float64"), gradients, 1)[SURVIVORS[:3]]
    return np.sum(gradients**2, axis=(1, 2)), sums


def found(kind, values, jit_compile, ids=IDS):
    table = tf.Variable(tf.zeros((10, 8)))

    @tf.function(jit_compile=jit_compile, autograph=False)
    def compute():
        with compiling(jit_compile):
            rows = RowGradients(table, [Rows(tf.constant(ids), tf.constant(values))])
            gradient = kind(rows, tf.constant(SURVIVORS))
            norm, bound = gradient.squared_norm()
            sums = gradient.clipped_sum(tf.constant(FACTORS), tf.math.is_finite(norm))
            return norm, bound, sums.values

    return [x.numpy() for x in compute()]


@pytest.mark.thorough
def test_sequences_of_lengths_that_are_not_known_compile():
    table = tf.Variable(tf.zeros((10, 8)))
    unknown = [tf.TensorSpec([None, None], tf.int64), tf.TensorSpec([None, None, 8], tf.float32)]

    @tf.function(jit_compile=True, autograph=False, input_signature=unknown)
    def norms(ids, values):
        with compiling(True):
            rows = RowGradients(table, [Rows(ids, values)])
            return _MaskedRows(rows, tf.constant(SURVIVORS)).squared_norm()

    norm, bound = norms(IDS, VALUES)
    assert np.all(np.abs(norm - expected()[0]) <= bound)


CASES = [(_KeptRows, False), (_MaskedRows, False), (_MaskedRows, True)]


@pytest.mark.thorough
@pytest.mark.parametrize("kind, jit_compile", CASES)
def test_norms_and_sums_are_those_of_the_rows_that_survived(kind, jit_compile):
    norms, sums = expected()
    norm, bound, of_rows = found(kind, VALUES, jit_compile)
    assert np.all(np.abs(norm - norms) <= bound) and np.all(bound <= 1e-5 * norms + 1e-30)
    np.testing.assert_allclose(of_rows[:3], sums, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(of_rows[3], 0.0)


@pytest.mark.parametrize("kind, jit_compile", CASES)
def test_what_is_not_finite_in_other_rows_does_not_count(kind, jit_compile):
    # Of one look-up each; of several, that of a repeated id spreads, and the example is left out.
    values = VALUES[:, :1].copy()
    values[0], values[2] = np.nan, np.inf  # rows 0 and 1 did not survive
    norm, _, of_rows = found(kind, values, jit_compile, IDS[:, :1])
    np.testing.assert_allclose(norm[[0, 2]], 0.0)
    np.testing.assert_allclose(norm[1], np.sum(np.square(values[1])), rtol=1e-5)
    np.testing.assert_allclose(of_rows[1], FACTORS[1] * values[1, 0], rtol=1e-5)
    np.testing.assert_array_equal(of_rows[[0, 3]], 0.0)


@pytest.mark.thorough
@pytest.mark.parametrize("kind, jit_compile", CASES)
def test_an_example_that_is_not_finite_in_a_row_that_survived_is_left_out(kind, jit_compile):
    values = VALUES.copy()
    values[1, 2] = np.nan  # row 3
    norm, _, of_rows = found(kind, values, jit_compile)
    assert np.isnan(norm[1]) and np.all(np.isfinite(of_rows))
    np.testing.assert_allclose(of_rows[0], FACTORS[0] * VALUES[0, 1], rtol=1e-5)
    np.testing.assert_array_equal(of_rows[1], 0.0)


@pytest.mark.parametrize("kind, jit_compile", CASES)
def test_squares_that_are_flushed_to_zero_are_in_the_bound(kind, jit_compile):
    values = np.where(VALUES == 0.0, 0.0, 1e-19).astype("float32")
    norm, bound, _ = found(kind, values, jit_compile)
    # A row of 8 numbers in the first and the last example; two numbers are added up in the second.
    assert np.all(norm + bound >= np.array([8, 40, 0, 8]) * 1e-38)
