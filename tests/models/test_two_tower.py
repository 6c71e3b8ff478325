"""Two towers: what they learn, what they cost, how they are evaluated, saved and asked."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tfdp.models.catalogue import better_and_tied

ITEMS, USERS = 40, 600


def data(seed=0):
    """Histories (users, 3) and next items of one of four tastes."""
    rng = np.random.default_rng(seed)
    liked = rng.integers(0, ITEMS // 4, (USERS, 4)) * 4 + rng.integers(0, 4, USERS)[:, None]
    return liked[:, :3], liked[:, 3]


def towers(**kwargs):
    """A model whose towers share the items' table."""
    items = keras.layers.Embedding(ITEMS, 8, keras.initializers.RandomNormal(stddev=0.3))
    history = keras.Input((3,), dtype="int64", name="history")
    users = keras.Model(history, keras.layers.GlobalAveragePooling1D()(items(history)))
    return tfdp.models.TwoTower(users, items, ITEMS, **{"num_negatives": 16, **kwargs})


def trained(model, epochs=6, run_eagerly=False, **kwargs):
    settings = {"clipping": "normalized", "noise_multiplier": 0.6, **kwargs}
    optimizer = tfdp.optimizers.DPOptimizer(keras.optimizers.Adam(5e-2), **settings)
    model.compile(optimizer, run_eagerly=run_eagerly)
    model.fit(tfdp.data.poisson_batches(data(), 200), epochs=epochs, verbose=0)
    return model


@pytest.fixture(scope="module")
def model():
    return trained(towers())


@pytest.mark.thorough
def test_it_learns_what_users_of_a_taste_like(model):
    held_out = data(seed=1)
    before, after = (m.evaluate(*held_out, k=(10,)) for m in (towers(), model))
    assert after["recall_10"] > before["recall_10"] + 0.3
    assert after["recall_10"] > 0.8  # 10 of 40 items have the user's taste


@pytest.mark.thorough
def test_the_statement_says_what_is_public_and_that_steps_were_proved(model):
    statement = model.privacy_statement(1e-5)
    assert statement.assumptions == ("the list of items is public",)
    assert "proved from the graph" in str(statement)
    assert np.isfinite(statement.epsilon)


def test_evaluation_in_parts_ranks_as_sorting_does(model):
    histories, items = data(seed=2)
    scores = np.asarray(model.user_vectors(histories)) @ model.catalogue().T
    rank = (scores > scores[np.arange(USERS), items][:, None]).sum(1)
    found = model.evaluate(histories, items, k=(5, 12), part=7, batch_size=64)
    for k in (5, 12):
        assert found[f"recall_{k}"] == pytest.approx((rank < k).mean(), abs=2e-3)
        gain = np.where(rank < k, 1 / np.log2(rank + 2), 0).mean()
        assert found[f"ndcg_{k}"] == pytest.approx(gain, abs=2e-3)


def test_ties_and_what_is_not_a_number_count_as_other_items():
    users, items = tf.ones([3, 1]), tf.constant([0, 3, 4])
    vectors = np.array([[1.0], [1.0], [2.0], [2.0], [np.nan]], np.float32)
    better, tied = better_and_tied(users, vectors, items, part=2)
    np.testing.assert_array_equal(better, [3, 1, 4])
    np.testing.assert_array_equal(tied, [1, 1, 0])


def test_a_saved_model_is_the_same_with_its_shared_table_and_its_charges(model, tmp_path):
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.catalogue(), model.catalogue())
    assert len(loaded.trainable_variables) == len(model.trainable_variables) == 1
    assert loaded.ledger.to_json() == model.ledger.to_json()
    with pytest.raises(ValueError, match="share the layers"):
        tfdp.models.TwoTower.from_config(model.get_config())


def test_the_export_finds_the_best_items_and_has_both_towers(model, tmp_path):
    histories, _ = data()
    tfdp.serving.export(model, tmp_path / "towers", k=4)
    served = tf.saved_model.load(str(tmp_path / "towers"))
    users, items = served.user_vectors(histories[:9]), served.item_vectors(np.arange(ITEMS))
    np.testing.assert_allclose(items, model.catalogue(), rtol=1e-6)
    best = np.argsort(-(users.numpy() @ items.numpy().T), axis=1)[:, :4]
    np.testing.assert_array_equal(served.serve(histories[:9])["items"], best)
    statement = json.loads((tmp_path / "towers" / "privacy_statement.json").read_text())
    assert statement["epsilon"] == model.privacy_statement().epsilon


@pytest.mark.thorough
def test_features_cosine_and_dicts_of_columns():
    columns = {"id": np.arange(ITEMS), "taste": np.arange(ITEMS) % 4}
    ids, taste = (keras.Input((), dtype="int64", name=name) for name in columns)
    parts = [keras.layers.Embedding(ITEMS, 4)(ids), keras.layers.Embedding(4, 4)(taste)]
    item = keras.Model({"id": ids, "taste": taste}, keras.layers.Concatenate()(parts))
    history = keras.Input((3,), dtype="int64", name="history")
    age = keras.Input((1,), name="age")
    vector = keras.layers.Flatten()(keras.layers.Embedding(ITEMS, 4)(history))
    vector = keras.layers.Dense(8)(keras.layers.Concatenate()([vector, age]))
    user = keras.Model({"history": history, "age": age}, vector)
    model = tfdp.models.TwoTower(
        user, item, ITEMS, 16, item_features=columns, similarity="cosine", temperature=0.2
    )
    optimizer = tfdp.optimizers.DPOptimizer(keras.optimizers.Adam(), noise_multiplier=1.0)
    model.compile(optimizer, run_eagerly=True)
    histories, items = data()
    users = {"history": histories, "age": np.ones((USERS, 1), np.float32)}
    model.fit(tfdp.data.poisson_batches((users, items), 300), epochs=1, verbose=0)
    assert "the features of the items are public" in model.privacy_statement(1e-5).assumptions
    np.testing.assert_allclose(np.linalg.norm(model.catalogue(), axis=1), 1, rtol=1e-5)
    assert set(model.evaluate(users, items, k=(10,))) == {"recall_10", "ndcg_10"}


def test_released_frequencies_are_charged_and_negatives_follow_them():
    release = tfdp.data.private_frequency(
        (data()[0] % (ITEMS - 1) + 1, data()[0] % (ITEMS - 1) + 1), 1.0, num_items=ITEMS - 1
    )
    model = trained(towers(frequencies=release), epochs=1, run_eagerly=True)
    assert [entry.label for entry in model.ledger.entries].count("item frequencies") == 1
    assert "distribution that negatives" not in str(model.privacy_statement(1e-5))
    layer = model.negatives
    drawn = np.concatenate([np.asarray(layer.draw()[0]) for _ in range(200)])
    share = np.bincount(drawn, minlength=ITEMS) / len(drawn)
    wanted = np.concatenate([[0.0], release.probabilities[1:]]) / release.probabilities[1:].sum()
    # 3,200 draws: beyond five standard deviations at any of 40 items, once in 40,000 runs.
    assert np.all(np.abs(share - wanted) <= 5 * np.sqrt(wanted * (1 - wanted) / len(drawn)))
    assert share[0] == 0


def test_log_q_and_hits_are_as_the_formula_says():
    q = np.arange(1, ITEMS + 1) / np.arange(1, ITEMS + 1).sum()
    table = keras.layers.Embedding(ITEMS, 5)
    layer = tfdp.layers.SharedNegatives(table, ITEMS, 64, frequencies=q, temperature=0.5, seed=1)
    users = np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32)
    items = np.array([39, 38, 0, 5, 39, 20])
    layer.build((6, 5), (6,))
    layer.seed_generator.state.assign([1, 0])
    ids, _ = layer.draw()
    layer.seed_generator.state.assign([1, 0])
    logits = np.asarray(layer(users, items), np.float64)
    vectors = np.asarray(table.embeddings, np.float64)
    wanted = users @ vectors[ids].T / 0.5 - np.log(64 * q[ids])
    hits = items[:, None] == ids.numpy()
    assert hits.any()
    np.testing.assert_allclose(logits[:, 0], (users * vectors[items]).sum(1) / 0.5, rtol=1e-5)
    np.testing.assert_allclose(logits[:, 1:][~hits], wanted[~hits], rtol=1e-5, atol=1e-5)
    assert np.all(logits[:, 1:][hits] == -1e9)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_negatives": None, "frequencies": np.ones(ITEMS)}, "draws none"),
        ({"frequencies": np.ones(ITEMS + 1)}, "one for each item"),
        ({"frequencies": -np.ones(ITEMS)}, "at least 0"),
        ({"item_features": {"title": np.array(["a"] * ITEMS)}}, "StringLookup"),
        ({"similarity": "euclid"}, "similarity"),
        ({"temperature": 0.0}, "temperature"),
    ],
)
def test_wrong_arguments_are_refused_by_name(settings, message):
    with pytest.raises(ValueError, match=message):
        towers(**settings)


@pytest.mark.thorough
def test_in_batch_negatives_are_refused_and_this_way_out_is_named():
    items, history = keras.Input((), dtype="int64"), keras.Input((3,), dtype="int64")
    table = keras.layers.Embedding(ITEMS, 4)
    vector = keras.layers.GlobalAveragePooling1D()(table(history))
    scores = keras.ops.matmul(vector, keras.ops.transpose(table(items)))
    model = tfdp.make_private(keras.Model([history, items], scores))
    model.compile(
        tfdp.optimizers.DPOptimizer("sgd", noise_multiplier=1.0),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    batches = tfdp.data.poisson_batches((data(), np.zeros(USERS, np.int32)), 50)
    with pytest.raises(tfdp.errors.PrivacyError, match=r"(?s)mixes.*tfdp\.models\.TwoTower"):
        model.fit(batches, verbose=0)


def sparse(threshold, **kwargs):
    """Towers over a sparse table, of whose rows a step trains a few."""
    items = tfdp.layers.SparseEmbedding(ITEMS, 8, name="items")
    history = keras.Input((3,), dtype="int64", name="history")
    users = keras.Model(history, keras.layers.GlobalAveragePooling1D()(items(history)))
    model = tfdp.models.TwoTower(users, items, ITEMS, num_negatives=5)
    model.compile(
        tfdp.optimizers.DPOptimizer(
            keras.optimizers.SGD(1.0),
            noise_multiplier=1.0,
            num_examples=USERS,
            expected_batch_size=10,
            selection=tfdp.selection.AdaFEST(threshold=threshold),
            embedding_optimizer=tfdp.optimizers.RowSGD(1.0),
            **kwargs,
        )
    )
    return model, items


@pytest.mark.filterwarnings("ignore:No row can survive AdaFEST's threshold")  # none is to
def test_rows_of_negatives_are_noised_and_no_others_without_survivors():
    model, items = sparse(threshold=1e6)  # no row survives
    histories, next_items = data()
    batches = tfdp.data.poisson_batches((histories, next_items), 10)
    moved = []
    for x, y, weights in model.training_batches(batches.take(12)):
        drawn = set(np.asarray(model.negatives.draw()[0]))  # moves the generator on
        state = model.negatives.seed_generator.state
        state.assign(state - [0, 1])
        before = np.array(items.embeddings)
        model.train_on_batch(x, y, weights)
        change = np.array(items.embeddings) - before
        assert set(np.flatnonzero(np.any(change != 0, axis=1))) == drawn
        moved.append(change[sorted(drawn)])
    moved = np.concatenate(moved)
    # Clipped sums of norm 1 at most and noise of deviation about 1.02, over the batch size 10.
    assert 0.07 < np.std(moved) < 0.16


class Deep(keras.layers.Layer):
    """A tower with an activation above its table."""

    def __init__(self):
        super().__init__()
        self.table = keras.layers.Embedding(ITEMS, 6)
        self.dense = [keras.layers.Dense(6, "tanh"), keras.layers.Dense(8)]

    def call(self, ids):
        return self.dense[1](self.dense[0](self.table(ids)))


@pytest.mark.thorough
def test_micro_batches_of_cosines_make_the_update_of_the_whole_batch():
    updates = []
    for size in (None, 5):
        keras.utils.set_random_seed(0)
        tower = Deep()
        history = keras.Input((3,), dtype="int64")
        users = keras.Model(history, keras.layers.GlobalAveragePooling1D()(tower.table(history)))
        users = keras.Sequential([users, keras.layers.Dense(8)])
        model = tfdp.models.TwoTower(
            users, tower, ITEMS, num_negatives=None, similarity="cosine", temperature=0.2
        )
        model.compile(
            tfdp.optimizers.DPOptimizer(
                keras.optimizers.SGD(1.0), noise_multiplier=1e-7, microbatch_size=size
            ),
            run_eagerly=True,
        )
        histories, items = (array[:12] for array in data())
        batches = tfdp.data.poisson_batches((histories, items), 12)  # all of them, each time
        model.fit(batches, epochs=1, verbose=0)
        updates.append([np.array(v) for v in model.trainable_variables])
    for whole, parts in zip(*updates, strict=True):
        np.testing.assert_allclose(parts, whole, atol=2e-6)
