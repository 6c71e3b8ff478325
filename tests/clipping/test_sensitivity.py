"""What one example adds to a clipped sum never has a norm beyond C(1 + 1e-6), but for float32."""

import functools
import types

import keras
import numpy as np
import pytest
import slow
import tensorflow as tf
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tfdp.clipping import OuterProduct, PerExampleGradients, Rows
from tfdp.clipping.sums import surviving_rows
from tfdp.clipping.sums.contributions import SharedRows
from tfdp.clipping.sums.factors import CLIPPING, clip_factors
from tfdp.clipping.sums.gradients import variable_gradient
from tfdp.clipping.sums.products import UNDERFLOW
from tfdp.noise.grid import sum_rounding
from tfdp.runtime.wide_sums import dense, sums_of_segments
from tfdp.runtime.xla import compiling

CLIP_NORM = 0.7
# Of the clip norm, by which float32 may move one example's clipped gradient.
EXCESS = 1e-6
TENSORS = {
    OuterProduct: lambda c: [c.left, c.right],
    Rows: lambda c: [c.ids, c.values],
    PerExampleGradients: lambda c: [c.values],
}


def test_the_noise_covers_what_clipping_may_exceed_the_norm_by():
    assert EXCESS <= sum_rounding(0)


def outer(left, right):
    """Contributions, their variable's shape and the true gradients."""
    left, right = (np.asarray(a, np.float32) for a in (left, right))
    true = np.einsum("btp,btr->bpr", left.astype(np.float64), right.astype(np.float64))
    return [OuterProduct(tf.constant(left), tf.constant(right))], true


def tied(ids, values, logits, hidden):
    """Look-up and head of one table."""
    contributions, true = outer(logits, hidden)
    for i, row in enumerate(ids):
        for t, j in enumerate(row):
            true[i, j] += np.asarray(values, np.float32)[i, t].astype(np.float64)
    rows = Rows(tf.constant(ids, tf.int32), tf.constant(values, tf.float32))
    return [rows, *contributions], true


def factors_of(shape, clipping, kinds, tensors):
    """Factors, and what a step rounds before it multiplies by them: what is released.

    That is per-example gradients, where it forms them, or rows of repeated ids, which it merges.
    """

    class Variable:
        pass

    variable = Variable()
    variable.shape = shape
    gradient = variable_gradient(
        variable, [kind(*parts) for kind, parts in zip(kinds, tensors, strict=True)]
    )
    norm, bound = gradient.squared_norm()
    example_mask = tf.ones(shape=[tensors[0][0].shape[0]], dtype=tf.bool)
    kept = [tf.maximum(norm, 0.0) + bound]
    rounded = getattr(getattr(gradient, "rows", gradient), "values", None)
    return clip_factors(kept, example_mask, CLIP_NORM, clipping)[0][0], rounded


@functools.cache
def compiled_factors(shape, clipping, kinds):
    """`factors_of`, compiled once for all contributions of the same shapes."""
    function = functools.partial(factors_of, shape, clipping, kinds)
    return tf.function(function, jit_compile=True, autograph=False)


def excess(contributions, true, clipping="normalized", jit_compile=False):
    """max_i c_i·‖g_i‖/C − 1, with float64 norms of what is multiplied by the factors."""
    shape, kinds = true.shape[1:], tuple(type(c) for c in contributions)
    tensors = [TENSORS[type(c)](c) for c in contributions]
    with compiling(jit_compile):  # eagerly otherwise: a trace takes longer than the few numbers
        if jit_compile:
            factor, rounded = compiled_factors(shape, clipping, kinds)(tensors)
        else:
            factor, rounded = factors_of(shape, clipping, kinds, tensors)
    released = true if rounded is None else as_released(true, contributions, rounded.numpy())
    norms = np.sqrt(np.square(released).reshape(len(true), -1).sum(1))
    return np.max(factor.numpy().astype(np.float64) * norms) / CLIP_NORM - 1


def as_released(true, contributions, rounded):
    """`true` with what a step has rounded, and multiplies by the factors, in place of the exact."""
    rounded = rounded.astype(np.float64)
    rows = contributions[0]
    if not isinstance(rows, Rows):
        return rounded
    values = rows.values.numpy().astype(np.float64)
    error, most = np.zeros_like(true), np.zeros_like(true)
    for i, ids in enumerate(rows.ids.numpy()):
        np.add.at(error[i], ids, rounded[i] - values[i])
        np.add.at(most[i], ids, np.abs(values[i]) * len(ids) * 2.0**-24 + UNDERFLOW)
    assert np.all(np.abs(error) <= most)  # rounding, and nothing else, is what differs
    return true + error


def softmax_like(generator, batch, positions, classes):
    z = generator.dirichlet(np.full(classes, 0.05), (batch, positions))
    z[:, np.arange(positions), generator.integers(0, classes, positions)] -= 1
    return z


def factor_kinds(generator, batch, t, p, r, only=None):
    """(left, right): random, one-signed (rounding adds up), of rank one, cancelling."""
    one, two = generator.uniform(0.5, 2.0, 2)
    a, b = generator.uniform(0.5, 2, (batch, 1, p)), generator.uniform(0.5, 2, (batch, 1, r))
    normal = lambda *shape: generator.normal(size=shape)  # noqa: E731
    sign = np.where(np.arange(t) % 2, 1.0, -1.0)[None, :, None]
    almost = sign * (1 + 1e-4 * generator.normal(size=(batch, t, 1)))
    kinds = {  # only what is asked for is drawn
        "random": lambda: (normal(batch, t, p), normal(batch, t, r)),
        "constant": lambda: (np.full((batch, t, p), one), np.full((batch, t, r), two)),
        "rank one": lambda: (np.repeat(a, t, 1), np.repeat(b, t, 1)),
        "softmax": lambda: (normal(batch, t, p), softmax_like(generator, batch, t, r)),
        "cancelling": lambda: (np.repeat(a, t, 1), np.repeat(b, t, 1) * sign),
        "nearly cancelling": lambda: (np.repeat(a, t, 1), b * almost),
        "constant, nearly cancelling": lambda: (np.full((batch, t, p), one), two * almost + 0 * b),
    }  # fmt: skip
    return {k: draw() for k, draw in kinds.items() if only is None or k in only}


# XLA compiles for every kind: those whose rounding is worst.
WORST = ("constant", "rank one", "nearly cancelling")


@pytest.mark.thorough_after(12)
@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize(
    ("t", "p", "r"),
    slow.cases(
        [(1, 131_072, 1), (1, 300, 5000), (2, 8, 8), (2, 5000, 64), (16, 64, 64), (50, 64, 5000),
         (64, 512, 64), (200, 64, 300), (512, 64, 5000), (512, 256, 64)],
        slow=[(512, 64, 5000)],
    ),
)  # fmt: skip
def test_outer_products(t, p, r, jit_compile):
    generator = np.random.default_rng(t + p + r)
    kinds = factor_kinds(generator, 2, t, p, r, WORST if jit_compile else None)
    for name, factors in kinds.items():
        assert excess(*outer(*factors), jit_compile=jit_compile) <= EXCESS, name


@pytest.mark.thorough
@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize(
    ("t", "d", "items"),
    slow.cases([(1, 8, 20), (8, 16, 30), (50, 64, 5000), (512, 32, 3000)], slow=[(512, 32, 3000)]),
)
def test_tied_table(t, d, items, jit_compile):
    generator = np.random.default_rng(t)
    ids = generator.integers(0, items, (2, t))
    kinds = factor_kinds(generator, 2, t, items, d, WORST if jit_compile else None)
    for name, (z, h) in kinds.items():
        values = generator.normal(size=(2, t, d))
        assert excess(*tied(ids, values, z, h), jit_compile=jit_compile) <= EXCESS, name
        # The look-up's gradient takes back what the head gives to its rows, up to 1e-4.
        contributions, head = outer(z, h)
        z_only = np.zeros_like(z)
        np.put_along_axis(z_only, ids[:, :, None], np.take_along_axis(z, ids[:, :, None], 2), 2)
        close = -np.take_along_axis(z_only, ids[:, :, None], 2) * h
        close = close * (1 + 1e-4 * generator.normal(size=close.shape))
        case = tied(ids, close, z_only, h)
        assert excess(*case, jit_compile=jit_compile) <= EXCESS, f"{name}, taken back"


@pytest.mark.thorough
@given(
    t=st.integers(1, 6),
    d=st.integers(1, 5),
    items=st.integers(1, 6),
    kind=st.sampled_from(["exact", "nearly", "free"]),
    clipping=st.sampled_from(["flat", "normalized", "automatic"]),
    scale=st.floats(-19, 12),
    seed=st.integers(0, 2**32 - 1),
)
@example(t=2, d=1, items=3, kind="nearly", clipping="normalized", scale=0.0, seed=0)
@example(t=2, d=1, items=1, kind="nearly", clipping="normalized", scale=0.0, seed=8)
@example(t=1, d=3, items=1, kind="free", clipping="normalized", scale=-19.0, seed=0)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_adversarial_search_over_tied_tables(t, d, items, kind, clipping, scale, seed):
    generator = np.random.default_rng(seed)
    ids = generator.integers(0, items, (3, t))
    z = np.zeros((3, t, items))
    h = generator.normal(size=(3, t, d)) * 10.0**scale
    if kind == "free":
        z = generator.normal(size=(3, t, items))
        values = generator.normal(size=(3, t, d)) * 10.0**scale
    else:
        np.put_along_axis(z, ids[:, :, None], 1.0, 2)
        wobble = 10.0 ** generator.uniform(-9, -1)
        values = -h * (1 + wobble * generator.normal(size=h.shape) * (kind == "nearly"))
    assert excess(*tied(ids, values, z, h), clipping) <= EXCESS


@pytest.mark.thorough_after(1)
@pytest.mark.parametrize(
    ("clipping", "jit_compile"),
    slow.cases(
        [(c, jit) for c in ("flat", "normalized", "automatic") for jit in (False, True)],
        slow=[("normalized", True), ("automatic", True)],
    ),
)
def test_squares_that_underflow(clipping, jit_compile):
    # A record (x, y) = (3.2e-20, 1.8e19) under a squared error has a gradient of norm 5.76.
    cases = [
        outer(np.full((1, 1, 100), 3.2e-20), np.full((1, 1, 1), 1.8e19)),
        outer(np.full((1, 4, 100), 3.2e-20), np.full((1, 4, 2), 1e18)),
        outer(np.full((1, 100, 64), 4e-11), np.full((1, 100, 5000), 4.5e-12)),
        outer(np.full((1, 4, 3), 1e-20), np.full((1, 4, 2), 1e-15)),
        outer(np.full((1, 1, 3), 1e-20), np.full((1, 1, 2), 1e-15)),
    ]
    small = np.append(np.full(1000, 1e-19), 1e-18)[None].astype(np.float32)
    cases.append(([PerExampleGradients(tf.constant(small))], small.astype(np.float64)))
    ids = np.arange(100)[None]
    values = np.full((1, 100, 3), 9e-20)
    true = values.astype(np.float32).astype(np.float64)
    cases.append(([Rows(tf.constant(ids), tf.constant(values, tf.float32))], true))
    cases.append(tied(ids, values, np.full((1, 4, 100), 3e-20), np.full((1, 4, 3), 1e18)))
    for i, (contributions, true) in enumerate(cases):
        assert excess(contributions, true, clipping, jit_compile) <= EXCESS, i


@pytest.mark.thorough
@pytest.mark.parametrize("jit_compile", [False, True])
def test_long_positive_sums(jit_compile):
    for value in (0.1, 1 / 3, 1.2345, 1.9999):
        values = np.full((1, 1 << 18), value, np.float32)
        case = [PerExampleGradients(tf.constant(values))], values.astype(np.float64)
        assert excess(*case, jit_compile=jit_compile) <= EXCESS


@pytest.mark.parametrize("size", [1e-21, 9e-20, 1.0])
@pytest.mark.parametrize("now", [False, True])
def test_norms_of_look_ups_that_survived_are_not_underestimated(size, now):
    generator = np.random.default_rng(0)
    ids = generator.permutation(60).reshape(3, 20)
    values = (size * generator.normal(size=(3, 20, 7))).astype(np.float32)
    variable = types.SimpleNamespace(shape=(60, 7))
    gradient = variable_gradient(variable, [Rows(tf.constant(ids), tf.constant(values))])
    survivors = np.flatnonzero(generator.random(60) < 0.4)
    with compiling(now):
        left = surviving_rows._surviving(gradient, tf.constant(survivors))
        norm, bound = (t.numpy() for t in left.squared_norm())
    true = np.sum((values.astype(np.float64) * np.isin(ids, survivors)[:, :, None]) ** 2, (1, 2))
    assert np.all(norm + bound >= true)
    assert size < 1.0 or np.all(norm + bound <= true * 1.0001)


def test_rounding_bounds_leave_ordinary_gradients_alone():
    # The bound must not eat the signal: ordinary norms rise by less than a percent.
    generator = np.random.default_rng(0)
    for t, p, r in [(1, 300, 50), (50, 64, 5000), (200, 64, 3417), (512, 64, 5000)]:
        for name in ("random", "softmax"):
            case = outer(*factor_kinds(generator, 2, t, p, r, (name,))[name])
            assert -0.03 <= excess(*case) <= EXCESS, (t, name)


def test_factor_table():
    norms = tf.constant([0.0, 1e-4, 1.0, 4.0, np.inf, np.nan, 1e39, 4.0], tf.float64)
    example_mask = tf.constant([True] * 7 + [False])
    wanted = {
        "flat": [1, 1, 0.5, 0.25, 0, 0, 0, 0],
        "automatic": [50, 25, 0.5 / 1.01, 0.5 / 2.01, 0, 0, 0, 0],
        "normalized": [0, 50, 0.5, 0.25, 0, 0, 0, 0],
    }
    for clipping, values in wanted.items():
        (factors,), finite = clip_factors([norms], example_mask, 0.5, clipping)
        np.testing.assert_allclose(factors, values, rtol=1e-6)
    np.testing.assert_array_equal(finite, [True] * 4 + [False] * 3 + [True])


def test_per_layer_bounds_add_up_to_the_clip_norm():
    norms = [tf.constant([k**2], tf.float64) for k in (1e3, 2e3, 5e2, 7e5)]
    factors, _ = clip_factors(norms, tf.constant([True]), 2.0, "per_layer")
    total = sum(float(f[0]) ** 2 * float(n[0]) for f, n in zip(factors, norms, strict=True))
    assert np.sqrt(total) == pytest.approx(2.0, rel=1e-6)
    assert set(CLIPPING) == {"flat", "automatic", "normalized", "per_layer"}


def model_and_data(name):
    layers = keras.layers
    generator = np.random.default_rng(3)
    if name == "tied":
        inputs = keras.Input((4,), dtype="int32")
        table = layers.ReversibleEmbedding(7, 5)
        model = keras.Model(inputs, table(layers.Dense(5)(table(inputs)), reverse=True))
        return model, generator.integers(0, 7, (5, 4)).astype(np.int32)
    if name == "gru":
        body = [layers.GRU(3), layers.Dense(7)]
        shape = (4, 2)
    else:
        body = [layers.Conv1D(3, 2), layers.LayerNormalization(), layers.Flatten(),
                layers.Dense(7)]  # fmt: skip
        shape = (4, 2)
    x = generator.normal(size=(5, *shape)).astype(np.float32)
    return keras.Sequential([keras.Input(shape), *body]), x


NOT_FINITE = [("tied", False), ("gru", False), ("conv", False), ("tied", True), ("conv", True)]


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "jit_compile"), slow.cases(NOT_FINITE, slow=[("conv", True)]))
def test_examples_that_are_not_finite_contribute_zero(brute_force, name, jit_compile):
    model, x = model_and_data(name)
    # Example 1 has an infinite loss, example 3 a NaN loss; the others are as if alone.
    factor = np.array([1.0, np.inf, 2.0, np.nan, 0.5], np.float32)

    def losses(outputs):
        loss = tf.reduce_mean(tf.reshape(tf.square(outputs), [5, -1]), 1)
        return loss * tf.cast(factor, loss.dtype)

    check = brute_force(lambda: model, x, losses, float64=False)
    clippings = CLIPPING if name == "conv" or not jit_compile else ("normalized", "per_layer")
    _, found = check.private(0.3, *clippings, jit_compile=jit_compile)
    example_mask = [True, False, True, False, True]
    _, without = check.private(0.3, *clippings, example_mask=example_mask)
    for (sums, factors), (others, _) in zip(found, without, strict=True):
        assert all(f[1] == f[3] == 0 for f in factors)
        for a, b in zip(sums, others, strict=True):
            assert np.all(np.isfinite(a)) and np.any(a != 0)
            # XLA adds up in another order.
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=3e-6 * np.abs(b).max())


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["conv"])
def test_absent_examples_contribute_nothing_even_if_nan(brute_force, name):
    model, x = model_and_data(name)
    padded = x.copy()
    padded[3:] = np.nan

    def losses(outputs):
        return tf.reduce_mean(tf.reshape(tf.square(outputs), [5, -1]), 1)

    example_mask = [True] * 3 + [False] * 2
    check = brute_force(lambda: model, x, losses, float64=False)
    _, [(wanted, _)] = check.private(0.3, "normalized", example_mask=example_mask)
    check.x = tf.constant(padded)
    _, [(sums, factors)] = check.private(0.3, "normalized", example_mask=example_mask)
    assert np.all(factors[0][3:] == 0)
    for a, b in zip(sums, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


@pytest.mark.thorough_after(7)
@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize(
    ("t", "items", "width", "way"),
    [(1, 8, 3, "single"), (2, 8, 3, "exact"), (10, 700, 20, "gram"), (50, 30, 4, "per_example")],
)
def test_ids_of_no_row_read_nothing_of_other_examples(t, items, width, way, jit_compile):
    generator = np.random.default_rng(t)
    ids = generator.integers(0, items, (3, t))
    ids[1:, 0] = -1
    values = generator.normal(size=(3, t, width)) * (ids >= 0)[..., np.newaxis]
    logits = generator.normal(size=(3, t, items))
    logits[0] = np.nan
    with np.errstate(invalid="ignore"):
        contributions, true = tied(ids, values, logits, generator.normal(size=(3, t, width)))
    outer = variable_gradient(tf.zeros([items, width]), contributions).outer
    assert way == "exact" or outer.strategy == way

    @tf.function(jit_compile=jit_compile, autograph=False)
    def squared_norm():
        with compiling(jit_compile):
            return variable_gradient(tf.zeros([items, width]), contributions).squared_norm()[0]

    norm = squared_norm().numpy()
    assert np.isnan(norm[0])
    np.testing.assert_allclose(norm[1:], np.square(true[1:]).sum((1, 2)), rtol=1e-5)


@pytest.mark.parametrize("kind", [Rows, SharedRows])
def test_ids_of_no_row_add_nothing_to_the_gradient_before(kind):
    values = np.ones((3, 2, 4), np.float32)
    values[1] = np.nan  # 0 times it is no zero
    if kind is Rows:
        looked_up = Rows(tf.constant([[0, 1], [-1, 2], [3, 1]]), tf.constant(values))
    else:
        left = tf.ones([3, 1, 2])
        looked_up = SharedRows(tf.constant([-1, 2]), left, tf.constant(values[:, :1]))
    others = PerExampleGradients(tf.zeros([3, 5, 4]))
    found = variable_gradient(tf.zeros([5, 4]), [looked_up, others]).values.numpy()
    assert not np.any(found[[0, 2], 4]) and np.isnan(found[1]).any()


@pytest.mark.thorough
def test_zero_gradients_stay_zero(brute_force):
    model, x = model_and_data("tied")
    check = brute_force(lambda: model, x, lambda out: tf.reduce_sum(0.0 * out, [1, 2]), False)
    for sums, _ in check.private(1.0, "flat", "normalized", "automatic", "per_layer")[1]:
        assert all(np.all(s == 0) for s in sums)


def moved_by_first(gradient, raised, clipping):
    """How far the first example moves the clipped sum, over the clip norm."""
    sums = []
    for mask in (np.ones(len(raised), bool), np.arange(len(raised)) > 0):
        factors, finite = clip_factors([raised], tf.constant(mask), CLIP_NORM, clipping)
        total = tf.convert_to_tensor(gradient.clipped_sum(factors[0], finite))
        sums.append(total.numpy().astype(np.float64))
    return np.linalg.norm(sums[0] - sums[1]) / CLIP_NORM


@pytest.mark.thorough_after(1)
@pytest.mark.parametrize(("left", "right"), [(2.0**-66, 2.0**50), (2.0**20, 2.0**20)])
def test_large_products_that_cancel_leave_the_sum_of_the_others(left, right):
    """They are rounded in the sum; so are they where the squares of their factors underflow."""
    count, positions, size = 16, 256, 520
    lefts, rights = (np.zeros((count, positions, size), np.float32) for _ in range(2))
    lefts[:, 0] = rights[:, 0] = size**-0.5
    lefts[0] = left
    rights[0] = right * np.where(np.arange(positions) < positions // 2, 1, -1)[:, np.newaxis]
    product = OuterProduct(tf.constant(lefts), tf.constant(rights))
    gradient = variable_gradient(tf.zeros([size, size]), [product])
    assert gradient.strategy == "looped"
    # What is rounded is the parts: none may be longer than 1,300 C once it is clipped.
    norm, bound = gradient.squared_norm()
    length = np.sum(np.prod([np.linalg.norm(t[0], axis=1) for t in (lefts, rights)], axis=0))
    assert length <= 1300 * (max(float(norm[0]), 0.0) + float(bound[0])) ** 0.5
    for clipping in ("flat", "normalized"):
        assert moved_by_first(gradient, norm + bound, clipping) <= 1 + 1e-3


@pytest.mark.parametrize("clipping", ["flat", "normalized"])
@pytest.mark.parametrize("positions", [1, 2])
def test_a_look_up_that_takes_back_the_head_leaves_the_sum_of_the_others(positions, clipping):
    """The norm of nothing is found exactly; the sum adds up both parts in float32."""
    count, items, width = 512, 8, 4
    ids = np.full((count, positions), 3)
    values, hidden = (np.zeros((count, positions, width), np.float32) for _ in range(2))
    logits = np.zeros((count, positions, items), np.float32)
    hidden[:, 0], logits[:, 0, 0] = 0.03, 1.0
    ids[0], values[0], hidden[0], logits[0, :, 0] = 0, -1e8, 1e8, 1.0
    contributions, true = tied(ids, values, logits, hidden)
    assert not true[0].any()
    gradient = variable_gradient(types.SimpleNamespace(shape=(items, width)), contributions)
    assert moved_by_first(gradient, tf.add_n(gradient.squared_norm()), clipping) <= 1 + 1e-3


FORMS = {
    "per example": lambda g: PerExampleGradients(g),
    "outer products": lambda g: OuterProduct(tf.ones([g.shape[0], 1, 1]), g[:, tf.newaxis]),
    "rows": lambda g: Rows(tf.zeros([g.shape[0], 1], tf.int32), g[:, tf.newaxis]),
}


def clipped_sum_of(form, g, width):
    """The sum of gradients (n, width) that nobody clips."""
    shape = (width,) if form == "per example" else (1, width)
    contributions = [FORMS[form](tf.convert_to_tensor(g))]
    gradient = variable_gradient(types.SimpleNamespace(shape=shape), contributions)
    parts = gradient.clipped_sum(tf.ones(g.shape[0]), tf.ones(g.shape[0], tf.bool))
    return tf.reshape(dense(parts), [width])


def surviving_sum_of(g):
    rows = tf.zeros([g.shape[0], 1], tf.int64)
    gradient = variable_gradient(
        types.SimpleNamespace(shape=(1, 1)), [Rows(rows, g[:, tf.newaxis])]
    )
    kept = surviving_rows._surviving(gradient, tf.constant([0], tf.int64))
    return kept.clipped_sum(tf.ones(g.shape[0]), tf.ones(g.shape[0], tf.bool)).values[0]


def sum_of_small_products(g):
    left, right = tf.ones([g.shape[0], 1, 2]), tf.repeat(g[:, tf.newaxis], 3, axis=2)
    gradient = variable_gradient(types.SimpleNamespace(shape=(2, 3)), [OuterProduct(left, right)])
    return gradient.clipped_sum(tf.ones(g.shape[0]), tf.ones(g.shape[0], tf.bool))[0, :1]


SUMS = {
    **{form: functools.partial(clipped_sum_of, form, width=1) for form in FORMS},
    "small products": sum_of_small_products,
    "surviving rows": surviving_sum_of,
}


@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("form", SUMS)
def test_no_example_decides_how_a_sum_rounds_many_others(form, jit_compile):
    """With it the sum so far stays above a power of two, below which float32 is twice as fine."""
    size, half = 65_536, 32_768
    others = np.full(size, -0.99 * 2.0**-9, np.float32)  # just too little to move what is above
    others[1:half], others[half] = 1.0, 0.5
    sums = []

    @functools.partial(tf.function, jit_compile=jit_compile, autograph=False)
    def run(g):
        with compiling(jit_compile):
            return SUMS[form](g=g)

    for own in (0.0, 1.0):
        others[0] = own
        sums.append(run(tf.constant(others[:, np.newaxis])).numpy().astype(np.float64))
    assert np.linalg.norm(sums[1] - sums[0]) <= 1 + sum_rounding(size)


@pytest.mark.thorough_after(1)
@pytest.mark.parametrize("form", FORMS)
def test_float32_sums_of_many_aligned_examples_move_by_what_is_charged(form):
    def clipped_sum(g):
        return clipped_sum_of(form, g, 256).numpy().astype(np.float64)

    size = 16_384
    g = 1 + 0.5 * np.random.default_rng(0).normal(size=(size, 256))
    g = (g / np.linalg.norm(g, axis=1, keepdims=True)).astype(np.float32)
    moved = np.linalg.norm(clipped_sum(g) - clipped_sum(g[1:]))
    assert moved <= 1 + sum_rounding(size)


@pytest.mark.parametrize("clipping", CLIPPING)
def test_a_gradient_of_zeros_adds_zeros_whatever_its_norm_is_raised_by(clipping):
    """An infinite factor would make NaN of them, and of the sum: who was in would show."""
    for norm in (0.0, 1e-80, 1e-70):
        norms = [tf.constant([norm], tf.float64)]
        (factors,), finite = clip_factors(norms, tf.constant([True]), 100.0, clipping)
        assert finite.numpy().all() and (factors * 1e6 * 0.0).numpy() == 0.0


@pytest.mark.parametrize("count", [5, 200_000])
def test_rows_of_small_and_large_tables_are_added_up_in_float64(count):
    """Those of −1 are none; and no example decides how the others are rounded."""
    size, half = 65_536, 32_768
    values = np.full((size, 2), -0.99 * 2.0**-9, np.float32)
    values[1:half], values[half], values[-2:] = 1.0, 0.5, 7.0
    rows = np.zeros(size, np.int64)
    rows[-2:] = -1, 3
    sums = []
    for own in (0.0, 1.0):
        values[0] = own
        found = sums_of_segments(tf.constant(values), tf.constant(rows), count).numpy()
        assert found.shape == (count, 2) and found.dtype == np.float32
        assert (found[3] == 7.0).all() and not found[[1, 2, 4]].any() and not found[5:].any()
        expected = values[:-2].astype(np.float64).sum(0)
        np.testing.assert_allclose(found[0], expected, rtol=2.0**-23)
        sums.append(found[0].astype(np.float64))
    assert np.abs(sums[1] - sums[0]).max() <= 1 + sum_rounding(size)
