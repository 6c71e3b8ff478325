"""From norms to clip factors: bounds of rounding, scales and the mask each take part."""

import types

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdp.clipping import engine

FIRST, SECOND = (keras.layers.Dense(1, name=name) for name in ("first", "second"))
NORMS = {FIRST: [9.0, -2.0, 1.0, 16.0], SECOND: [7.0, 3.0, 0.5, 9.0]}
BOUNDS = {FIRST: [2.0, 4.0, 0.5, 1.0], SECOND: [1.0, 2.0, 0.25, 1.0]}
MASK = [True, True, True, False]


@pytest.mark.parametrize("scales", [None, [3.0, 0.5]])
@pytest.mark.parametrize("clipping", ["flat", "per_layer"])
def test_factors_are_of_scaled_norms_raised_by_their_bounds(monkeypatch, clipping, scales):
    """The rounding of a norm must not let an example through that is longer than C."""
    gradients = [
        (i, types.SimpleNamespace(squared_norm=lambda layer=layer: tuple(
            tf.constant(values[layer], tf.float64) for values in (NORMS, BOUNDS)
        )), layer)
        for i, layer in enumerate(NORMS)
    ]  # fmt: skip
    mask, given = tf.constant(MASK), []
    result = engine.Backward(None, tf.zeros(4), mask, mask, gradients)

    def sums_of(gradients, factors, finite):
        given.extend(factors)
        return [tf.zeros([])] * len(gradients)

    monkeypatch.setattr(engine, "clipped_sums_of", sums_of)
    monkeypatch.setattr(engine, "trained_variables", lambda model: [None, None])
    engine.clipped_sums(None, result, 2.0, clipping, scales=scales)
    squares = np.square(scales or [1.0, 1.0])
    raised = [
        square * (np.maximum(NORMS[layer], 0.0) + BOUNDS[layer])
        for square, layer in zip(squares, NORMS, strict=True)
    ]
    longest = [sum(raised)] * 2 if clipping == "flat" else raised
    allowed = 2.0 if clipping == "flat" else 2.0**0.5
    for factor, norm, scale in zip(given, longest, scales or [1.0, 1.0], strict=True):
        expected = np.where(MASK, np.minimum(1.0, allowed / np.sqrt(norm)) * scale, 0.0)
        np.testing.assert_allclose(factor, expected, rtol=1e-6)
