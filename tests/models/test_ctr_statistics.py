"""Click odds as a layer, and PrivateCTR that starts from them."""

import epsilon_by_hand
import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tfdp.data.releases.click_statistics import private_click_statistics, value_of_count
from tfdp.errors import PrivacyError
from tfdp.layers import ClickOdds
from tfdp.models import PrivateCTR

N, SIZES = 400, {"a": 6, "b": 50}


def clicks(n=N, seed=0):
    rng = np.random.default_rng(seed)
    x = {name: rng.integers(0, size, n) for name, size in SIZES.items()}
    x["integers"] = rng.integers(0, 50, (n, 2)).astype(np.float32)
    rate = np.where(x["a"] < 2, 0.8, 0.1)
    return x, (rng.random((n, 1)) < rate[:, np.newaxis]).astype(np.float32)


def released(sigma=2.0, with_integers=True):
    x, y = clicks()
    if not with_integers:
        del x["integers"]
    return private_click_statistics((x, y), SIZES, noise_multiplier=sigma)


def model(statistics, embedded=(), **kwargs):
    settings = {"num_integers": 2, "hidden_units": ()} | kwargs
    return PrivateCTR(SIZES, statistics=statistics, embedded=embedded, **settings)


def optimizer():
    return tfdp.optimizers.DPOptimizer(
        keras.optimizers.SGD(0.5), noise_multiplier=1.5, num_examples=N, expected_batch_size=40
    )


def test_odds_are_looked_up_and_unknown_ids_say_nothing():
    statistics = released()
    odds = ClickOdds(statistics)
    x = {
        "a": np.array([0, 5, 6, -1]), "b": np.array([3, 49, 50, 0]), "other": np.zeros(4),
        "integers": np.array([[0.0, 7.0], [3.0, -2.0], [np.nan, 1e9], [1.0, 1.0]], np.float32),
    }  # fmt: skip
    found = odds(x).numpy()
    of = statistics.log_odds
    np.testing.assert_array_equal(found[:, 0], [of["a"][0], of["a"][5], 0.0, 0.0])
    np.testing.assert_array_equal(found[:, 1], [of["b"][3], of["b"][49], 0.0, of["b"][0]])
    for j in range(2):
        values = value_of_count(x["integers"][:, j]).numpy()
        np.testing.assert_array_equal(found[:, 2 + j], of[f"integers_{j}"][values])
    assert not odds.trainable_variables
    with pytest.raises(ValueError, match="'integers_0', which the inputs lack"):
        odds({"a": x["a"], "b": x["b"]})
    with pytest.raises(ValueError, match="Argument `statistics`"):
        ClickOdds({"a": 1})


@pytest.mark.thorough
def test_a_model_starts_from_the_odds_and_knows_something_before_it_trains():
    statistics = released(sigma=0.3)
    made = model(statistics)
    x, y = clicks(seed=5)
    logits = made.predict(x, verbose=0)[:, 0]
    offset = np.log(statistics.rate / (1 - statistics.rate))
    total = ClickOdds(statistics)(x).numpy().sum(1)
    np.testing.assert_allclose(logits, offset + 0.2 * total, rtol=1e-4, atol=1e-5)
    made.compile(optimizer())
    assert made.evaluate(x, y, verbose=0, return_dict=True)["auc"] > 0.75
    assert [v.shape for v in made.trainable_variables] == [(4, 1), (1,)]  # a weight for each


def train(made, steps=10, run_eagerly=False):
    made.compile(optimizer(), run_eagerly=run_eagerly)
    made.fit(tfdp.data.poisson_batches(clicks(), 40, steps_per_epoch=steps), verbose=0)
    return made


@pytest.fixture(scope="module")
def trained():
    statistics = released()
    return statistics, train(model(statistics), run_eagerly=True)


@pytest.mark.thorough
def test_statistics_and_steps_are_one_epsilon(trained):
    statistics, made = trained
    expected = epsilon_by_hand.by_hand(statistics.event, epsilon_by_hand.poisson(1.5, 0.1, 10))
    steps = epsilon_by_hand.by_hand(epsilon_by_hand.poisson(1.5, 0.1, 10))
    assert expected > steps + 0.1
    epsilon_by_hand.assert_one(made, expected)
    assert "click statistics" in str(made.privacy_statement(1e-3))


def test_statistics_of_other_records_are_refused():
    x, y = clicks(n=500)
    statistics = private_click_statistics((x, y), SIZES, noise_multiplier=2.0)
    made = model(statistics)
    with pytest.raises(PrivacyError, match="num_examples=500"):
        made.compile(optimizer())
        made.fit(tfdp.data.poisson_batches(clicks(), 40), verbose=0)


def test_survives_a_file_with_its_charge_and_its_numbers(tmp_path):
    made = model(released(), embedded=["b"], hidden_units=(4,))
    train(made, run_eagerly=True, steps=1)
    made.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    x, _ = clicks(seed=5)
    np.testing.assert_allclose(made(x), loaded(x), rtol=1e-6)
    assert loaded.privacy_statement(1e-3).epsilon == made.privacy_statement(1e-3).epsilon
    assert loaded.ledger == made.ledger
    assert "elsewhere" not in str(loaded.privacy_statement(1e-3))
    made.export(tmp_path / "exported", verbose=False)
    served = tf.saved_model.load(tmp_path / "exported")
    inputs = {name: tf.constant(values) for name, values in x.items()}
    # A logit near 0 is the difference of larger numbers.
    np.testing.assert_allclose(
        served.serve(inputs), made.predict(x, verbose=0), rtol=1e-5, atol=1e-6
    )


def test_a_layer_survives_its_configuration():
    layer = ClickOdds(released())
    again = ClickOdds.from_config(layer.get_config())
    assert again.vocabulary_sizes == layer.vocabulary_sizes and again.rate == layer.rate
    assert again.privacy_releases == layer.privacy_releases
    assert not again.table.numpy().any()  # its numbers come with the weights


def test_what_is_charged_does_not_wait_for_training():
    statistics = released()
    made = model(statistics)
    assert [entry.label for entry in made.ledger.entries] == ["click statistics"]
    made.compile(optimizer())
    assert list(made.ledger.entries) == [statistics.entry]  # once


def own_model(layer_of):
    """A model of one's own that calls a `ClickOdds` by `layer_of(odds)`."""
    inputs = {name: keras.Input((), dtype="int64", name=name) for name in SIZES}
    inputs["integers"] = keras.Input((2,), name="integers")
    odds = layer_of(ClickOdds(released()))(inputs)
    return tfdp.make_private(keras.Model(inputs, keras.layers.Dense(1)(odds)))


@pytest.mark.parametrize("hidden", [True, False])
def test_a_layer_that_keras_does_not_see_is_refused(hidden):
    def in_a_lambda(odds):
        return keras.layers.Lambda(odds.call, output_shape=(4,))

    made = own_model(in_a_lambda if hidden else lambda odds: odds)
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    made.compile(optimizer(), loss=loss, run_eagerly=True)
    batches = tfdp.data.poisson_batches(clicks(), 40, steps_per_epoch=1)
    if hidden:
        with pytest.raises(PrivacyError, match="holds a private release that would not be"):
            made.fit(batches, verbose=0)
    else:
        made.fit(batches, verbose=0)
        assert any(e.label == "click statistics" for e in made.ledger.entries)


def test_the_table_of_another_release_is_named_in_the_statement(trained):
    made, other = model(released()), model(released(sigma=0.5))
    made.get_layer("click_odds").table.assign(other.get_layer("click_odds").table)
    train(made, steps=1, run_eagerly=True)
    assert "log_odds came from elsewhere" in str(made.privacy_statement(1e-3))
    _, made = trained
    assert "elsewhere" not in str(made.privacy_statement(1e-3))


@pytest.mark.parametrize(
    "inputs, message",
    [
        (np.zeros(3), "takes a dict"),
        ({"a": np.zeros((4, 3), int), "b": np.zeros(4, int)}, "ids must be"),
        ({"a": np.zeros(4, int), "b": np.zeros(4, int), "integers": np.zeros((4, 1))}, "columns"),
    ],
)
def test_other_inputs_are_refused(inputs, message):
    with pytest.raises(ValueError, match=message):
        ClickOdds(released())(inputs)


def test_statistics_of_other_features_are_refused():
    for sizes, integers in (({"a": 6, "b": 60}, 2), (SIZES, 1), ({"a": 6}, 2)):
        with pytest.raises(ValueError, match="Argument `statistics` must be about features"):
            PrivateCTR(sizes, num_integers=integers, statistics=released(), hidden_units=())


def test_which_features_have_tables():
    names = [v.path for v in model(released(), embedded=["a"]).trainable_variables]
    assert any("a/" in name for name in names) and not any("b/" in name for name in names)
    # Odds of counts stand in for their logarithms, which are there without them.
    widths = [
        model(released(with_integers=w), hidden_units=(3,)).trainable_variables[0].shape[0]
        for w in (True, False)
    ]
    assert widths == [4, 2 + 2]
    without = model(released(with_integers=False)).get_layer("logit")
    assert without.kernel.shape == (2, 1) and not without.kernel.numpy().any()
    with pytest.raises(ValueError, match="Argument `embedded` must name features"):
        model(None, embedded=["c"])
    with pytest.raises(ValueError, match="must name a feature"):
        model(None, num_integers=0)
