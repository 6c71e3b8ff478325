"""A release is charged once to whoever uses it, or what was made from it."""

import json

import dp_accounting
import keras
import numpy as np
import pytest
import tensorflow as tf
from eager_steps import eager_model
from epsilon_by_hand import DELTA, N, assert_one, by_hand, poisson

import tfdp
from tfdp.errors import PrivacyError
from tfdp.layers.item_embedding import PopularityPrior


def test_two_releases_cost_twice_even_if_they_are_equal(small, monkeypatch):
    data = tfdp.data.synthetic_sequences(num_users=50, num_items=6, min_length=3, max_length=4)
    one, other = (tfdp.data.private_frequency(data.train, epsilon=1.0) for _ in range(2))
    object.__setattr__(other, "probabilities", one.probabilities)
    ledger = tfdp.accounting.charges.history.ChargeHistory()
    for release in (one, one, other):
        ledger.charge(release.entry)
    assert sum(e.count for e in ledger.ledger().entries) == 2
    h = np.ones((N, 2), np.float32)
    entries = [tfdp.data.release_once(h, np.zeros(N, int), 1.0, 2.0).entry for _ in range(2)]
    assert entries[0] != entries[1]


@pytest.mark.thorough
def test_what_was_made_from_a_release_carries_its_charge():
    data = tfdp.data.synthetic_sequences(num_users=60, num_items=8, min_length=3, max_length=4)
    release = tfdp.data.private_frequency(data.train, epsilon=1.0)
    items = tfdp.data.FrequentItems(release, k=3)
    model = tfdp.models.SequenceBaseline(items.num_items, 4, dim=4)
    model.validate_independence = False
    model.compile(
        tfdp.optimizers.DPOptimizer(
            "sgd", noise_multiplier=4.0, num_examples=60, expected_batch_size=20
        ),
        run_eagerly=True,
    )
    model.fit(tfdp.data.poisson_batches(items.encode(data.train), 20, steps_per_epoch=1), verbose=0)
    assert {e.label for e in model.ledger.entries} == {"item frequencies", "private training"}
    assert_one(model, by_hand(release.event, poisson(4.0, 1 / 3, 1)))


def test_a_release_about_other_records_is_refused():
    ids = np.random.default_rng(0).integers(0, 20, 200)
    fest = tfdp.selection.FEST(k=5, epsilon=1.0)
    fest.adapt({"table": ids}, {"table": 20})
    table = tfdp.layers.SparseEmbedding(20, 2, name="table")
    inner = keras.Sequential([keras.Input((1,), dtype="int32"), table, keras.layers.Flatten()])
    model = tfdp.make_private(inner)
    with pytest.raises(PrivacyError, match="num_examples=200"):
        model.compile(
            tfdp.optimizers.DPOptimizer(
                "sgd", noise_multiplier=1.0, num_examples=20, expected_batch_size=5,
                selection=fest, embedding_optimizer=tfdp.optimizers.RowSGD(0.1),
            ),
            loss="mse",
        )  # fmt: skip


def test_the_ways_of_an_encoded_sequence_carry_the_release():
    data = tfdp.data.synthetic_sequences(num_users=30, num_items=8, min_length=3, max_length=4)
    items = tfdp.data.FrequentItems(tfdp.data.private_frequency(data.train, epsilon=1.0), k=3)
    pair = items.encode(data.train)
    x, y = pair
    for found in (
        tfdp.data.poisson_batches((x, y), 10),
        tfdp.data.poisson_batches((items.encode(data.train.x), y), 10),
        pair,
        (x[:5], y[:5]),
    ):
        assert [e.label for e in tfdp.data.provenance.dataset_tags.releases_of(found)] == [
            "item frequencies"
        ]


def test_a_release_about_another_unit_is_refused(small):
    base = small.base()
    event, details = dp_accounting.GaussianDpEvent(3.0), {"num_examples": N, "unit": "one user"}
    release = tfdp.accounting.LedgerEntry("release", event, 1, details)
    base.layers[0].privacy_releases = [release]
    with pytest.raises(PrivacyError, match="unit='one user'.*unit='one example'"):
        small.model(base)


@pytest.mark.thorough
def test_a_layer_of_a_release_that_joins_what_was_trained_is_stated_before_any_compile(tmp_path):
    """ε was that of the training alone, in an export, too."""
    shown, clicked = np.arange(N) % 3, np.arange(N) % 2
    ad = {"ad": keras.Input((), dtype="int64", name="ad")}
    trained = eager_model(
        keras.Model(ad, keras.layers.Embedding(3, 2)(ad["ad"])), noise_multiplier=4.0
    )
    trained.fit(tfdp.data.poisson_batches(({"ad": shown}, clicked), 10), epochs=1, verbose=0)
    release = tfdp.data.private_click_statistics(
        ({"ad": shown}, clicked), {"ad": 3}, noise_multiplier=5.0
    )
    odds = tfdp.layers.ClickOdds(release)
    alone = tfdp.make_private(keras.Model(ad, odds(ad)), validate=False)
    assert alone.ledger.epsilon(DELTA) == pytest.approx(by_hand(release.event))
    both = keras.layers.Concatenate()([trained.model(ad), odds(ad)])
    model = tfdp.make_private(keras.Model(ad, both), validate=False)
    expected = by_hand(release.event, poisson(4.0, 0.25, 4))
    assert model.privacy_statement(DELTA).epsilon == pytest.approx(expected)
    tfdp.serving.export(model, tmp_path / "exported", delta=DELTA)
    stated = json.loads((tmp_path / "exported" / "privacy_statement.json").read_text())
    assert stated["epsilon"] == model.privacy_statement(DELTA).epsilon


@pytest.mark.thorough
def test_rows_that_are_chosen_after_the_last_fit_are_stated(tmp_path):
    """They are in the files of the model, by its optimizer."""
    ids = np.arange(N)[:, np.newaxis] % 20
    fest = tfdp.selection.FEST(k=5, epsilon=1.0)
    fest.adapt({"table": ids}, {"table": 20})
    table = tfdp.layers.SparseEmbedding(20, 2, name="table")
    inner = keras.Sequential([keras.Input((1,), dtype="int32"), table, keras.layers.Flatten()])
    rows = tfdp.optimizers.RowSGD(0.1)
    model = eager_model(inner, noise_multiplier=4.0, selection=fest, embedding_optimizer=rows)
    model.fit(tfdp.data.poisson_batches((ids, np.arange(N) % 2), 10), verbose=0)
    (chosen,) = fest.privacy_releases
    assert_one(model, by_hand(chosen.event, poisson(4.0, 0.25, 4)))
    fest.adapt({"table": ids}, {"table": 20})
    assert_one(model, by_hand(chosen.event, chosen.event, poisson(4.0, 0.25, 4)))
    model.save(tmp_path / "m.keras")
    loaded = keras.models.load_model(tmp_path / "m.keras")
    assert loaded.ledger.epsilon(DELTA) == model.ledger.epsilon(DELTA)


@pytest.mark.parametrize("place", ["before", "after", "declared"])
def test_a_layer_of_a_release_that_a_map_of_the_data_calls_is_charged(place):
    """As Keras' preprocessing layers are called; the statement had the training alone."""
    shown, clicked = np.arange(N) % 3, np.arange(N) % 2
    data = {"ad": shown}, clicked
    release = tfdp.data.private_click_statistics(data, {"ad": 3}, noise_multiplier=5.0)
    odds = tfdp.layers.ClickOdds(release)
    records = tf.data.Dataset.from_tensor_slices(data).batch(1)
    looked_up = records.map(lambda ad, y: (odds(ad), y)).unbatch()
    if place == "after":
        batches = tfdp.data.poisson_batches(data, 10).map(lambda ad, y, w: (odds(ad), y, w))
    elif place == "before":
        batches = tfdp.data.poisson_batches(looked_up, 10)
    else:
        batches = tfdp.data.declare_sampling(looked_up.batch(10), "poisson", N, 10)
    model = eager_model(
        keras.Sequential([keras.Input((1,)), keras.layers.Dense(2)]), noise_multiplier=4.0
    )
    model.fit(batches, epochs=1, verbose=0)
    assert_one(model, by_hand(release.event, poisson(4.0, 0.25, 4)))


@pytest.mark.parametrize("eagerly", [False, True])
def test_a_layer_of_a_release_that_a_loss_calls_is_charged(small, eagerly):
    """It was listed as weights from elsewhere, which had learned nothing from the records."""
    histories = tfdp.data.leave_one_out_split([[1, 2, 1]] * N, 3, num_items=2)
    release = tfdp.data.private_frequency(histories.train, epsilon=1.0)
    prior = PopularityPrior(2, release)
    prior(tf.zeros([1, 3]))

    def adjusted(y, logits):
        return keras.losses.sparse_categorical_crossentropy(y, prior(logits), from_logits=True)

    model = small.model(
        small.base(classes=3), adjusted, {"run_eagerly": eagerly}, noise_multiplier=4.0
    )
    model.fit(small.poisson(), epochs=1, verbose=0)
    assert_one(model, by_hand(release.event, poisson(4.0, 0.25, 4)))
    assert "from elsewhere" not in str(model.privacy_statement())
