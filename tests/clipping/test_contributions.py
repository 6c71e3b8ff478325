"""Contributions of every form to one variable add up before its norm is taken."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from tfdp.clipping.sums.contributions import Layout, OuterProduct, PerExampleGradients, Rows
from tfdp.clipping.sums.gradients import variable_gradient

B, T, V, D = 3, 4, 9, 5
IDS = np.array([[1, 4, 1, 8], [0, 0, 0, 0], [7, 2, 3, 7]])


def forms(generator):
    """By name: a contribution to a variable (V, D), and its gradients (B, V, D) in float64."""

    def normal(*shape):
        return generator.normal(size=(B, *shape)).astype(np.float32)

    values, z, h, u, v, whole = normal(T, D), normal(T, V), normal(T, D), normal(T, D), normal(
        T, V
    ), normal(V, D)  # fmt: skip
    rows = np.zeros((B, V, D))
    for i, t in itertools.product(range(B), range(T)):
        rows[i, IDS[i, t]] += values[i, t]
    return {
        "rows": (Rows(tf.constant(IDS), tf.constant(values)), rows),
        "product": (OuterProduct(tf.constant(z), tf.constant(h)), product_of(z, h)),
        "transposed": (
            OuterProduct(tf.constant(u), tf.constant(v), Layout((1,), (0,))),
            product_of(v, u),
        ),
        "formed": (PerExampleGradients(tf.constant(whole)), whole.astype(np.float64)),
    }


def product_of(left, right):
    return np.einsum("btp,btr->bpr", left.astype(np.float64), right.astype(np.float64))


@pytest.mark.parametrize(
    "names",
    [c for n in range(1, 5) for c in itertools.combinations(forms(np.random.default_rng()), n)],
    ids="-".join,
)
def test_forms_add_up(names):
    generator = np.random.default_rng(len(names))
    given = forms(generator)
    exact = sum(given[name][1] for name in names)
    gradient = variable_gradient(tf.zeros([V, D]), [given[name][0] for name in names])
    norm, bound = gradient.squared_norm()
    wanted = np.sum(exact**2, axis=(1, 2))
    np.testing.assert_allclose(norm, wanted, rtol=1e-5)
    assert np.all(np.abs(norm - wanted) <= bound + 1e-6 * wanted)
    factors = generator.uniform(0.1, 1.0, B).astype(np.float32)
    total = gradient.clipped_sum(tf.constant(factors), tf.constant([True] * B))
    wanted = np.einsum("b,bvd->vd", factors.astype(np.float64), exact)
    np.testing.assert_allclose(tf.convert_to_tensor(total), wanted, atol=1e-5)


@pytest.mark.parametrize("kind", ["product", "rows", "formed"])
def test_norms_are_off_by_less_than_their_bound(kind):
    """Of single products, look-ups and formed gradients; the exact norm is of the same float32."""
    generator = np.random.default_rng(0)
    size = (512, 1, 31)
    left, right = (generator.normal(size=size).astype(np.float32) for _ in range(2))
    if kind == "product":
        given = OuterProduct(tf.constant(left), tf.constant(right))
        wanted = np.prod([np.sum(x.astype(np.float64) ** 2, (1, 2)) for x in (left, right)], 0)
    else:
        wanted = np.sum(left.astype(np.float64) ** 2, axis=(1, 2))
        ids = tf.zeros([512, 1], tf.int32)
        given = (
            Rows(ids, tf.constant(left))
            if kind == "rows"
            else PerExampleGradients(tf.constant(left))
        )
    shape = [31, 31] if kind == "product" else [1, 31]
    norm, bound = variable_gradient(tf.zeros(shape), [given]).squared_norm()
    error = np.abs(norm - wanted)
    assert np.any(error > 0) and np.all(error <= bound)
