"""Products of an example's own rows, made at once, or by XLA in parts of the batch."""

import numpy as np
import pytest
import tensorflow as tf

from tfdp.clipping import products
from tfdp.xla import compiling

B, T, P = 5, 4, 7


def grams(x, ids):
    @tf.function(jit_compile=True, autograph=False)
    def both():
        with compiling(True):
            return products.gram(x), *products.gram(x, ids)

    return [g.numpy() for g in both()]


@pytest.mark.parametrize("looks_up", [T, 2 * T])
@pytest.mark.parametrize(("platform", "together"), [("CPU", 1), ("TPU", 2), ("TPU", B), ("GPU", 0)])
def test_grams_and_values_at_ids_are_those_of_each_example(
    looks_up, platform, together, monkeypatch
):
    monkeypatch.setattr(products, "_APART_UNDER_XLA", T * P)
    monkeypatch.setattr(products, "platform", lambda: platform)
    if together:
        monkeypatch.setitem(products._TOGETHER_UNDER_XLA, platform, together)
    generator = np.random.default_rng(looks_up)
    x = generator.normal(size=(B, T, P)).astype(np.float32)
    ids = generator.integers(0, P, (B, looks_up))
    alone, gram, at_ids = grams(tf.constant(x), tf.constant(ids))
    for i in range(B):
        wanted = x[i].astype(np.float64) @ x[i].T.astype(np.float64)
        np.testing.assert_allclose(alone[i], wanted, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(gram[i], wanted, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(at_ids[i], x[i][:, ids[i]])
