"""Recommendations from a release: the formula, files, the exported model, the charge."""

import json

import dp_accounting
import keras
import numpy as np
import processes
import pytest
import tensorflow as tf

import tfdp
from tfdp.errors import PrivacyError

M, N = 12, 60


@pytest.fixture(scope="module")
def data():
    return tfdp.data.synthetic_sequences(N, M, max_length=6, min_length=3)


@pytest.fixture(scope="module")
def release(data):
    return tfdp.data.private_transitions(data.train, noise_multiplier=2.0, rounds=2)


def probabilities(release, history, last_items=5, decay=0.7, smoothing=20.0):
    """The formula of the docstring, in plain numpy."""
    v = np.zeros((M + 1, M + 1))
    v[tuple(release.indices.T)] = release.values
    pop = np.maximum(release.popularity, 0.01 * release.popularity[1:].mean()).astype(np.float64)
    pop[0] = 0.0
    pop /= pop.sum()
    w = decay ** np.arange(last_items)
    w /= w.sum()
    p = np.zeros(M + 1)
    voters = [int(i) for i in history if i][::-1][:last_items]
    for weight, item in zip(w, voters, strict=False):
        p += weight * (v[item] + smoothing * pop) / (v[item].sum() + smoothing)
    return p + (1 - w[: len(voters)].sum()) * pop


def test_scores_are_those_of_the_formula(data, release):
    model = tfdp.models.TransitionRecommender(release, smoothing=3.0, last_items=4, decay=0.6)
    x = np.concatenate([data.test.x, np.zeros((1, 6), np.int32)])
    expected = np.array([probabilities(release, h, 4, 0.6, 3.0) for h in x])
    scores = model.score_next(x).numpy()
    assert np.all(scores[:, 0] == -np.inf)
    np.testing.assert_allclose(np.exp(scores[:, 1:]), expected[:, 1:], rtol=1e-4, atol=1e-8)
    np.testing.assert_allclose(expected.sum(1), 1, rtol=1e-6)
    every = model(x).numpy()
    np.testing.assert_allclose(every[:, -1, 1:], scores[:, 1:], rtol=1e-4)
    for t in (0, 3):
        at = [probabilities(release, h[: t + 1], 4, 0.6, 3.0) for h in x]
        np.testing.assert_allclose(np.exp(every[:, t, 1:]), np.array(at)[:, 1:], rtol=1e-4)


def test_odds_are_those_of_the_formula(data, release, tmp_path):
    layer = tfdp.layers.TransitionOdds(release, last_items=3, offset=0.1, popularity_weight=0.2)
    model = tfdp.models.TransitionRecommender(layer)
    v = np.zeros((M + 1, M + 1))
    v[tuple(release.indices.T)] = release.values
    pop = np.maximum(release.popularity, 0.01 * release.popularity[1:].mean()).astype(np.float64)
    pop[0] = 0.0
    pop /= pop.sum()
    share = v / (v.sum(1, keepdims=True) + 20.0)
    w = 0.7 ** np.arange(3) / (1 + 0.7 + 0.49)
    for row, history in zip(model.score_next(data.test.x).numpy(), data.test.x, strict=True):
        voters = [i for i in history if i][::-1][:3]
        votes = [np.log1p(share[i, 1:] / (10 * pop[1:] + 0.1)) for i in voters]
        expected = np.dot(w[: len(voters)], votes) + 0.2 * np.log(pop[1:])
        np.testing.assert_allclose(row[1:], expected, rtol=1e-4, atol=1e-5)
    assert model.ledger.entries == (release.entry,)
    model.save(tmp_path / "m.keras")
    loaded = keras.models.load_model(tmp_path / "m.keras")
    np.testing.assert_array_equal(loaded.score_next(data.test.x), model.score_next(data.test.x))


def test_it_states_the_cost_of_its_release_and_nothing_else(release):
    model = tfdp.models.TransitionRecommender(release)
    statement = model.privacy_statement(1e-3)
    assert statement.epsilon == tfdp.accounting.Ledger([release.entry]).epsilon(1e-3)
    assert (statement.num_examples, statement.unit) == (N, "one user (one training sequence)")
    assert [e["label"] for e in statement.entries] == ["item transitions and popularity"]
    assert "item transitions and popularity" in str(statement)
    twice = tfdp.models.TransitionRecommender(release)
    assert twice.ledger.entries == model.ledger.entries


def test_items_of_the_history_are_left_out_if_asked(data, release):
    model = tfdp.models.TransitionRecommender(release, exclude_seen=True)
    plain = tfdp.models.TransitionRecommender(release)
    scores, all_scores = (m.score_next(data.test.x).numpy() for m in (model, plain))
    for row, full, history in zip(scores, all_scores, data.test.x, strict=True):
        seen = np.isin(np.arange(M + 1), history)
        assert np.all(row[seen] == -np.inf)
        np.testing.assert_array_equal(row[~seen], full[~seen])


def test_a_file_brings_scores_and_charge(data, release, tmp_path):
    model = tfdp.models.TransitionRecommender(release, last_items=3, exclude_seen=True)
    model.save(tmp_path / "m.keras")
    loaded = keras.models.load_model(tmp_path / "m.keras")
    np.testing.assert_array_equal(loaded.score_next(data.test.x), model.score_next(data.test.x))
    assert loaded.privacy_statement(1e-3).to_dict() == model.privacy_statement(1e-3).to_dict()
    assert loaded.max_length == model.max_length and loaded.transitions.last_items == 3


@pytest.mark.thorough
def test_plain_tensorflow_serves_it_without_tfdp(data, release, tmp_path):
    model = tfdp.models.TransitionRecommender(release, exclude_seen=True)
    tfdp.serving.export(model, tmp_path / "m", k=3)
    code = (
        "import sys, tensorflow as tf\n"
        f"served = tf.saved_model.load({str(tmp_path / 'm')!r})\n"
        "out = served.signatures['serving_default'](sequences=tf.constant([[0, 1, 2]], tf.int64))\n"
        "print(out['items'].numpy().tolist())\n"
        "assert not any(name.startswith('tfdp') for name in sys.modules)\n"
    )
    answer = processes.run(code, cwd=tmp_path)
    scores = model.score_next(np.array([[0, 1, 2]]))
    assert json.loads(answer) == tf.math.top_k(scores, 3).indices.numpy().tolist()
    statement = json.loads((tmp_path / "m" / "privacy_statement.json").read_text())
    assert statement["epsilon"] == model.privacy_statement().epsilon < float("inf")


@pytest.fixture(scope="module")
def trained(data, release):
    """A transformer around the prior, its gate trained, popularity for its attention."""
    frequency = tfdp.data.private_frequency(data.train, epsilon=0.5)
    prior = tfdp.layers.TransitionPrior(release, gate=0.8, train_gate=True, name="transitions")
    model = build(data, transitions=prior, frequency=frequency)
    model.compile(dp(noise_multiplier=1.5), run_eagerly=True)
    model.fit(tfdp.data.poisson_batches(data.train, 20, steps_per_epoch=1), verbose=0)
    return model


def test_model_popularity_transitions_and_training_are_one_epsilon(trained):
    entries = trained.ledger.entries
    expected = ["item frequencies", "item transitions and popularity", "private training"]
    assert sorted(e.label for e in entries) == expected
    epsilon = trained.privacy_statement(1e-3).epsilon
    assert epsilon == tfdp.accounting.Ledger(entries).epsilon(1e-3)
    # Each of them is part of it: without any one of them it is smaller.
    for entry in entries:
        rest = [e for e in entries if e != entry]
        assert tfdp.accounting.Ledger(rest).epsilon(1e-3) < epsilon - 1e-3


def test_a_gate_is_trained_privately(trained):
    assert float(trained.transitions.gate) != np.float32(0.8)


def test_rates_of_another_release_are_named_in_the_statement(data, release):
    other = tfdp.data.private_transitions(data.train, noise_multiplier=0.5)
    models = [tfdp.models.TransitionRecommender(one, data.max_length) for one in (release, other)]
    assert "elsewhere" not in str(models[0].privacy_statement(1e-3))
    table, more = (model.transitions.popularity for model in models)
    table.assign(more)
    assert "came from elsewhere" in str(models[0].privacy_statement(1e-3))


@pytest.mark.thorough
def test_a_budget_pays_for_the_release_too(data, release):
    optimizer = dp(budget=tfdp.PrivacyBudget(8, 1e-3), steps=3)
    build(data, transitions=release).compile(optimizer, run_eagerly=True)
    step = dp_accounting.GaussianDpEvent(optimizer.noise_multiplier)
    training = dp_accounting.PoissonSampledDpEvent(20 / N, step)
    together = tfdp.accounting.Ledger([release.entry])
    together.add("training", training, 3)
    assert 7.9 < together.epsilon(1e-3) <= 8


@pytest.mark.thorough
def test_a_release_about_other_users_or_another_unit_is_refused(data, release):
    others = tfdp.data.synthetic_sequences(N + 1, M, max_length=6, min_length=3)
    release_of_others = tfdp.data.private_transitions(others.train, noise_multiplier=2.0)
    with pytest.raises(PrivacyError, match="num_examples"):
        build(data, transitions=release_of_others).compile(dp(noise_multiplier=1.0))

    class OfSessions(tfdp.models.DPFormer):
        privacy_unit = "one session"

    with pytest.raises(PrivacyError, match="unit"):
        OfSessions(M, 6, transitions=release, dim=4).compile(dp(noise_multiplier=1.0))


def test_the_prior_is_what_an_untrained_model_says(data, release):
    model = tfdp.models.SequenceBaseline(
        M, 6, cell="transformer", dim=4, transitions=release, embedding_stddev=1e-6
    )
    plain = tfdp.models.TransitionRecommender(release)
    np.testing.assert_allclose(
        model.score_next(data.test.x), plain.score_next(data.test.x), atol=1e-4
    )


def test_a_position_sees_no_later_item(data, release):
    model = build(data, transitions=release)
    x = data.test.x[:8].copy()
    before = model(x).numpy()
    x[:, 4:] = 1 + x[:, 4:] % M
    after = model(x).numpy()
    np.testing.assert_allclose(after[:, :4], before[:, :4], rtol=1e-5, atol=1e-5)
    assert np.abs(after[:, 4:] - before[:, 4:]).max() > 1e-3


@pytest.mark.thorough
def test_the_gate_is_clipped_with_all_other_weights(data, release):
    gate = tfdp.layers.TransitionPrior(release, gate=0.8, train_gate=True, name="transitions")
    model = build(data, transitions=gate, dropout=0.0)
    x, y = data.train.x[:2], data.train.y[:2]
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)
    norms = tfdp.clipping.per_example_gradient_norms(model, x, y, loss)
    assert any(v is gate.gate for v in model.trainable_weights)
    for i in range(len(x)):
        with tf.GradientTape() as tape:
            logits = model(x[i : i + 1], training=True)[0]
            losses = keras.losses.sparse_categorical_crossentropy(y[i], logits, from_logits=True)
            valid = y[i] > 0
            value = tf.reduce_sum(tf.where(valid, losses, 0.0)) / max(valid.sum(), 1)
        gradients = tape.gradient(value, model.trainable_variables)
        dense = [tf.convert_to_tensor(g) for g in gradients if g is not None]
        assert len(dense) == len(model.trainable_variables)
        np.testing.assert_allclose(norms[i], tf.linalg.global_norm(dense), rtol=1e-4)


def test_a_model_with_the_prior_comes_back_from_its_file(data, trained, tmp_path):
    trained.save(tmp_path / "m.keras")
    loaded = keras.models.load_model(tmp_path / "m.keras")
    scores = trained.score_next(data.test.x)
    np.testing.assert_allclose(loaded.score_next(data.test.x), scores, rtol=1e-5)
    assert loaded.ledger.entries == trained.ledger.entries
    tfdp.serving.export(trained, tmp_path / "served", k=2)
    served = tf.saved_model.load(str(tmp_path / "served"))
    answer = served.serve(tf.constant([[1, 2, 3]], tf.int64))["items"].numpy()
    aligned = np.array([[0, 0, 0, 1, 2, 3]])
    np.testing.assert_array_equal(answer, tf.math.top_k(trained.score_next(aligned), 2).indices)


def build(data, transitions=None, frequency=None, dropout=0.2):
    model = tfdp.models.DPFormer(
        M, 6, item_frequency=frequency, dim=4, num_blocks=1, transitions=transitions,
        dropout=dropout,
    )  # fmt: skip
    model(data.train.x[:1])
    return model


def dp(**settings):
    return tfdp.optimizers.DPOptimizer(
        keras.optimizers.SGD(0.1), num_examples=N, expected_batch_size=20, **settings
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda r: tfdp.models.TransitionRecommender(r, smoothing=0), "`smoothing`"),
        (lambda r: tfdp.models.TransitionRecommender(r, decay=1.5), "`decay`"),
        (lambda r: tfdp.models.TransitionRecommender(r, last_items=0), "`last_items`"),
        (lambda r: tfdp.models.TransitionRecommender(r, max_length=3), "`max_length`"),
        (lambda r: tfdp.models.TransitionRecommender(np.ones((3, 3))), "`release`"),
        (lambda r: tfdp.models.DPFormer(M + 1, 6, transitions=r), "`transitions`"),
        (
            lambda r: tfdp.models.DPFormer(
                M, 6, transitions=r, popularity_prior=np.full(M + 1, 0.5)
            ),
            "`popularity_prior`",
        ),
    ],
)
def test_wrong_arguments_are_named(release, make, message):
    with pytest.raises(ValueError, match=message):
        make(release)
