"""PrivateAttention as a Keras layer, and what it says of itself."""

import json
import math

import dp_accounting
import keras
import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from tfdp.accounting import (
    Ledger,
    LedgerEntry,
    PrivacyBudget,
    Statement,
    privacy_statement,
)
from tfdp.accounting.events.wishart import WishartDpEvent
from tfdp.accounting.reports.statement_pages import facts
from tfdp.accounting.reports.statement_text import in_words
from tfdp.attention_release import mechanisms
from tfdp.errors import BudgetError
from tfdp.layers import PrivateAttention

BUDGET = PrivacyBudget(2.0, 1e-5)
LARGE = PrivacyBudget(300.0, 1e-5)  # at which even a sequence of a few rows can be released


def exact_attention(query, key=None, max_norm=1.0, mask=None):
    """By numpy, rows clipped, exp."""
    key = query if key is None else key
    q, k = (
        z * np.minimum(1, max_norm / np.linalg.norm(z, axis=-1, keepdims=True))
        for z in (query, key)
    )
    weights = np.exp(q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1]))
    weights = weights if mask is None else weights * mask
    return weights / weights.sum(-1, keepdims=True)


@pytest.mark.thorough_after(6)
@pytest.mark.parametrize("mechanism", ["gaussian_noise", "gaussian_sampling"])
@pytest.mark.parametrize("with_key", [False, True])
@pytest.mark.parametrize("heads", [None, 3])
def test_releases_are_exact_attention_plus_little_noise_at_a_huge_epsilon(
    mechanism, with_key, heads
):
    rng = np.random.default_rng(0)
    shape = (2, 6, 4) if heads is None else (2, 6, heads, 4)
    query, key = rng.normal(size=(2, *shape)) * 3
    layer = PrivateAttention(
        PrivacyBudget(1e7, 1e-5), 1.5, mechanism=mechanism, dtype="float64", seed=1
    )
    causal = np.tril(np.ones([6, 6], bool))
    arguments = (query, key) if with_key else (query,)
    released = layer(*arguments, attention_mask=causal).numpy()
    first = [np.moveaxis(z, 2, 1) if heads else z for z in arguments]
    np.testing.assert_allclose(
        released,
        exact_attention(*first, 1.5, causal)
        if with_key
        else exact_attention(first[0], None, 1.5, causal),
        atol=0.02,
    )
    assert released.shape == layer.compute_output_shape(shape)
    assert np.all(released[..., ~causal] == 0)
    same = PrivateAttention(
        PrivacyBudget(1e7, 1e-5), 1.5, mechanism=mechanism, dtype="float64", seed=1
    )
    np.testing.assert_array_equal(same(*arguments, use_causal_mask=True).numpy(), released)


@pytest.mark.parametrize("mechanism", ["gaussian_noise", "gaussian_sampling"])
@pytest.mark.parametrize("with_key", [False, True])
def test_feature_unit_clips_the_columns_of_query_and_key_together(mechanism, with_key):
    query, key = np.random.default_rng(0).normal(size=(2, 2, 6, 4)) * [0.1, 1.0, 10.0, 100.0]
    layer = PrivateAttention(
        PrivacyBudget(1e7, 1e-5), 1.5, "feature", mechanism=mechanism, dtype="float64", seed=1
    )
    released = layer(*((query, key) if with_key else (query,))).numpy()
    columns = np.concatenate([query, key], 1) if with_key else query
    scale = np.minimum(1, 1.5 / np.linalg.norm(columns, axis=1, keepdims=True))
    key = key if with_key else query
    logits = (query * scale) @ np.swapaxes(key * scale, 1, 2) / 2
    exact = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    np.testing.assert_allclose(released, exact, atol=0.02)


@pytest.mark.thorough
def test_float32_results_agree_with_float64():
    x = np.random.default_rng(1).normal(size=(3, 8, 16)).astype("float32")
    for activation in ("exp", "cosh"):
        for mechanism in ("gaussian_noise", "gaussian_sampling"):
            wide, narrow = (
                PrivateAttention(
                    BUDGET,
                    1.0,
                    "feature",
                    activation=activation,
                    mechanism=mechanism,
                    dtype=dtype,
                    seed=3,
                )(x)
                for dtype in ("float64", "float32")
            )
            assert narrow.dtype == tf.float32 and wide.dtype == tf.float64
            np.testing.assert_allclose(narrow.numpy(), wide.numpy(), rtol=2e-7, atol=1e-38)
            np.testing.assert_allclose(narrow.numpy().sum(-1), 1.0, rtol=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize("mechanism", ["gaussian_noise", "gaussian_sampling"])
def test_functional_model_function_and_xla_draw_fresh_noise_at_each_call(mechanism):
    """And at the first call with a seed, XLA and eager compute the same release."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input([8, 2, 16])

    def layer(seed=None):
        return PrivateAttention(BUDGET, 1.0, "feature", mechanism=mechanism, seed=seed)

    model, seeded = (
        keras.Model(inputs, one(inputs, use_causal_mask=True)) for one in (layer(), layer(5))
    )
    x = tf.random.normal([2, 8, 2, 16])
    compiled = tf.function(seeded, jit_compile=True, autograph=False)
    calls = [compiled(x), compiled(x)]
    eager = layer(5)(x, use_causal_mask=True)
    np.testing.assert_allclose(eager.numpy(), calls[0].numpy(), rtol=1e-5)
    calls += [model(x), model(x), tf.function(model)(x), model.predict(x, verbose=0)]
    assert model.output_shape == (None, 2, 8, 8)
    drawn = np.array([np.asarray(c)[..., 5, 0] for c in calls]).ravel()
    assert len(set(drawn)) == len(drawn)
    for call in calls:
        np.testing.assert_allclose(np.asarray(call).sum(-1), 1.0, rtol=1e-6)
        assert np.all(np.triu(np.asarray(call), 1) == 0)


def test_keras_file_and_config_round_trip_without_the_noise_state(tmp_path):
    inputs = keras.Input([6, 8])
    layer = PrivateAttention(
        BUDGET,
        2.0,
        "token",
        neighbor_distance=0.05,
        activation="cosh",
        mechanism="gaussian_sampling",
        ridge=40.0,
        num_samples=200,
        name="release",
    )
    model = keras.Model(inputs, layer(inputs))
    model.save(tmp_path / "model.keras")
    restored = keras.saving.load_model(tmp_path / "model.keras").get_layer("release")
    assert restored.get_config() == layer.get_config()
    json.dumps(layer.get_config())
    assert (
        restored.event()
        == layer.event()
        == WishartDpEvent(200, layer.release_plan.sensitivity / 40.0)
    )
    x = np.ones([1, 6, 8], np.float32)
    assert np.any(restored(x).numpy() != layer(x).numpy())
    assert layer.variables == []


def test_mixed_precision_and_integer_masks():
    layer = PrivateAttention(BUDGET, 1.0, "feature", dtype="mixed_bfloat16")
    out = layer(tf.random.normal([1, 8, 16]), attention_mask=np.tril(np.ones([8, 8], np.int32)))
    assert out.dtype == tf.bfloat16
    assert np.all(np.triu(tf.cast(out, tf.float32).numpy()[0], 1) == 0)


def test_masks_of_batch_and_heads_with_empty_rows():
    mask = np.random.default_rng(0).random([2, 3, 5, 5]) < 0.5
    mask[0, 1, 2] = False
    layer = PrivateAttention(LARGE, 1.0)
    out = layer(tf.random.normal([2, 5, 3, 4]), attention_mask=mask).numpy()
    assert np.all(out[~mask] == 0)
    np.testing.assert_allclose(out.sum(-1), mask.any(-1).astype(float), rtol=1e-6)
    per_example = layer(tf.random.normal([2, 5, 3, 4]), attention_mask=mask[:, 0]).numpy()
    assert np.all(per_example[~np.repeat(mask[:, :1], 3, 1)] == 0)
    with pytest.raises(ValueError, match="`attention_mask`"):
        layer(tf.random.normal([2, 5, 3, 4]), attention_mask=mask[0, 0, 0])


def test_a_single_row_attends_to_itself():
    for mechanism in ("gaussian_noise", "gaussian_sampling"):
        out = PrivateAttention(BUDGET, 1.0, mechanism=mechanism)(tf.ones([2, 1, 4]))
        np.testing.assert_array_equal(out.numpy(), np.ones([2, 1, 1]))


@pytest.mark.thorough
def test_nothing_in_the_input_reaches_the_output_beyond_the_clipped_norm():
    bad = np.ones([1, 4, 8], np.float32)
    bad[0, 1, 2], bad[0, 2, 0], bad[0, 3, 1] = np.nan, np.inf, 3e38
    for mechanism in ("gaussian_noise", "gaussian_sampling"):
        for unit in ("sequence", "feature"):
            out = PrivateAttention(LARGE, 1.0, unit, mechanism=mechanism)(bad)
            assert np.all(np.isfinite(out.numpy()))


def test_no_gradient_flows_around_the_noise():
    x = tf.Variable(tf.ones([1, 8, 16]))
    layer = PrivateAttention(BUDGET, 1.0, "feature")
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.square(layer(x)))
    assert tape.gradient(loss, x) is None


def test_implicit_masks_are_refused_and_explicit_ones_accepted():
    ids = np.array([[3, 2, 0, 0]])
    embedded = keras.layers.Embedding(5, 4, mask_zero=True)(ids)
    layer = PrivateAttention(LARGE, 1.0)
    with pytest.raises(ValueError, match="implicit Keras mask"):
        layer(embedded)
    with pytest.raises(ValueError, match="implicit Keras mask"):
        PrivateAttention(LARGE, 1.0)(embedded, embedded)
    plain = tf.ones([1, 4, 4])
    for query, key in ((embedded, plain), (plain, embedded)):
        with pytest.raises(ValueError, match="implicit Keras mask"):
            PrivateAttention(LARGE, 1.0)(query, key)
    public = np.repeat((ids != 0)[:, None], 4, 1)
    assert np.all(layer(embedded, attention_mask=public).numpy()[0, :, 2:] == 0)


@pytest.mark.thorough
def test_auto_takes_the_mechanism_with_the_smaller_error():
    x = tf.ones([1, 8, 16])
    chosen, other = (
        PrivateAttention(BUDGET, 1.0, "feature", mechanism=m) for m in ("auto", "gaussian_sampling")
    )
    chosen(x), other(x)
    assert chosen.release_plan.mechanism == "gaussian_noise"
    assert chosen.release_plan.error().std < other.release_plan.error().std
    assert chosen.release_plan.error().bound < other.release_plan.error().bound


@pytest.mark.thorough_after(1)
@pytest.mark.parametrize("mechanism", ["gaussian_noise", "gaussian_sampling"])
@pytest.mark.parametrize("heads", [1, 4])
def test_budget_is_per_call_over_all_heads_and_used_up(mechanism, heads):
    layer = PrivateAttention(BUDGET, 1.0, "feature", mechanism=mechanism)
    layer.build((None, 8, heads, 16))
    spent = layer.privacy_statement().epsilon
    assert 0.99 * BUDGET.epsilon < spent <= BUDGET.epsilon
    ledger = Ledger()
    layer.charge(ledger, calls=3)
    accountant = "pld" if mechanism == "gaussian_noise" else "rdp"
    three = ledger.epsilon(BUDGET.delta, accountant)
    assert BUDGET.epsilon < three <= 3 * BUDGET.epsilon
    total = PrivacyBudget(three * 1.0001, BUDGET.delta)
    assert layer.affordable_calls(total) == 3


def test_ledger_of_training_is_refused():
    layer = PrivateAttention(BUDGET, 1.0, "feature")
    layer.build((None, 8, 16))
    gaussian = dp_accounting.GaussianDpEvent(1.0)
    for event, details in (
        (gaussian, {"kind": "training"}),
        (gaussian, {"kind": "forward noise"}),
        (gaussian, {"kind": "tuning"}),
        (dp_accounting.NonPrivateDpEvent(), {"kind": "no privacy"}),
        (dp_accounting.PoissonSampledDpEvent(0.1, gaussian), {}),
    ):
        training = Ledger([LedgerEntry("training", event, 1, details)])
        with pytest.raises(ValueError, match="must be a separate ledger"):
            layer.charge(training)


def test_statement_gives_epsilon_per_number_of_calls_and_every_assertion():
    layer = PrivateAttention(PrivacyBudget(60.0, 1e-5), 1.0, "token", neighbor_distance=0.2)
    layer.build((None, 8, 2, 16), (None, 8, 2, 16))
    statement = layer.privacy_statement()
    assert list(statement.epsilon_by_calls) == [1, 10, 100, 1000]
    spent = list(statement.epsilon_by_calls.values())
    assert spent == sorted(spent) and spent[0] <= 60.0
    text = " ".join(str(statement).split())
    for said in (
        "epsilon = 60 per call",
        "one token of the input sequence, replaced by one at distance 0.2",
        "each row of the query (and key) is a function of one token",
        "attention times values is private only if",
        "1,000 calls: epsilon =",
        "mask of the input are public",
    ):
        assert said in text
    assert json.loads(statement.to_json())["epsilon_by_calls"]["1000"] == spent[-1]
    assert "each row" not in str(_built("sequence", LARGE).privacy_statement())
    assert "feature of the input only" in str(_built("feature", BUDGET).privacy_statement())
    seeded = PrivateAttention(BUDGET, 1.0, "feature", seed=1)
    seeded.build((None, 8, 16))
    assert "NOT PRIVATE while seed=1" in str(seeded.privacy_statement())


@pytest.mark.parametrize("unit, distance", [("feature", None), ("token", 0.05)])
def test_a_ledger_of_calls_states_what_they_protect_and_what_they_assume(unit, distance):
    """It stated that one example may be added or removed, of releases that protect a token."""
    layer = PrivateAttention(BUDGET, 1.0, unit, distance, seed=1)
    layer.build((None, 8, 2, 4096))
    of_layer, ledger = layer.privacy_statement(), Ledger()
    layer.charge(ledger, calls=10)
    statement = privacy_statement(ledger, delta=1e-5)
    assert statement.unit == of_layer.unit
    assert statement.epsilon == pytest.approx(of_layer.epsilon_by_calls[10], rel=1e-3)
    assert set(of_layer.assumptions) <= set(statement.assumptions)
    assert set(of_layer.not_covered) <= set(statement.not_covered)
    assert any("NOT PRIVATE while seed=1" in remark for remark in statement.remarks)
    text = " ".join(str(statement).split())
    assert "If the input changes in one such unit, the probability p" in text
    assert "added or removed" not in text and "one example" not in text
    assert ("What it means", in_words(statement)) in facts(statement)
    assert "Adjacency" not in dict(facts(statement))
    assert Statement.from_dict(json.loads(statement.to_json())) == statement


def test_releases_that_protect_different_units_have_no_total():
    ledger, near = Ledger(), PrivateAttention(BUDGET, 1.0, "feature", neighbor_distance=0.1)
    near.build((None, 4, 4096))
    near.charge(ledger)
    assert math.isfinite(ledger.epsilon(1e-5))
    other = Ledger(ledger.entries)
    other.add("another release about the input", dp_accounting.GaussianDpEvent(9.0))
    _built("feature", BUDGET).charge(ledger)
    for mixed in (ledger, other):
        assert mixed.epsilon(1e-5) == math.inf
        assert "protect different units" in str(privacy_statement(mixed, delta=1e-5))


@pytest.mark.thorough
def test_a_call_that_a_subclass_overrides_is_listed_as_assumed():
    class Renamed(PrivateAttention):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **{"unit": "feature", **kwargs})

    class Doubled(Renamed):
        def call(self, query, key=None, **kwargs):
            return super().call(query, key, **kwargs) + super().call(query, key, **kwargs)

    sentences = {}
    for own in (Renamed, Doubled):
        layer = own(BUDGET, 1.0)
        layer.build((None, 4, 4096))
        sentences[own] = layer.privacy_statement().assumptions
    assert sentences[Renamed] == _built("feature", BUDGET).privacy_statement().assumptions
    (further,) = set(sentences[Doubled]) - set(sentences[Renamed])
    assert "`call` of Doubled" in further and "one call of PrivateAttention" in further


@pytest.mark.thorough_after(1)
@pytest.mark.parametrize(
    "mechanism, factor", [("gaussian_noise", 1), ("gaussian_sampling", 2**0.5)]
)
def test_the_sensitivity_is_that_of_the_matrix_the_mechanism_perturbs(mechanism, factor):
    """Q K' is perturbed by the noise; the samples have the covariance of [Q; K] as a whole."""
    layer = PrivateAttention(PrivacyBudget(1e4, 1e-5), 1.5, mechanism=mechanism)
    layer.build((None, 3, 4), (None, 3, 4))
    # By hand: all 9 entries of Q K' turn round, or 18 of the 36 of the covariance.
    assert layer.release_plan.sensitivity == pytest.approx(factor * 6 * 1.5**2)


def test_epsilon_of_many_calls_is_that_of_as_many_gaussians():
    statement = _built("feature", BUDGET).privacy_statement()
    sigma = _built("feature", BUDGET).event().noise_multiplier
    for calls, epsilon in statement.epsilon_by_calls.items():
        mu = calls**0.5 / sigma  # Balle and Wang (2018), theorem 8
        delta = stats.norm.cdf(mu / 2 - epsilon / mu)
        delta -= np.exp(epsilon + stats.norm.logcdf(-mu / 2 - epsilon / mu))
        assert delta == pytest.approx(BUDGET.delta, rel=1e-4)


def _built(unit, budget):
    layer = PrivateAttention(budget, 1.0, unit)
    layer.build((None, 8, 16))
    return layer


def test_explain_prints_both_mechanisms_before_anything_is_released():
    lines = []
    _built("feature", BUDGET).explain(print_fn=lines.append)
    (table,) = lines
    assert "gaussian_noise *" in table and "gaussian_sampling" in table
    assert "The paper's rule" in table and "affords" in table


def test_useless_releases_are_refused_with_the_error_and_what_must_change():
    with pytest.raises(ValueError) as error:
        PrivateAttention(PrivacyBudget(1.0, 1e-5), 1.0)(tf.ones([1, 50, 64]))
    text = str(error.value)
    assert "No useful release" in text and "50 rows" in text
    assert "error of each logit is 23.3" in text and "within 0.125 of 0" in text
    needed = float(text.split("epsilon to about ")[1].split()[0])
    PrivateAttention(PrivacyBudget(needed * 1.01, 1e-5), 1.0)(tf.ones([1, 50, 64]))
    near = PrivateAttention(BUDGET, 1.0, "token", neighbor_distance=0.1)
    with pytest.raises(ValueError, match="shorten the input to [0-9]+ rows") as error:
        near(tf.ones([1, 64, 64]))
    rows = int(str(error.value).split("shorten the input to ")[1].split()[0])
    PrivateAttention(BUDGET, 1.0, "token", neighbor_distance=0.1)(tf.ones([1, rows, 64]))
    distance = float(str(error.value).split("neighbor_distance=")[1].split()[0])
    PrivateAttention(BUDGET, 1.0, "token", neighbor_distance=distance * 0.99)(tf.ones([1, 64, 64]))


def test_requirements_of_the_sampling_mechanism_name_what_must_change():
    x = tf.ones([1, 8, 16])

    def layer(**arguments):
        return PrivateAttention(BUDGET, 1.0, "feature", mechanism="gaussian_sampling", **arguments)

    for too_small in (1.0, 2**0.5):  # the second is the sensitivity itself
        with pytest.raises(ValueError, match="`ridge` must exceed the sensitivity 1.414"):
            layer(ridge=too_small)(x)
    with pytest.raises(BudgetError, match="`num_samples` must be at most") as error:
        layer(ridge=500.0, num_samples=10**6)(x)
    most = int(str(error.value).split("must be at most ")[1].split()[0])
    ridge = float(str(error.value).split("`ridge` at least ")[1].split(",")[0])
    layer(ridge=500.0, num_samples=most)(x)
    layer(ridge=ridge * 1.001, num_samples=10**6)(x)
    with pytest.raises(BudgetError, match="Raise the ridge"):
        layer(ridge=2.0)(x)
    smallest = layer(num_samples=1000)
    smallest(x)
    with pytest.raises(BudgetError):
        layer(num_samples=1000, ridge=smallest.release_plan.ridge * 0.99)(x)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"budget": (1.0, 1e-5)}, "budget"),
        ({"max_norm": 0.0}, "max_norm"),
        ({"unit": "row"}, "unit"),
        ({"neighbor_distance": 0.1}, "neighbor_distance"),
        ({"activation": "relu"}, "activation"),
        ({"mechanism": "laplace"}, "mechanism"),
        ({"ridge": 3.0}, "ridge"),
        ({"num_samples": 10, "mechanism": "gaussian_noise"}, "num_samples"),
        ({"num_samples": 2.5, "mechanism": "gaussian_sampling"}, "num_samples"),
        ({"seed": "x"}, "seed"),
    ],
)
def test_bad_arguments_are_named_at_construction(changes, name):
    with pytest.raises(ValueError, match=f"`{name}`"):
        PrivateAttention(**{"budget": BUDGET, "max_norm": 1.0, **changes})


def test_calls_must_match_what_was_built():
    layer = _built("feature", BUDGET)
    for arguments in ((tf.ones([1, 9, 16]),), (tf.ones([1, 8, 16]), tf.ones([1, 8, 16]))):
        with pytest.raises(ValueError, match="called as it was built"):
            layer(*arguments)
    with pytest.raises(ValueError, match="All sizes except batch must be static"):
        PrivateAttention(BUDGET, 1.0, "feature").build((None, None, 16))
    with pytest.raises(ValueError, match="query's shape"):
        PrivateAttention(BUDGET, 1.0, "feature").build((None, 8, 16), (None, 9, 16))
    with pytest.raises(ValueError, match="is not built"):
        PrivateAttention(BUDGET, 1.0).event()


@pytest.mark.thorough_after(1)
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "mixed_float16", "float16"])
def test_no_precision_spreads_neighbours_apart(policy, monkeypatch):
    seen = []
    noisy = mechanisms.noisy_gram
    monkeypatch.setattr(mechanisms, "noisy_gram", lambda x, *a: (seen.append(x), noisy(x, *a))[1])
    layer = PrivateAttention(
        PrivacyBudget(1.0, 1e-5), 100.0, "token", neighbor_distance=1e-3,
        mechanism="gaussian_noise", dtype=policy,
    )  # fmt: skip
    middle = 1.5 + {"float32": 2**-24, "mixed_bfloat16": 2**-8}.get(policy, 2**-11)
    first = np.full((1, 8, 64), 1.5, np.float32)
    first[0, 0] = middle - 5e-5
    second = first.copy()
    second[0, 0] = middle + 5e-5  # at a distance of 8e-4; rounded apart, of up to 0.06
    for x in (first, second):
        assert layer(tf.constant(x)).dtype == layer.compute_dtype
    moved = np.linalg.norm((seen[0] - seen[1]).numpy())
    assert 0 < moved <= 1e-3
    with pytest.raises(ValueError, match="autocast"):
        PrivateAttention(BUDGET, 1.0, autocast=True)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name",
    ["budget", "max_norm", "unit", "neighbor_distance", "ridge", "num_samples", "mechanism"],
)
def test_what_is_stated_is_fixed(name):
    layer = _built("feature", BUDGET)
    with pytest.raises(AttributeError, match=f"`{name}` of a PrivateAttention cannot be changed"):
        setattr(layer, name, 50.0)
