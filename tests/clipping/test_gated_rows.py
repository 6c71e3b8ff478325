"""Rows that all examples look up, beyond an activation: a search for norms that are too small."""

import numpy as np
import pytest
import tensorflow as tf

from tfdp.clipping.sums.contributions import GatedRows, Rows
from tfdp.clipping.sums.gradients import variable_gradient

ITEMS = 12


@pytest.mark.parametrize("positions", [1, 2])
def test_beyond_a_gate_no_example_is_clipped_to_more_than_the_norm(positions):
    """A search: scales from 1e-9 to 1e9, repeated ids, kernels that cancel what the gates pass."""
    count, hidden, width, size = 9, 20, 4, 200  # more hidden units than a block has
    rng = np.random.default_rng(positions)
    drawn = rng.integers(0, ITEMS, count)
    drawn[2] = -1  # no row
    gate = rng.normal(size=(ITEMS, hidden)).astype(np.float32)[drawn]
    kernel = rng.normal(size=(width, hidden)).astype(np.float32)
    kernel[:, -1] = -kernel[:, 0] * (1 + 1e-6)  # two units that cancel, where gate and factors do
    gate[:, -1] = gate[:, 0]
    scales = 10.0 ** rng.uniform(-9, 9, (size, 1, 1))
    left = (rng.normal(size=(size, positions, count)) * scales**0.5).astype(np.float32)
    left[-3:] = 0.0  # as of padding
    right = (rng.normal(size=(size, positions, hidden)) * scales**0.5).astype(np.float32)
    right[: size // 2, :, 1:-1] = 0.0
    right[: size // 2, :, -1] = right[: size // 2, :, 0]
    ids = rng.integers(0, ITEMS, (size, 3))
    at_gate = np.einsum("btn,bth->bnh", left.astype(np.float64), right) * gate
    true, each = np.zeros((size, ITEMS, width)), at_gate @ kernel.T.astype(np.float64)
    for n, item in enumerate(drawn):
        true[:, item] += each[:, n] * (item >= 0)
    values = (rng.normal(size=(size, 3, width)) * scales).astype(np.float32)
    for t in range(3):
        true[np.arange(size), ids[:, t]] += values[:, t]
    own = Rows(tf.constant(ids), tf.constant(values))
    shared = GatedRows(tf.constant(drawn), *map(tf.constant, (left, right, gate, kernel)))
    table = variable_gradient(tf.zeros([ITEMS, width]), [own, shared])
    norm, bound = table.squared_norm()
    found = np.sqrt(tf.maximum(norm, 0.0) + bound)
    norms = np.sqrt((true**2).sum((1, 2)))
    assert np.all(norms <= found * (1 + 1e-6))
    assert np.median(found / norms) < 1.001
    alone = variable_gradient(tf.zeros([ITEMS, width]), [shared])
    true = np.stack([each[:, drawn == item].sum(1) for item in range(ITEMS)], axis=1)
    norms = np.sqrt((true**2).sum((1, 2)))
    norm, bound = alone.squared_norm()
    assert np.all(norms <= np.sqrt(tf.maximum(norm, 0.0) + bound) * (1 + 1e-6))
    # Each example is clipped to 1: what rounding leaves of those that cancel must not be larger.
    factors = (1 / np.sqrt(tf.maximum(norm, 0.0) + bound)).astype(np.float32)
    total = tf.convert_to_tensor(alone.sum_of(alone.parts, tf.constant(factors)))
    wanted = np.tensordot(factors.astype(np.float64), true, 1)
    np.testing.assert_allclose(total, wanted, rtol=1e-5, atol=1e-5)
