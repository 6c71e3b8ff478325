"""Products of an example's own rows, made at once, or by XLA in parts of the batch."""

import numpy as np
import pytest
import tensorflow as tf

from tfdp.clipping.sums import products
from tfdp.clipping.sums.contributions import OuterProduct, Rows
from tfdp.clipping.sums.gradients import variable_gradient
from tfdp.runtime import xla
from tfdp.runtime.xla import compiling, for_platform, is_compiling, platform

B, T, P = 5, 4, 7


def grams(x, ids):
    @tf.function(jit_compile=True, autograph=False)
    def both():
        with compiling(True):
            return products.gram(x), *products.gram(x, ids)

    return [g.numpy() for g in both()]


@pytest.mark.thorough_after(3)
@pytest.mark.parametrize("looks_up", [T, 2 * T])
@pytest.mark.parametrize(("where", "together"), [("CPU", 1), ("TPU", 2), ("TPU", B), ("GPU", 0)])
def test_grams_and_values_at_ids_are_those_of_each_example(looks_up, where, together, monkeypatch):
    monkeypatch.setattr(products, "_APART_UNDER_XLA", T * P)
    monkeypatch.setattr(products, "_TOGETHER_ON_CPU", (P, T * P - 1))
    if together:
        monkeypatch.setitem(products._TOGETHER_UNDER_XLA, where, together)
    generator = np.random.default_rng(looks_up)
    x = generator.normal(size=(B, T, P)).astype(np.float32)
    ids = generator.integers(0, P, (B, looks_up))
    with for_platform(where):
        alone, gram, at_ids = grams(tf.constant(x), tf.constant(ids))
    for i in range(B):
        wanted = x[i].astype(np.float64) @ x[i].T.astype(np.float64)
        np.testing.assert_allclose(alone[i], wanted, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(gram[i], wanted, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(at_ids[i], x[i][:, ids[i]])


def test_platform_and_compilation_are_as_they_were_afterwards(monkeypatch):
    before = platform()
    with compiling(True), for_platform("TPU"):
        with compiling(False), for_platform("GPU"):
            assert not is_compiling() and platform() == "GPU"
        assert is_compiling() and platform() == "TPU"
    assert not is_compiling() and platform() == before
    monkeypatch.setattr(xla, "traces_once", lambda strategy: True)  # as a TPUStrategy does
    assert platform() == "TPU"


def factors(size, length, positions, kind):
    """Rows in all directions, or rows that all add up."""
    generator = np.random.default_rng(size)
    if kind == "aligned":
        rows = np.repeat(1 + 0.1 * generator.random((1, 1, length)), positions, axis=1)
    else:
        rows = generator.normal(size=(1, positions, length))
    return rows.astype(np.float32)


@pytest.mark.thorough_after(1)
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kind", ["random", "aligned"])
@pytest.mark.parametrize(
    ("width", "vocabulary", "positions"), [(768, 20_000, 96), (512, 9_000, 40)]
)
def test_large_vocabularies_raise_norms_by_a_thousandth(width, vocabulary, positions, kind, tied):
    z = factors(1, vocabulary, positions, kind)
    h = factors(2, width, positions, kind)
    table = tf.zeros([vocabulary, width])
    given = [OuterProduct(tf.constant(z), tf.constant(h))]
    matrix = z[0].astype(np.float64).T @ h[0].astype(np.float64)
    if tied:
        given.append(Rows(tf.constant([[1, 3]]), tf.constant(factors(3, width, 2, kind))))
        np.add.at(matrix, [1, 3], given[1].values[0].numpy().astype(np.float64))
    gradient = variable_gradient(table, given)
    assert getattr(gradient, "outer", gradient).strategy == "gram"
    norm, bound = (float(t[0]) for t in gradient.squared_norm())
    true = np.sum(matrix**2)
    assert true <= norm + bound <= 1.002 * true


@pytest.mark.thorough
@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("count", [1, 32, 37, 64, 96, 4096])
def test_sums_of_squares_are_off_by_less_than_their_bound(count, jit):
    generator = np.random.default_rng(count)
    shapes = {
        "alike": np.full(count, 1.1),
        "growing": np.linspace(1e-3, 1, count),
        "one large": np.where(np.arange(count), 3e-4, 1.7),
        "wide": np.exp(generator.normal(size=count) * 6),
        "tiny": 1e-19 * (1 + generator.random(count)),
        "lost": 1e-21 * (1 + generator.random(count)),
        "large": 1e18 * (1 + generator.random(count)),
    }
    x = np.stack([*shapes.values(), *generator.normal(size=(200, count))]).astype(np.float32)

    @tf.function(jit_compile=jit, autograph=False)
    def found(x):
        with compiling(jit):
            return products.sum_of_squares(x)

    exact = np.sum(x.astype(np.float64) ** 2, axis=1)
    allowed = exact * products.POSITIVE + count * products.UNDERFLOW
    off = np.abs(found(tf.constant(x)).numpy() - exact)
    assert np.all(off <= allowed)
    of_any_batch = tf.function(
        found.python_function, [tf.TensorSpec([None, count])], autograph=False, jit_compile=jit
    )
    assert np.all(np.abs(of_any_batch(x).numpy() - exact) <= allowed)
    assert np.all(np.abs(products.sum_of_squares(tf.constant(x, tf.float64)) - exact) <= allowed)
    # Close enough to the bound for one that is too small to be seen.
    assert count < 64 or np.max(off / exact) > products.POSITIVE / 40
