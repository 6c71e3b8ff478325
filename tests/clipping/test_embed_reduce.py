"""keras_rs layers: what they look up is looked up, and each example's gradient is exact."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdp.clipping import per_example_gradient_norms
from tfdp.clipping.plan.planning import make_clipping_plan
from tfdp.clipping.rules.embed_reduce import EmbedReduceRule

keras_rs = pytest.importorskip("keras_rs")
V, D = 9, 4


class Features(keras.Model):
    """Two features of one table, a single-valued one of another, by `DistributedEmbedding`."""

    def __init__(self, combiner):
        super().__init__()
        config = keras_rs.layers.FeatureConfig
        # The same weights always: a gradient that nearly cancels is known less well.
        first = [keras.initializers.GlorotUniform(seed) for seed in range(4)]
        items, users = (
            keras_rs.layers.TableConfig(name, V, D, initializer=first.pop(), combiner=combiner)
            for name in ("items", "users")
        )
        self.features = keras_rs.layers.DistributedEmbedding(
            {
                "liked": config("liked", items, (None, 3), (None, D)),
                "seen": config("seen", items, (None, 2), (None, D)),
                "user": config("user", users, (None,), (None, D)),
            }
        )
        self.dense = keras.layers.Dense(5, "tanh", kernel_initializer=first.pop())
        self.head = keras.layers.Dense(2, kernel_initializer=first.pop())

    def call(self, x):
        ids, weights = x if isinstance(x, tuple) else (x, None)
        found = self.features(ids, weights)
        return self.head(self.dense(tf.concat([found[k] for k in sorted(found)], axis=1)))


def features(batch, weighted):
    generator = np.random.default_rng(1)
    sizes = {"liked": (batch, 3), "seen": (batch, 2), "user": (batch,)}
    ids = {k: generator.integers(0, 4, size) for k, size in sizes.items()}
    ids["liked"][0] = [3, 0, 3]  # a repeated id, and row 0
    ids["seen"][0] = [3, 1]  # the same row by another feature
    weights = {k: generator.normal(size=s).astype("float32") for k, s in sizes.items()}
    weights["liked"][-1] = 0.0  # the divisor is 0: zeros, and no gradient
    return (ids, weights) if weighted else ids


@pytest.mark.thorough_after(2)
@pytest.mark.parametrize(
    "combiner, batch, weighted", [("sum", 6, True), ("mean", 1, False), ("sqrtn", 6, True)]
)
def test_norms_and_clipped_sums_are_exact(combiner, batch, weighted, brute_force, mean_loss):
    y = np.random.default_rng(2).normal(size=(batch, 2)).astype("float32")
    check = brute_force(lambda: Features(combiner), features(batch, weighted), mean_loss("mse", y))
    check.check(("flat",))
    rules = {u.layer.name: u.rule for u in make_clipping_plan(check.model, check.x).calls.values()}
    assert None not in rules.values() and {"items", "users"} <= set(rules)


IDS = np.array([[1, 0, 1], [5, -1, 7], [0, 0, 0], [2, 3, 8]])
WEIGHTS = np.array([[0.5, 2, -1], [1, 0, 3], [1, 1, 1], [2, 2, 0.1]], "float32")
RAGGED = tf.ragged.constant([[1, 1, 5], [-1], [], [0, 2]], tf.int64)
RAGGED_WEIGHTS = tf.ragged.constant([[0.5, 2.0, 1.0], [3.0], [], [1.0, 1.5]])
CALLS = {
    "id 0, negative ids": (IDS,),
    "weights": (IDS, WEIGHTS),
    "a weight for each example": (IDS, WEIGHTS[:, 0]),
    "one-dimensional": (IDS[:, 0],),
    "one-dimensional, weights": (IDS[:, 0], WEIGHTS[:, 0]),
    "small integers": (IDS.astype("int8"),),
    "floats": (np.abs(IDS).astype("float32"),),
    "two feature axes": (np.stack([IDS, IDS[::-1]], 1), np.stack([WEIGHTS, WEIGHTS], 1)),
    "ragged": (RAGGED,),
    "ragged, weights": (RAGGED, RAGGED_WEIGHTS),
    "ragged, a weight for each example": (RAGGED, WEIGHTS[:, 0]),
}


@pytest.mark.thorough_after(25)
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("name", CALLS)
def test_ids_and_weights_mean_what_they_mean_to_the_layer(name, combiner):
    args = [t if isinstance(t, tf.RaggedTensor) else tf.constant(t) for t in CALLS[name]]
    table = np.random.default_rng(0).normal(size=(V, D))
    layer, exact = (
        keras_rs.layers.EmbedReduce(V, D, combiner=combiner, mask_zero=True, dtype=dtype)
        for dtype in ("float32", "float64")
    )
    low = keras_rs.layers.EmbedReduce(V, D, combiner=combiner, dtype="mixed_bfloat16")
    for one in (layer, exact, low):
        one.build(None)
        one.embeddings.assign(table)
    rule = EmbedReduceRule()
    assert rule.accepts(layer, args, {})
    output = rule.call(layer, None, args, {}, lambda t: t)
    assert rule.call(low, None, args, {}, lambda t: t).dtype == low(*args).dtype

    with tf.GradientTape(persistent=True) as tape:
        wanted = exact(*args)
        total = tf.reduce_sum(tf.square(wanted) / 2, axis=list(range(1, wanted.shape.rank)))
        losses = tf.unstack(total)
    np.testing.assert_allclose(output, wanted, rtol=1e-5, atol=1e-6)
    gradients = [tf.convert_to_tensor(tape.gradient(loss, exact.embeddings.value))
                 for loss in losses]  # fmt: skip
    ((variable, rows),) = rule.contributions(layer, args, {}, [tf.cast(wanted, tf.float32)])
    assert variable is layer.embeddings
    # What is activated is what has a gradient: not padding, of ragged rows or by a weight of 0.
    for i, gradient in enumerate(gradients):
        per_example = np.zeros((V, D))
        there = rows.ids[i].numpy() >= 0
        np.add.at(per_example, rows.ids[i].numpy()[there], rows.values[i].numpy()[there])
        np.testing.assert_allclose(per_example, gradient, rtol=1e-4, atol=1e-5)
        moved = np.flatnonzero(np.any(gradient, axis=1))
        assert set(rows.ids[i].numpy()[there]) == set(moved)


class Direct(keras.Model):
    def __init__(self):
        super().__init__()
        self.table = keras_rs.layers.EmbedReduce(V, D)
        self.head = keras.layers.Dense(2)

    def call(self, x):
        return self.head(tf.tanh(self.table(*x)))


def test_an_id_out_of_range_is_an_error():
    model = Direct()
    model((np.array([[1]]),))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"\[0, 9\)"):
        per_example_gradient_norms(model, (np.array([[V]]),), np.ones((1, 2)), "mse")


@pytest.mark.thorough
def test_variables_that_the_rule_does_not_know_take_the_exact_fallback(brute_force, mean_loss):
    # A rule that covered the table alone would leave LoRA's weights unclipped, or untrained.
    class Reweighted(keras_rs.layers.EmbedReduce):
        def build(self, shape):
            super().build(shape)
            self.scale = self.add_weight(shape=(D,), initializer="ones")

        def call(self, inputs, weights=None):
            return self.scale * super().call(inputs, weights)

    class Model(Direct):
        def __init__(self):
            super().__init__()
            self.table = Reweighted(V, D)

    check = brute_force(Model, (IDS,), mean_loss("mse", np.ones((4, 2), "float32")))
    check.check(("flat",))
    assert None in [u.rule for u in make_clipping_plan(check.model, check.x).calls.values()]

    model = Direct()
    model((IDS,))
    model.table.enable_lora(2)
    calls = make_clipping_plan(model, (tf.constant(IDS),)).calls.values()
    assert [c.rule is None for c in calls if c.layer is model.table] == [True]
