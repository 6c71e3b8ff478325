"""Re-Attention: MultiHeadAttention without noise, MATH.md's correction with it."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tfdp.layers.accounted_weights import EffectiveError
from tfdp.layers.item_embedding import EmbeddingError, LearnedPositions, PopularityPrior
from tfdp.layers.re_attention import ReAttention
from tfdp.layers.re_attention_block import ReAttentionBlock

GENERATOR = np.random.default_rng(3)
HEADS, KEY, WIDTH = 2, 4, 6


def normal(*shape):
    return GENERATOR.normal(size=shape).astype(np.float32)


def pair():
    """(ReAttention, MultiHeadAttention) with the same weights."""
    own = ReAttention(HEADS, KEY)
    theirs = keras.layers.MultiHeadAttention(HEADS, KEY, flash_attention=False)
    x = normal(2, 5, WIDTH)
    own(x, x)
    theirs(x, x)
    for a in own.weights:
        a.assign(normal(*a.shape))
    for b, kind in zip(theirs.weights, ("query", "query", "key", "key", "value", "value",
                                        "attention_output", "attention_output"),
                       strict=True):  # fmt: skip
        (match,) = [a for a in own.weights if f"/{kind}/" in a.path and a.name == b.name]
        b.assign(match)
    return own, theirs


@pytest.mark.parametrize("variance", [None, "zero"])
@pytest.mark.parametrize("causal", [False, True])
def test_without_noise_it_is_multi_head_attention(variance, causal):
    own, theirs = pair()
    query, value = normal(2, 5, WIDTH), normal(2, 5, WIDTH)
    mask = GENERATOR.uniform(size=(2, 5, 5)) < 0.7
    mask |= np.eye(5, dtype=bool)
    found, scores = own(
        query, value, variance=None if variance is None else tf.zeros((2, 5)),
        attention_mask=mask, use_causal_mask=causal, return_attention_scores=True,
    )  # fmt: skip
    wanted, their_scores = theirs(
        query, value, attention_mask=mask, use_causal_mask=causal, return_attention_scores=True
    )
    np.testing.assert_allclose(scores, their_scores, atol=1e-5)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("per_head", [False, True])
def test_correction_is_that_of_the_formula(per_head):
    # logit(t, j) −= ‖q_t‖²·v_j/(2·d_k), before the softmax, at scale 1/√d_k (not 1/√(d_k + 1)).
    layer = ReAttention(HEADS, KEY)
    query, value = normal(2, 3, WIDTH), normal(2, 5, WIDTH)
    layer(query, value)
    for weight in layer.weights:
        weight.assign(normal(*weight.shape))
    variance = GENERATOR.uniform(0, 2, (2, HEADS, 5) if per_head else (2, 5)).astype(np.float32)
    _, scores = layer(query, value, variance=variance, return_attention_scores=True)
    kernels = {w.path.split("/")[-2] + "/" + w.name: np.asarray(w, np.float64)
               for w in layer.weights}  # fmt: skip
    q = np.einsum("btd,dhk->bhtk", query, kernels["query/kernel"])
    q += kernels["query/bias"][:, None]
    k = np.einsum("btd,dhk->bhtk", value, kernels["key/kernel"]) + kernels["key/bias"][:, None]
    v = variance if per_head else np.repeat(variance[:, None], HEADS, 1)
    logits = q @ k.swapaxes(2, 3) / np.sqrt(KEY)
    logits -= np.square(q).sum(-1)[..., None] * v[:, :, None] / (2 * KEY)
    wanted = np.exp(logits - logits.max(-1, keepdims=True))
    wanted /= wanted.sum(-1, keepdims=True)
    np.testing.assert_allclose(scores, wanted, atol=1e-5)


def test_correction_undoes_what_noise_adds_to_the_expected_weight():
    # E exp(⟨q, k + e⟩/√d) = exp(⟨q, k⟩/√d)·exp(‖q‖²v/(2d)) for e ~ N(0, v·I).
    q, k, v = normal(KEY), normal(KEY), 0.3
    noisy = k + np.sqrt(v) * GENERATOR.normal(size=(200_000, KEY))
    raised = np.exp(noisy @ q / np.sqrt(KEY)).mean()
    corrected = raised / np.exp(np.sum(q**2) * v / (2 * KEY))
    assert corrected == pytest.approx(np.exp(q @ k / np.sqrt(KEY)), rel=0.02)


def test_no_gradient_flows_through_the_correction():
    layer = ReAttention(1, KEY, use_bias=False)
    x, variance = tf.constant(normal(1, 3, WIDTH)), tf.constant([[0.5, 1.0, 2.0]])
    layer(x, x)
    with tf.GradientTape() as tape:
        tape.watch([x, variance])
        output = layer(x, x, variance=variance)
        loss = tf.reduce_sum(output**2)
    assert tape.gradient(loss, variance) is None
    # ‖q‖² as a constant: the gradient equals that of the same logits with a fixed offset.
    with tf.GradientTape(persistent=True) as tape:
        kernel = layer.query_dense.kernel.value
        tape.watch(kernel)
        found = tf.reduce_sum(layer(x, x, variance=variance) ** 2)
        q = tf.einsum("btd,dhk->bhtk", x, kernel)
        k = tf.einsum("btd,dhk->bhtk", x, layer.key_dense.kernel.value)
        v = tf.einsum("btd,dhk->bhtk", x, layer.value_dense.kernel.value)
        fixed = tf.stop_gradient(tf.reduce_sum(q**2, -1, keepdims=True)) * variance / (2 * KEY)
        scores = tf.nn.softmax(tf.matmul(q, k, transpose_b=True) / KEY**0.5 - fixed)
        context = tf.transpose(tf.matmul(scores, v), [0, 2, 1, 3])
        by_hand = tf.reduce_sum(layer.output_dense(context) ** 2)
    assert float(found) == pytest.approx(float(by_hand), rel=1e-5)
    wanted = tape.gradient(by_hand, kernel)
    np.testing.assert_allclose(tape.gradient(found, kernel), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("arguments", [{"num_heads": 0, "key_dim": 4},
                                       {"num_heads": 2, "key_dim": 1.5}])  # fmt: skip
def test_arguments_are_checked(arguments):
    with pytest.raises(ValueError, match="integer of at least 1"):
        ReAttention(**arguments)


def block(error=0.0, dropout=0.0):
    layer = ReAttentionBlock(2, 5, dropout=dropout)
    x = tf.constant(normal(2, 4, 6))
    layer(x, tf.zeros((2, 4)))
    layer.error.assign(error)
    return layer, x


@pytest.mark.thorough
def test_block_without_noise_is_an_ordinary_block():
    layer, x = block()
    plain, none = layer(x)
    corrected, variance = layer(x, tf.zeros((2, 4)))
    assert none is None
    np.testing.assert_allclose(plain, corrected, atol=1e-6)
    np.testing.assert_allclose(variance, tf.zeros((2, 4)), atol=1e-12)


@pytest.mark.thorough
def test_variance_grows_with_the_error_and_stays_with_its_position():
    layer, x = block(0.01)
    mask = np.tril(np.ones((4, 4), bool))[None]
    variance = np.full((2, 4), 0.01, np.float32)
    _, small = layer(x, tf.constant(variance), attention_mask=mask)
    layer.error.assign(0.05)
    _, large = layer(x, tf.constant(variance), attention_mask=mask)
    assert np.all(large.numpy() > small.numpy()) and np.all(small.numpy() > variance)
    variance[:, 3] = 9.0  # a noisy last position: earlier ones do not see it
    _, other = layer(x, tf.constant(variance), attention_mask=mask)
    np.testing.assert_allclose(other[:, :3], large[:, :3], rtol=1e-5)
    assert np.all(other[:, 3].numpy() > large[:, 3].numpy() + 8)


@pytest.mark.thorough
def test_variance_of_a_block_is_that_of_sampled_noise():
    # Monte Carlo: perturb the inputs only (error 0). First order, so a wide tolerance, for which
    # not every draw of the weights is close enough: they are fixed.
    keras.utils.set_random_seed(1)
    layer, x = block(0.0)
    x, variance = x[:1], 1e-4
    draws = x + tf.sqrt(variance) * tf.random.stateless_normal((3000, 4, 6), [1, 2])
    outputs, _ = layer(draws)
    sampled = tf.reduce_mean(tf.math.reduce_variance(outputs, 0), -1)
    _, found = layer(x, tf.fill((1, 4), variance))
    ratio = found[0].numpy() / sampled.numpy()
    assert np.all(ratio > 0.4) and np.all(ratio < 2.5)


@pytest.mark.thorough
def test_no_gradient_flows_through_the_variances_of_a_block():
    layer, x = block(0.05)
    variance = tf.fill((2, 4), 0.1)
    with tf.GradientTape() as tape:
        tape.watch([x, variance])
        _, after = layer(x, variance)
        loss = tf.reduce_sum(after)
    sources = [x, *(v.value for v in layer.trainable_variables)]
    gradients = tape.gradient(loss, sources)
    assert all(g is None or not np.any(g) for g in gradients)


def test_embedding_error_is_the_claim():
    # σ_E[j] = σC/(B̄·p_j) for rows, σ_W for positions; p_j never below 1/n.
    probabilities = np.array([1.0, 0.5, 0.01, 0.0])
    layer = EmbeddingError(3, probabilities, error_scale=2.0)
    np.testing.assert_array_equal(layer(np.array([[0, 1]])), [[0.0, 0.0]])
    layer.bind_privacy(
        noise_multiplier=1.5, clip_norm=0.4, expected_batch_size=30, num_examples=500
    )
    sigma = 2.0 * 1.5 * 0.4 / 30
    wanted = (sigma / np.array([[1.0, 0.5, 0.01, 1 / 500]])) ** 2 + sigma**2
    np.testing.assert_allclose(layer(np.array([[0, 1, 2, 3]])), wanted, rtol=1e-5)
    # Compiled again for more records, the smallest frequency is theirs.
    layer.bind_privacy(
        noise_multiplier=1.5, clip_norm=0.4, expected_batch_size=30, num_examples=5000
    )
    np.testing.assert_allclose(layer(np.array([[3]])), (sigma * 5000) ** 2 + sigma**2, rtol=1e-5)


@pytest.mark.parametrize(
    ("probabilities", "message"),
    [(np.ones(3), "num_items"), (np.array([1, 0.5, 2.0, 0.1]), "counts"),
     (np.array([1, 0.5, -0.1, 0.1]), "probabilities")],
)  # fmt: skip
def test_frequencies_are_checked(probabilities, message):
    with pytest.raises(ValueError, match=message):
        EmbeddingError(3, probabilities)


@pytest.mark.parametrize("scale", [-1.0, float("inf"), float("nan")])
def test_error_scale_is_checked(scale):
    with pytest.raises(ValueError, match="error_scale"):
        EffectiveError(error_scale=scale)


def test_popularity_prior_adds_log_frequencies():
    probabilities = np.array([1.0, 0.5, 0.0, 0.2], np.float32)
    prior = PopularityPrior(3, probabilities)
    found = prior(tf.zeros((2, 4)))
    np.testing.assert_allclose(found[0], np.log(np.maximum(probabilities, 1e-6)), rtol=1e-6)


def test_learned_positions_are_right_aligned():
    layer = LearnedPositions(5, initializer="normal")
    whole = layer(tf.zeros((1, 5, 2)))
    np.testing.assert_array_equal(layer(tf.zeros((3, 2, 2)))[1], whole[0, 3:])


def sequence_model(small_frequency=None, cell=None, **kwargs):
    if cell is None:
        return tfdp.models.DPFormer(7, 4, small_frequency, dim=4, num_blocks=1, **kwargs)
    return tfdp.models.SequenceBaseline(7, 4, cell=cell, dim=4, num_blocks=1, **kwargs)


def sequences(n=30):
    x = GENERATOR.integers(1, 8, (n, 4)).astype(np.int32)
    x[: n // 3, :2] = 0
    return x, np.roll(x, -1, 1)


def compiled(model, run_eagerly=False, validate=True, **kwargs):
    """Without the search for examples that mix, which takes long, unless validated."""
    settings = {"noise_multiplier": 2.0, "clip_norm": 0.5, **kwargs}
    model.validate_independence = validate
    optimizer = tfdp.optimizers.DPOptimizer(
        "sgd", num_examples=30, expected_batch_size=10, **settings
    )
    model.compile(optimizer, run_eagerly=run_eagerly)
    return model


def test_error_is_bound_at_compile():
    model = sequence_model(np.full(8, 0.2), error_scale=0.5)
    assert float(model.embedding_error.error) == 0
    model.compile("sgd")
    assert float(model.blocks[0].error) == 0
    compiled(model)
    for layer in (model.embedding_error, model.blocks[0]):
        assert float(layer.error) == pytest.approx(0.5 * 2.0 * 0.5 / 10)
    compiled(model, noise_multiplier=4.0)
    assert float(model.blocks[0].error) == pytest.approx(0.5 * 4.0 * 0.5 / 10)


@pytest.mark.thorough
def test_dpformer_without_error_is_the_vanilla_transformer():
    settings = {"dim": 4, "num_blocks": 3, "dropout": 0.0}
    one = tfdp.models.DPFormer(7, 4, error_scale=0.0, **settings)
    two = tfdp.models.SequenceBaseline(7, 4, cell="transformer", **settings)
    x, _ = sequences()
    compiled(one)(x)
    compiled(two)(x)
    for a, b in zip(one.trainable_variables, two.trainable_variables, strict=True):
        assert a.shape == b.shape
        b.assign(a)
    np.testing.assert_allclose(one(x), two(x), atol=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "cell",
    [
        None,
        pytest.param("gru", marks=pytest.mark.evidence),
        pytest.param("transformer", marks=pytest.mark.evidence),
    ],
)
def test_sequence_models_train_save_and_continue(cell, tmp_path):
    tied = cell != "transformer"
    frequency = np.full(8, 0.3)
    model = compiled(sequence_model(*([frequency] if cell is None else []), cell=cell, tied=tied,
                                    popularity_prior=frequency), run_eagerly=True)  # fmt: skip
    x, y = sequences()
    data = tfdp.data.poisson_batches((x, y), 10, steps_per_epoch=1)
    model.fit(data, verbose=0)
    assert any("public" in s for s in model.privacy_statement().assumptions)
    model.save(tmp_path / "m.keras")
    other = keras.models.load_model(tmp_path / "m.keras")
    assert json.dumps(other.get_config()) == json.dumps(model.get_config())
    assert other.ledger == model.ledger
    np.testing.assert_allclose(model(x), other(x), atol=1e-5)
    other.fit(data, verbose=0)
    assert other.optimizer.steps_taken == 2


@pytest.mark.thorough
def test_a_release_is_charged_once_however_often_it_is_used(tmp_path):
    x, y = sequences()
    release = tfdp.data.private_frequency((x, y), epsilon=1.0, num_items=7)
    unsearched = {"run_eagerly": True, "validate": False}
    model = compiled(sequence_model(release, popularity_prior=release), **unsearched)
    releases = [e for e in model.ledger.entries if e.label == "item frequencies"]
    assert len(releases) == 1 and releases[0].count == 1
    assert releases[0].event == release.event
    assert model.privacy_statement().assumptions == ()
    data = tfdp.data.poisson_batches((x, y), 10, steps_per_epoch=1)
    compiled(model, **unsearched).fit(data, verbose=0)
    model.save(tmp_path / "m.keras")
    other = compiled(keras.models.load_model(tmp_path / "m.keras"), **unsearched)
    other.fit(data, verbose=0)
    for candidate in (model, other):
        entries = [e for e in candidate.ledger.entries if e.label == "item frequencies"]
        assert [e.count for e in entries] == [1]
    assert other.optimizer.steps_taken == 2


@pytest.mark.thorough
def test_two_releases_are_charged_twice():
    x, y = sequences()
    one, two = (tfdp.data.private_frequency((x, y), epsilon=1.0, num_items=7) for _ in range(2))
    model = compiled(sequence_model(one, popularity_prior=two))
    assert sum(e.count for e in model.ledger.entries if e.label == "item frequencies") == 2


@pytest.mark.thorough
def test_noise_is_calibrated_to_what_a_release_leaves():
    x, y = sequences()
    release = tfdp.data.private_frequency((x, y), epsilon=1.0, num_items=7)
    budget = {"budget": tfdp.PrivacyBudget(4.0, 0.01), "steps": 1, "noise_multiplier": None}
    plain = compiled(sequence_model(), **budget)
    model = compiled(sequence_model(release), **budget)
    assert model.optimizer.noise_multiplier > plain.optimizer.noise_multiplier
    assert 3.9 < model.optimizer.epsilon_after(1, 0.01) <= 4.0


@pytest.mark.thorough
def test_scores_of_padding_are_never_served():
    model = sequence_model()
    x, _ = sequences()
    scores = model.score_next(x)
    assert scores.shape == (30, 8)
    assert np.all(np.isneginf(scores[:, 0])) and np.all(np.isfinite(scores[:, 1:]))


@pytest.mark.parametrize("arguments", [{"num_items": 0}, {"max_length": 1.5}])
def test_model_arguments_are_checked(arguments):
    settings = {"num_items": 5, "max_length": 4, **arguments}
    with pytest.raises(ValueError, match="integer of at least 1"):
        tfdp.models.DPFormer(**settings)
    with pytest.raises(ValueError, match="cell"):
        tfdp.models.SequenceBaseline(5, 4, cell="rnn")


def test_width_must_be_divisible():
    with pytest.raises(ValueError, match="num_heads"):
        ReAttentionBlock(4, 5)(tf.zeros((1, 2, 6)))
