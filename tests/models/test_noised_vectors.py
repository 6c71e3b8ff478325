"""Gradients that are clipped and noised at the vectors of items, before they reach their tower."""

import functools

import keras
import numpy as np
import pytest
import slow
import tensorflow as tf
from keras import layers

import tfdp
from tfdp.clipping.recording import trained_variables
from tfdp.clipping.sums.surviving_rows import SurvivorSums
from tfdp.runtime.xla import compiling
from tfdp.training import step

ITEMS, USERS = 9, 12
GENERATOR = np.random.default_rng(5)
FEATURES = {"x": GENERATOR.normal(size=(ITEMS, 6)).astype(np.float32)}
BATCH = GENERATOR.normal(size=(USERS, 5)).astype(np.float32), GENERATOR.integers(0, ITEMS, USERS)


def deep():
    x = keras.Input((6,), name="x")
    hidden = layers.LayerNormalization()(layers.Dense(7, "tanh")(x))
    return keras.Model({"x": x}, layers.Dense(4)(layers.Dense(7, "gelu")(hidden)))


def two_towers(num_negatives, tower=deep, features=FEATURES, **kwargs):
    users = keras.Sequential([keras.Input((5,)), layers.Dense(4)])
    settings = {"item_features": features, "noise_at": "vectors", **kwargs}
    negatives = tfdp.layers.SharedNegatives(tower(), ITEMS, num_negatives, seed=3, **settings)
    return tfdp.models.TwoTower(users, negatives)


def compiled(model, **kwargs):
    settings = {"noise_multiplier": 1e-7, "num_examples": USERS, "expected_batch_size": USERS}
    inner = keras.optimizers.SGD(1.0)
    model.compile(tfdp.optimizers.DPOptimizer(inner, **{**settings, **kwargs}), run_eagerly=True)
    return model


def sums_of(model, batch=BATCH, weights=None):
    """The clipped sums of a step; the draw is always the same."""
    users, items = (tf.constant(t) for t in batch)
    weights = tf.cast(tf.ones(len(batch[1])) if weights is None else weights, tf.float32)
    model.clipping_plan((users, items))
    model.negatives.seed_generator.state.assign([3, 0])
    return step.sums_of_batch(model, (users, items), tf.zeros_like(items, tf.int32), weights)


def noised_sums(model, batch, weights):
    """Tensors of all sums, those of surviving rows without their rows."""
    found = [s for s in sums_of(model, batch, weights) if s is not None]
    return [s.values if isinstance(s, SurvivorSums) else s for s in found]


def drawn(model):
    model.negatives.seed_generator.state.assign([3, 0])
    ids = np.asarray(model.negatives.draw()[0])
    model.negatives.seed_generator.state.assign([3, 0])
    return ids


def update_by_hand(model, clip_norm):
    """What a step adds to the weights, without noise: one example after another, in float64."""
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy("float64")
    try:
        double = two_towers(
            model.negatives.num_negatives, similarity=model.negatives.similarity, temperature=0.5
        )
        double((tf.cast(BATCH[0], tf.float64), BATCH[1]))
    finally:
        keras.config.set_dtype_policy(policy)
    for own, other in zip(double.trainable_variables, model.trainable_variables, strict=True):
        own.assign(keras.ops.convert_to_numpy(other))
    ids, correction = model.negatives.draw()
    weights = [v.value for v in double.trainable_variables]
    everything = double.item_vectors(np.arange(ITEMS))
    total, moved = [np.zeros(v.shape) for v in weights], np.zeros(everything.shape)
    for user, item in zip(*BATCH, strict=True):
        with tf.GradientTape() as tape:
            tape.watch(everything)
            vector = double.user_vectors(tf.cast(user, tf.float64)[tf.newaxis])[0]
            takes_all = model.negatives.num_negatives is None
            own = everything[item] if takes_all else double.item_vectors([item])[0]
            own = tf.tensordot(vector, own, 1) / 0.5
            others = tf.linalg.matvec(tf.gather(everything, ids), vector) / 0.5
            others = tf.boolean_mask(others - tf.cast(correction, tf.float64), ids != item)
            loss = tf.reduce_logsumexp(tf.concat([[own], others], 0)) - own
        *gradients, at_vectors = tape.gradient(
            loss, [*weights, everything], unconnected_gradients="zero"
        )
        gradients = [np.asarray(tf.convert_to_tensor(g)) for g in gradients]
        at_vectors = np.asarray(tf.convert_to_tensor(at_vectors))
        norm = np.sqrt(sum(np.sum(g**2) for g in [*gradients, at_vectors]))
        factor = min(1.0, clip_norm / norm)
        total = [t + factor * g for t, g in zip(total, gradients, strict=True)]
        moved += factor * at_vectors
    with tf.GradientTape() as tape:
        vectors = double.item_vectors(np.arange(ITEMS))
    behind = tape.gradient(vectors, weights, tf.constant(moved), unconnected_gradients="zero")
    return [-(t + np.asarray(b)) / USERS for t, b in zip(total, behind, strict=True)]


@pytest.mark.parametrize(
    ("similarity", "num_negatives"),
    slow.cases(
        [("dot", 7), ("dot", None), ("cosine", 7), ("cosine", None)],
        slow=[("dot", None), ("cosine", 7)],
    ),
)
def test_an_update_is_that_of_float64_by_hand(similarity, num_negatives):
    model = two_towers(num_negatives, similarity=similarity, temperature=0.5)
    clip_norm = 1.0
    compiled(model, clip_norm=clip_norm)
    sums = sums_of(model)
    model.negatives.seed_generator.state.assign([3, 0])
    wanted = update_by_hand(model, clip_norm)
    before = [np.array(v) for v in model.trainable_variables]
    variables = trained_variables(model)
    model.optimizer.apply_clipped_sums(sums, variables, [None] * len(variables))
    for old, new, change in zip(before, model.trainable_variables, wanted, strict=True):
        assert np.any(change != 0)
        np.testing.assert_allclose(np.array(new) - old, change, rtol=1e-4, atol=2e-6)


@pytest.mark.thorough
@pytest.mark.parametrize("num_negatives", [4, None])
def test_the_rows_that_are_noised_tell_nothing_of_the_examples(num_negatives):
    model = compiled(two_towers(num_negatives))
    wanted = np.arange(ITEMS) if num_negatives is None else np.unique(drawn(model))
    for weights in (np.ones(USERS), np.eye(USERS)[2], np.zeros(USERS)):
        (rows,) = (s.rows for s in sums_of(model, weights=weights) if isinstance(s, SurvivorSums))
        np.testing.assert_array_equal(rows, wanted)


@pytest.mark.thorough
@pytest.mark.parametrize("num_negatives", [7, None])
def test_no_example_moves_what_is_noised_beyond_the_norm(num_negatives):
    """A search over scales of users, of the vectors, and of temperatures."""
    for seed, temperature in enumerate((1.0, 0.01)):
        model = compiled(two_towers(num_negatives, temperature=temperature), clip_norm=0.3)
        generator = np.random.default_rng(seed)
        scales = 10.0 ** generator.uniform(-6, 6, (USERS, 1))
        batch = (BATCH[0] * scales).astype(np.float32), BATCH[1]
        noised = tf.function(functools.partial(noised_sums, model, batch), autograph=False)
        whole, largest = noised(tf.ones(USERS)), 0.0
        for i in range(USERS):
            rest = noised(tf.cast(tf.range(USERS) != i, tf.float32))
            pairs = zip(whole, rest, strict=True)
            moved = np.sqrt(sum(np.sum((np.array(a) - np.array(b)) ** 2.0) for a, b in pairs))
            largest = max(largest, moved)
        assert 0.29 < largest <= 0.3 * (1 + 1e-5)


def one_hot():
    """A tower whose weights are the vectors: what is noised at these is what moves them."""
    x = keras.Input((ITEMS,), name="x")
    return keras.Model({"x": x}, layers.Dense(512, use_bias=False)(x))


@pytest.mark.parametrize(("num_negatives", "at_weights"), [(4, 1.0), (None, 0.0)])
def test_noise_at_the_vectors_has_the_deviation_that_is_charged(num_negatives, at_weights):
    users = keras.Sequential([keras.Input((5,)), layers.Dense(512)])
    negatives = tfdp.layers.SharedNegatives(
        one_hot(), ITEMS, num_negatives, seed=3, noise_at="vectors",
        item_features={"x": np.eye(ITEMS, dtype=np.float32)},
    )  # fmt: skip
    model = compiled(
        tfdp.models.TwoTower(users, negatives), noise_multiplier=3.0, clip_norm=2.0,
        expected_batch_size=4,
    )  # fmt: skip
    sums = sums_of(model, weights=np.zeros(USERS))
    (weights,) = model.negatives.item_tower.trainable_variables
    before = np.array(weights)
    variables = trained_variables(model)
    model.optimizer.apply_clipped_sums(sums, variables, [None] * len(variables))
    change = np.array(weights, np.float64) - before
    drawn_rows = np.arange(ITEMS) if num_negatives is None else np.unique(drawn(model))
    times = at_weights + np.isin(np.arange(ITEMS), drawn_rows)
    variances = np.mean(change**2, axis=1) / (3.0 * 2.0 / 4) ** 2
    # Variances of 512 numbers deviate by 1/16: at any of 9 rows by six of these in 1e-7 of runs.
    assert np.all(np.abs(variances - times) <= 6 * np.sqrt(2 / 512) * times)


def shallow():
    """A tower that XLA compiles soon."""
    x = keras.Input((6,), name="x")
    return keras.Model({"x": x}, layers.Dense(4)(layers.Dense(7, "tanh")(x)))


def updated(model, sums, jit_compile):
    """Weights after a step from `sums()`."""

    def run():
        with compiling(jit_compile):
            variables = trained_variables(model)
            model.optimizer.apply_clipped_sums(sums(model), variables, [None] * len(variables))

    model.clipping_plan(tuple(map(tf.constant, BATCH)))
    model.optimizer.build(trained_variables(model))
    tf.function(run, autograph=False, jit_compile=jit_compile)() if jit_compile else run()
    return [np.array(v) for v in model.trainable_variables]


def sums_of_parts(model):
    batch = tuple(map(tf.constant, BATCH))
    return step.sums_of_microbatches(model, batch, tf.zeros(USERS, tf.int32), None)


# Micro-batches of other models, and whole batches of this one, are compiled by XLA every day.
@pytest.mark.thorough
@pytest.mark.parametrize("jit_compile", slow.cases([False, True], slow=[True]))
def test_micro_batches_make_the_update_of_the_whole_batch(jit_compile):
    updates, tower = [], shallow if jit_compile else deep
    for size, sums, compiles in ((None, sums_of, False), (5, sums_of_parts, jit_compile)):
        keras.utils.set_random_seed(0)
        model = compiled(two_towers(None, tower), microbatch_size=size)
        updates.append(updated(model, sums, compiles))
    for whole, parts in zip(*updates, strict=True):
        np.testing.assert_allclose(parts, whole, atol=2e-6)


@pytest.mark.thorough
def test_a_step_compiled_by_xla_makes_the_same_update(monkeypatch):
    updates = []
    for jit_compile in (False, True):
        keras.utils.set_random_seed(0)
        model = compiled(two_towers(5, shallow))
        # XLA draws other numbers, and has a place for each, if it is drawn again, too.
        ids, correction = tf.constant([3, 1, 4, 1, 3], tf.int64), tf.zeros([5])
        monkeypatch.setattr(model.negatives, "draw", lambda found=(ids, correction): found)
        updates.append(updated(model, sums_of, jit_compile))
    for eager, by_xla in zip(*updates, strict=True):
        np.testing.assert_allclose(by_xla, eager, atol=2e-6)


@pytest.mark.thorough
def test_other_optimizers_train_the_tower_as_ever():
    updates = []
    for noise_at in ("weights", "vectors"):
        keras.utils.set_random_seed(0)
        model = two_towers(None, noise_at=noise_at)
        model.compile(keras.optimizers.SGD(0.1), run_eagerly=True)
        model.train_on_batch(BATCH, np.zeros(USERS, np.int32))
        updates.append([np.array(v) for v in model.trainable_variables])
    for a, b in zip(*updates, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_the_statement_and_the_plan_name_it_and_files_keep_it(tmp_path):
    model = compiled(two_towers(None), num_examples=None, expected_batch_size=None)
    model.fit(tfdp.data.poisson_batches(BATCH, USERS // 2), verbose=0)
    assert "the features of the items are public" in model.privacy_statement(1e-2).assumptions
    text = tfdp.clipping.explain(model, (tf.zeros([3, 5]), tf.zeros([3], tf.int64)))
    assert text.count("behind noised vectors") == 8
    assert "not used" not in text
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.negatives.noise_at == "vectors"
    np.testing.assert_array_equal(loaded.catalogue(), model.catalogue())


def test_a_frozen_tower_has_nothing_to_noise():
    model = two_towers(None)
    model.negatives.item_tower.trainable = False
    sums = sums_of(compiled(model))
    assert len(sums) == 2 and not any(isinstance(s, SurvivorSums) for s in sums)


def sparse():
    ids = keras.Input((), name="x", dtype="int64")
    return keras.Model({"x": ids}, tfdp.layers.SparseEmbedding(ITEMS, 4)(ids))


def dropout():
    x = keras.Input((6,), name="x")
    return keras.Model({"x": x}, layers.Dense(4)(layers.Dropout(0.5)(x)))


def test_dropout_in_the_tower_is_refused():
    with pytest.raises(ValueError, match="without random numbers"):
        sums_of(compiled(two_towers(7, dropout)))


@pytest.mark.parametrize(
    ("tower", "settings", "message"),
    [
        (deep, {"microbatch_size": 4}, "num_negatives=None"),
        (deep, {"noise_correlation": "auto"}, "noise_at"),
        (sparse, {"selection": tfdp.selection.AdaFEST(3.0),
                  "embedding_optimizer": tfdp.optimizers.RowSGD(0.1)}, "did not select"),
    ],
    ids=["micro-batches", "correlated noise", "selected rows"],
)  # fmt: skip
def test_what_does_not_go_together_is_refused(tower, settings, message):
    features = {"x": np.arange(ITEMS)} if tower is sparse else FEATURES
    model = two_towers(7, tower, features)
    sampler = tfdp.data.poisson_batches
    if "noise_correlation" in settings:
        sampler = tfdp.data.stream_batches
    model = compiled(model, num_examples=None, expected_batch_size=None, **settings)
    with pytest.raises(tfdp.errors.PrivacyError, match=message):
        model.fit(sampler(BATCH, USERS // 2), verbose=0)
