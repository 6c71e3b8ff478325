"""Hyper-parameters chosen by their results: the distribution of runs, the charge, the statement."""

import concurrent.futures
import math
import secrets

import dp_accounting
import keras
import numpy as np
import pytest
import tensorflow as tf
from dp_accounting import dp_event, rdp

import tfdp
from tfdp.accounting import LedgerEntry
from tfdp.accounting.charges.history import ChargeHistory, runs_begun
from tfdp.accounting.charges.mechanisms import PrivateTraining
from tfdp.accounting.charges.sampling import PERSON
from tfdp.data.provenance.origins import Origin
from tfdp.errors import PrivacyError
from tfdp.noise import NoiseSource
from tfdp.tuning import HyperParameters, NumberOfRuns, PrivateMean, tune

DELTA = 1e-3
RATES = [0.01 * k for k in range(1, 9)]


def by_hand(*events):
    accountant = rdp.RdpAccountant()
    for event in events:
        accountant.compose(event)
    return accountant.get_epsilon(DELTA)


def poisson(sigma, q, steps):
    event = dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(sigma))
    return dp_accounting.SelfComposedDpEvent(event, steps)


@pytest.fixture
def runs(monkeypatch):
    """Fixes how many runs there are."""

    def fix(number):
        monkeypatch.setattr(NumberOfRuns, "draw", lambda self: number)

    return fix


def fit(model, batches):
    model.fit(batches, verbose=0)
    return model


def charged(model, batches, steps=4):
    """Begins a training and charges its steps, as `fit` does; the steps themselves are left out."""
    charging = model.optimizer.charging
    charging.begin(tfdp.data.sampling_of(batches))
    for _ in range(steps):
        charging.charge_step()
    charging.begin(None)
    return model


def trainer(small, trained=None, by=charged, **kwargs):
    def train(hp):
        inner = keras.optimizers.SGD(hp.Choice("learning_rate", RATES))
        model = small.model(inner=inner, **{"noise_multiplier": 2.0, **kwargs})
        by(model, small.poisson())
        if trained is not None:
            trained.append(model)
        return model

    return train


@pytest.mark.thorough_after(2)
@pytest.mark.parametrize(
    "mean, shape", [(1.0, 1.0), (8.0, 1.0), (8.0, 0.5), (3.0, 0.0), (20.0, 2.0)]
)
def test_the_number_of_runs_has_the_distribution_that_is_accounted_for(mean, shape):
    number = NumberOfRuns(mean, shape)
    draws = np.array([number.draw() for _ in range(20_000)])
    gamma = number.gamma
    # Papernot and Steinke (2022), definition 1.
    k = np.arange(1, 2000)
    if mean == 1:
        expected = (k == 1).astype(float)
    elif shape:
        gammaln = np.vectorize(math.lgamma)
        log = gammaln(k + shape) - gammaln(k + 1) - math.lgamma(shape)
        expected = np.exp(log + k * math.log1p(-gamma)) / math.expm1(-shape * math.log(gamma))
    else:
        expected = (1 - gamma) ** k / (k * -math.log(gamma))
    assert expected.sum() == pytest.approx(1, abs=1e-6)
    assert (k * expected).sum() == pytest.approx(mean, rel=1e-6)
    # Each of the 15 first probabilities within 5 standard errors: false alarms below 1e-5.
    for j in range(1, 16):
        p = expected[j - 1]
        assert abs((draws == j).mean() - p) <= 5 * math.sqrt(max(p * (1 - p), 1e-12) / 20_000)
    assert draws.min() >= 1


@pytest.mark.parametrize("shape", [0.0, 0.5, 1.0, 2.0])
def test_a_number_is_drawn_where_its_distribution_function_is_reached(monkeypatch, shape):
    number = NumberOfRuns(3.0, shape)
    gamma = number.gamma
    # Papernot and Steinke (2022), definition 1, of one run and of two.
    one = (1 - gamma) * (shape / (gamma**-shape - 1) if shape else -1 / math.log(gamma))
    two = one * (1 - gamma) * (1 + shape) / 2
    for probability, expected in ((one - 1e-9, 1), (one + 1e-9, 2),
                                  (one + two - 1e-9, 2), (one + two + 1e-9, 3)):  # fmt: skip
        monkeypatch.setattr(secrets, "randbits", lambda bits, p=probability: int(p * 2**bits))
        assert number.draw() == expected


@pytest.mark.parametrize(("mean", "shape"), [(8.0, 1.0), (8.0, 0.5), (1000.0, 0.0)])
def test_drawing_a_number_ends_where_its_sum_stays_below_1(monkeypatch, mean, shape):
    monkeypatch.setattr(secrets, "randbits", lambda bits: 2**bits - 1)
    assert mean < NumberOfRuns(mean, shape).draw() < 1000 * mean


def test_the_statement_is_that_of_dp_accounting_by_hand(small, runs):
    runs(2)
    trained = []
    score = lambda model: -float(np.abs(model.get_weights()[0]).sum())  # noqa: E731
    best = tune(trainer(small, trained, by=fit), score, NumberOfRuns(5.0, 0.5))
    assert len(trained) == 2 and best.model in trained
    assert best.score == max(map(score, trained))
    assert best.setting["learning_rate"] in RATES
    # Names go on after the model that is kept.
    assert keras.layers.Dense(1).name not in {layer.name for layer in best.model.model.layers}
    expected = by_hand(dp_event.RepeatAndSelectDpEvent(poisson(2.0, 0.25, 4), 5.0, 0.5))
    statement = best.model.privacy_statement(DELTA)
    assert statement.epsilon == pytest.approx(expected, rel=1e-6)
    assert statement.epsilon > 1.5 * by_hand(poisson(2.0, 0.25, 4))
    assert best.model.ledger.epsilon(DELTA) == statement.epsilon
    assert best.model.optimizer.epsilon(DELTA) == statement.epsilon
    assert any("the number of settings" in s for s in statement.not_covered)
    assert any("public data" in s for s in statement.assumptions)
    assert any("settings from `hp` alone" in s for s in statement.assumptions)
    assert any("other runs need no further assumptions" in s for s in statement.assumptions)
    assert statement.unit == "one example" and statement.num_examples == 40
    text = " ".join(str(statement).split())
    assert "the best of a random number of runs (5 on average, shape 0.5) of: 4 x Gaussian" in text


@pytest.mark.thorough
def test_a_score_on_private_records_is_a_part_of_every_run(small, runs):
    runs(2)
    x, y = small.data()
    values = lambda model: np.argmax(model(x), -1) == y  # noqa: E731
    score = PrivateMean(values, num_examples=40, noise_multiplier=10.0)
    best = tune(trainer(small), score, 5.0)
    run = dp_accounting.ComposedDpEvent(
        [poisson(2.0, 0.25, 4), dp_accounting.GaussianDpEvent(10.0)]
    )
    expected = by_hand(dp_event.RepeatAndSelectDpEvent(run, 5.0, 1.0))
    assert best.model.privacy_statement(DELTA).epsilon == pytest.approx(expected, rel=1e-6)
    assumptions = best.model.privacy_statement(DELTA).assumptions
    assert not any("public data" in s for s in assumptions)
    assert any("computed from its own record alone" in s for s in assumptions)
    assert any("settings from `hp` alone" in s for s in assumptions)


@pytest.mark.thorough
def test_steps_after_the_tuning_cost_more_and_files_keep_it(small, runs, tmp_path):
    runs(2)
    best = tune(trainer(small), lambda model: 0.0, 5.0)
    tuned = dp_event.RepeatAndSelectDpEvent(poisson(2.0, 0.25, 4), 5.0, 1.0)
    best.model.save(tmp_path / "m.keras")
    loaded = keras.models.load_model(tmp_path / "m.keras")
    assert loaded.ledger.epsilon(DELTA) == pytest.approx(by_hand(tuned), rel=1e-6)
    charged(best.model, small.poisson())
    expected = by_hand(tuned, poisson(2.0, 0.25, 4))
    assert best.model.privacy_statement(DELTA).epsilon == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("kind, left", [("poisson", 4), ("shuffled", 2)])
def test_steps_of_a_run_beyond_those_that_are_paid_for_cost(kind, left):
    """Poisson steps one by one; a pass over shuffled records that goes on costs anew."""
    if kind == "poisson":
        data = tfdp.data.poisson_batches((np.ones(40), np.ones(40)), 10)
    else:
        data = tfdp.data.shuffled_epochs((np.ones(40), np.ones(40)), 10)
    mechanism = PrivateTraining(2.0, 1.0, tfdp.data.sampling_of(data), 40)
    history = ChargeHistory()
    with runs_begun() as outer, runs_begun() as begun:
        name = history.start(mechanism)
    assert begun == outer == {name: history}
    history.count(name, 4)
    history.charge(LedgerEntry("best", dp_accounting.NoOpDpEvent(), 1, {"covers": {name: 4}}))
    assert [e.label for e in history.ledger().entries] == ["best"]
    copy = ChargeHistory()
    copy.merge_json(history.to_json())
    for one in (history, copy):
        one.count(name, 8)
        assert [(e.label, e.count) for e in one.ledger().entries][1:] == [
            ("private training", left)
        ]
    assert history.start(mechanism) not in begun


def test_what_was_charged_before_is_charged_once_beside_it(small, runs, tmp_path):
    runs(2)
    encoder = small.base()
    charged(small.model(encoder, noise_multiplier=4.0), small.poisson())
    encoder.save(tmp_path / "encoder.keras")

    def train(hp, encoder=None):
        if encoder is None:
            encoder = keras.models.load_model(tmp_path / "encoder.keras")
        encoder.trainable = False
        base = keras.Sequential([encoder, keras.layers.Dense(2)])
        return charged(small.model(base, noise_multiplier=2.0), small.poisson())

    best = tune(train, lambda model: 0.0, 5.0)
    expected = by_hand(
        poisson(4.0, 0.25, 4),
        dp_event.RepeatAndSelectDpEvent(poisson(2.0, 0.25, 4), 5.0, 1.0),
    )
    assert best.model.privacy_statement(DELTA).epsilon == pytest.approx(expected, rel=1e-6)
    with pytest.raises(PrivacyError, match="share layers"):
        tune(lambda hp: train(hp, encoder), lambda model: 0.0, 5.0)


@pytest.mark.thorough
def test_settings_of_different_costs_are_refused(small, runs):
    runs(2)
    sigmas = iter([2.0, 2.5])

    def train(hp):
        return trainer(small, noise_multiplier=next(sigmas))(hp)

    with pytest.raises(PrivacyError, match="`train` must cost the same"):
        tune(train, lambda model: 0.0)


PERSONS = np.arange(40) // 2


@pytest.mark.thorough
@pytest.mark.parametrize("differing", ["steps", "max_batch_size", "period"])
def test_runs_that_differ_in_one_part_of_their_cost_are_refused(small, runs, differing):
    runs(2)
    periods = tfdp.data.DisjointPeriods()
    settings = {
        "steps": [{}, {}],
        "max_batch_size": [{"max_batch_size": 24}, {"max_batch_size": 25}],
        "period": [{"period": periods.period("one")}, {"period": periods.period("two")}],
    }[differing]
    persons = [PERSONS, PERSONS + 20]
    steps = [4, 5] if differing == "steps" else [4, 4]
    left = iter(zip(settings, persons, steps, strict=True))

    def train(hp):
        setting, ids, number = next(left)
        if differing != "period":
            return charged(small.model(noise_multiplier=2.0), small.poisson(**setting), number)
        batches = small.poisson(batch=5, privacy_ids=ids, max_records_per_unit=2, **setting)
        model = small.model(
            noise_multiplier=2.0, num_examples=20, expected_batch_size=5, max_records_per_unit=2
        )
        return charged(model, batches, number)

    with pytest.raises(PrivacyError, match="`train` must cost the same"):
        tune(train, lambda model: 0.0)


@pytest.mark.thorough
@pytest.mark.parametrize("sigmas", [(0.05, 50.0), (50.0, 0.05)])
def test_scores_of_different_noise_are_refused(small, runs, sigmas):
    runs(2)
    x, y = small.data()
    values = lambda model: np.argmax(model(x), -1) == y  # noqa: E731
    score, left = PrivateMean(values, num_examples=40, noise_multiplier=10.0), iter(sigmas)

    def train(hp):
        score.noise_multiplier = next(left)
        return trainer(small)(hp)

    with pytest.raises(PrivacyError, match="`train` must cost the same"):
        tune(train, score, 5.0)


def test_a_score_leaves_the_weights_as_they_are(small, runs):
    runs(1)

    def score(model):
        model.set_weights([w + 1 for w in model.get_weights()])
        return 0.0

    with pytest.raises(PrivacyError, match="must not change the model's weights"):
        tune(trainer(small), score, 5.0)


def test_the_charge_says_what_one_run_was_about(small, runs):
    """Its unit and adjacency are those of the trainings; two tunings are two releases."""
    runs(1)
    of_records = tune(trainer(small), lambda model: 0.0, 5.0).entry
    assert of_records.details["unit"] == "one example" and of_records.adjacency is None
    entry = tune(of_persons(small), lambda model: 0.0, 5.0).entry
    assert entry.details["unit"] == "one person with all of its records"
    assert entry.details["release"] != of_records.details["release"]
    shuffled = tfdp.data.shuffled_epochs(small.data(), 10)
    best = tune(lambda hp: charged(small.model(), shuffled), lambda model: 0.0, 5.0)
    assert best.entry.adjacency == best.model.ledger.adjacency == "zero_out"


def test_a_score_that_goes_on_with_the_training_of_its_run_is_refused(small, runs):
    runs(1)

    def train(hp):
        model = small.model()
        model.optimizer.charging.begin(tfdp.data.sampling_of(small.poisson()))
        model.optimizer.charging.charge_step()
        return model

    def score(model):
        model.optimizer.charging.charge_step()
        return 0.0

    with pytest.raises(PrivacyError, match="must not train"):
        tune(train, score)


@pytest.mark.thorough
@pytest.mark.parametrize("is_charged", [True, False])
def test_a_release_made_inside_of_the_runs_is_refused(small, runs, is_charged):
    """Also where a model holds it that nobody has asked for its charges since."""
    runs(2)

    def train(hp):
        model = trainer(small)(hp)
        release = tfdp.data.private_frequency(
            (np.ones((40, 2), int), np.ones((40, 2), int)), epsilon=1.0, num_items=3
        )
        if is_charged:
            model.charge_history.charge(release.entry)
        else:
            model.privacy_releases = release.privacy_releases
        return model

    with pytest.raises(PrivacyError, match="from before the tuning"):
        tune(train, lambda model: 0.0)


def test_a_run_without_privacy_makes_the_tuning_infinite(small, runs):
    runs(1)

    def train(hp):
        model = small.model()
        model.compile("sgd", loss=small.loss)
        model.fit(*small.data(), verbose=0)
        return model

    best = tune(train, lambda model: 0.0)
    assert best.model.ledger.epsilon(DELTA) == math.inf
    with pytest.raises(PrivacyError, match="must return the model"):
        tune(lambda hp: keras.Sequential(), lambda model: 0.0)


def test_what_could_not_be_charged_is_refused(small, runs, tmp_path):
    """Training in another thread counts; before the tuning, or of another model, does not."""
    runs(2)
    train = trainer(small)
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        best = tune(lambda hp: threads.submit(train, hp).result(), lambda model: 0.0, 5.0)
    expected = by_hand(dp_event.RepeatAndSelectDpEvent(poisson(2.0, 0.25, 4), 5.0, 1.0))
    assert best.model.ledger.epsilon(DELTA) == pytest.approx(expected, rel=1e-6)
    for i in range(2):
        train(HyperParameters()).save(tmp_path / f"{i}.keras")
    files = iter(["0.keras", "1.keras"])

    def load(hp):
        return keras.models.load_model(tmp_path / next(files))

    def two(hp):
        models = [train(hp), train(hp)]
        return models[1]

    def with_another_encoder(hp):
        encoder = load(hp).model
        encoder.trainable = False
        base = keras.Sequential([encoder, keras.layers.Dense(2)])
        return charged(small.model(base, noise_multiplier=2.0), small.poisson())

    def with_an_unnamed_release(hp):
        model = train(hp)
        model.charge_history.charge(LedgerEntry("mine", dp_accounting.GaussianDpEvent(1.0)))
        return model

    for wrong, match in (
        (load, "0 training runs of its own"),
        (two, "and 1 of other models"),
        (with_an_unnamed_release, "releases .'mine'."),
    ):
        with pytest.raises(PrivacyError, match=match):
            tune(wrong, lambda model: 0.0)
    files = iter(["0.keras", "1.keras"])
    with pytest.raises(PrivacyError, match="cost the same"):
        tune(with_another_encoder, lambda model: 0.0)


def test_a_private_mean_counts_wherever_it_is_called(small, runs):
    runs(1)
    score = PrivateMean(lambda model: np.ones(40), num_examples=40, noise_multiplier=1.0)
    with pytest.raises(PrivacyError, match="must be the PrivateMean itself"):
        tune(trainer(small), lambda model: -score(model))
    with pytest.raises(PrivacyError, match="must not train"):
        tune(trainer(small), lambda model: len(charged(model, small.poisson()).weights))
    train = trainer(small)

    def looks(hp):
        model = train(hp)
        score(model)
        return model

    with pytest.raises(PrivacyError, match="it called a PrivateMean"):
        tune(looks, score)


@pytest.mark.thorough
def test_batches_that_were_cut_off_cost_delta_in_every_run(small, runs):
    runs(1)

    def train(hp):
        return charged(small.model(noise_multiplier=2.0), small.poisson(max_batch_size=24))

    best = tune(train, lambda model: 0.0, 5.0)
    (one,) = best.model.charge_history.ledger_of(*best.entry.details["covers"]).entries
    assert one.overflow_probability > 0
    expected = 5.0 * one.count * one.overflow_probability
    assert best.entry.overflow_probability == pytest.approx(expected)
    assert best.model.privacy_statement(DELTA).overflow_delta > 0


@pytest.mark.thorough
def test_a_score_that_is_no_number_never_wins(small, runs):
    runs(3)
    scores = iter([math.nan, 1.0, math.nan])
    assert tune(trainer(small), lambda model: next(scores)).score == 1.0


def test_the_noise_of_a_private_mean_is_what_is_charged(monkeypatch):
    """One call releases one sum; here it releases as many copies of it as there are draws."""
    score = PrivateMean(lambda m: np.array([5.0, -1.0, np.nan, 0.5]), num_examples=4,
                        noise_multiplier=3.0, bound=2.0)  # fmt: skip
    release, copies = NoiseSource.release, 20_000
    found = []

    def of_copies(self, tensors, *args, **kwargs):
        (sums,) = tensors
        assert sums.shape == (1,)
        found.extend(release(self, [tf.repeat(sums, copies)], *args, **kwargs))
        return [found[-1][:1]]

    monkeypatch.setattr(NoiseSource, "release", of_copies)
    results = [score(None), score(None)]
    draws = np.concatenate(found) / 4
    assert results == [draws[0], draws[copies]] and results[0] != results[1]
    stddev = 3.0 * 2.0 / 4
    # Five standard errors each: a false alarm in less than 1 of 1e5 runs.
    assert abs(draws.mean() - (2.0 + 0.5) / 4) < 5 * stddev / math.sqrt(len(draws))
    assert abs(draws.std() / stddev - 1) < 5 / math.sqrt(2 * len(draws))
    assert len(np.unique(draws)) > 0.99 * len(draws)
    assert score.event == dp_accounting.GaussianDpEvent(3.0)


@pytest.mark.thorough_after(1)
@pytest.mark.parametrize("ids, unit", [(None, None), (["a", "a", "b", "c"], PERSON)])
def test_a_private_mean_outside_of_a_tuning_run_carries_its_charge(small, ids, unit):
    """Each call is a release of its own; a model that is trained on what is made of it pays."""
    score = PrivateMean(lambda m: np.ones(len(ids or range(40))), num_examples=3 if ids else 40,
                        noise_multiplier=3.0, privacy_ids=ids)  # fmt: skip
    first, second = score(None), score(None)
    entries = [*Origin.of(first).releases, *Origin.of(np.full(3, 2.0) * second).releases]
    assert [entry.event for entry in entries] == [dp_accounting.GaussianDpEvent(3.0)] * 2
    assert entries[0] != entries[1]
    assert [entry.details.get("unit") for entry in entries] == [unit] * 2
    if ids is None:
        model, (x, y) = small.model(noise_multiplier=2.0), small.data()
        model.fit(small.poisson((x * first, y)), verbose=0)
        accountant = dp_accounting.pld.PLDAccountant()
        accountant.compose(poisson(2.0, 0.25, 4)).compose(dp_accounting.GaussianDpEvent(3.0))
        found = model.ledger.epsilon(DELTA)
        assert found == pytest.approx(accountant.get_epsilon(DELTA), rel=1e-3)


def test_scores_that_are_not_finite_count_as_zero(monkeypatch):
    """And no mean of a person's scores exceeds the bound, not even by rounding."""
    seen = []
    monkeypatch.setattr(
        NoiseSource, "release", lambda self, sums, *args, **kwargs: seen.extend(sums) or sums
    )
    values = lambda model: np.array([np.inf, -np.inf, np.nan, 0.5, 9.0])  # noqa: E731
    score = PrivateMean(values, num_examples=5, noise_multiplier=1.0, bound=2.0)
    assert score(None) == (0.5 + 2.0) / 5
    assert (0.1 + 0.1 + 0.1) / 3 > 0.1
    ids = {"privacy_ids": ["a"] * 3}
    PrivateMean(lambda m: [0.1] * 3, num_examples=1, noise_multiplier=1, bound=0.1, **ids)(None)
    assert float(seen[-1][0]) == 0.1


def test_settings_are_drawn_uniformly_and_once():
    hp = HyperParameters()
    assert hp.Int("a", 1, 9, step=4) == hp.get("a") == hp.Int("a", 1, 9, step=4)
    drawn = [HyperParameters().Int("a", 1, 9, step=4) for _ in range(3000)]
    assert set(drawn) == {1, 5, 9}
    # chi2(2) exceeds 25 with probability 4e-6
    assert sum((drawn.count(v) - 1000) ** 2 / 1000 for v in (1, 5, 9)) < 25
    logs = [math.log10(HyperParameters().Float("f", 1e-4, 1e-2, "log")) for _ in range(3000)]
    assert min(logs) >= -4 - 1e-9 and max(logs) <= -2 + 1e-9
    assert abs(np.mean(logs) + 3) < 5 * (2 / math.sqrt(12)) / math.sqrt(3000)
    assert HyperParameters().Boolean("b") in (False, True)
    assert HyperParameters().Fixed("c", 3) == 3


@pytest.mark.parametrize(
    "call, named",
    [
        (lambda: NumberOfRuns(0.5), "mean"),
        (lambda: NumberOfRuns(math.inf), "mean"),
        (lambda: NumberOfRuns(True), "mean"),
        (lambda: NumberOfRuns(3, -1), "shape"),
        (lambda: PrivateMean(3, num_examples=1, noise_multiplier=1), "values"),
        (lambda: PrivateMean(len, num_examples=0, noise_multiplier=1), "num_examples"),
        (lambda: PrivateMean(len, num_examples=1, noise_multiplier=0), "noise_multiplier"),
        (lambda: PrivateMean(len, num_examples=1, noise_multiplier=1, bound=0), "bound"),
        (lambda: PrivateMean(lambda m: [[1]], num_examples=1, noise_multiplier=1)(0), "values"),
        (lambda: PrivateMean(lambda m: [1, 1], num_examples=1, noise_multiplier=1)(0), "values"),
        (lambda: HyperParameters().Choice("a", []), "values"),
        (lambda: HyperParameters().Float("a", 2, 1), "min_value"),
        (lambda: HyperParameters().Float("a", 0, 1, "log"), "min_value"),
        (lambda: HyperParameters().Float("a", 0, 1, "cube"), "sampling"),
        (lambda: HyperParameters().Int("a", 0.5, 1), "min_value"),
        (lambda: tune(3, len), "train"),
        (lambda: tune(len, 3), "score"),
        (lambda: tune(len, len, 0), "mean"),
    ],
)
def test_bad_arguments_are_named(call, named):
    with pytest.raises(ValueError, match=f"`{named}`"):
        call()


def of_persons(small, k=2):
    def train(hp):
        batches = small.poisson(batch=5, privacy_ids=PERSONS, max_records_per_unit=k)
        model = small.model(
            inner=keras.optimizers.SGD(hp.Choice("learning_rate", RATES)), noise_multiplier=2.0,
            num_examples=20, expected_batch_size=5, max_records_per_unit=k,
        )  # fmt: skip
        return charged(model, batches)

    return train


def test_persons_are_the_unit_of_trainings_and_score_or_of_neither(small, runs):
    runs(2)
    values = lambda model: np.ones(40)  # noqa: E731
    of_records = PrivateMean(values, num_examples=40, noise_multiplier=10.0)
    scored = PrivateMean(values, num_examples=20, noise_multiplier=10.0, privacy_ids=PERSONS)
    with pytest.raises(PrivacyError, match="same unit"):
        tune(of_persons(small), of_records)
    with pytest.raises(PrivacyError, match="same unit"):
        tune(trainer(small), scored)
    best = tune(of_persons(small), scored)
    statement = best.model.privacy_statement(delta=DELTA)
    assert statement.unit == "one person with all of its records" and np.isfinite(statement.epsilon)
    mixed = iter([of_persons(small), trainer(small, num_examples=40, expected_batch_size=10)])
    with pytest.raises(PrivacyError, match="must cost the same"):
        tune(lambda hp: next(mixed)(hp), lambda model: 0.0)


def test_a_person_counts_with_the_mean_score_of_its_records():
    ids = ["a", "b", "b", "b"]
    score = PrivateMean(
        lambda model: np.array([1.0, 0.0, 1.0, 7.0]), num_examples=2, noise_multiplier=1e-6,
        bound=1.0, privacy_ids=ids,
    )  # fmt: skip
    assert score(None) == pytest.approx((1 + 2 / 3) / 2, abs=1e-4)
    with pytest.raises(ValueError, match="num_examples"):
        PrivateMean(len, num_examples=4, noise_multiplier=1, privacy_ids=ids)
    with pytest.raises(ValueError, match="one score for each record"):
        PrivateMean(lambda m: np.ones(3), num_examples=2, noise_multiplier=1, privacy_ids=ids)(0)


@pytest.mark.thorough
@pytest.mark.parametrize("is_private", [True, False])
def test_what_a_score_was_made_with_is_charged_once_beside_it(small, runs, is_private):
    runs(2)

    def released():
        return tfdp.data.release_once(np.ones((40, 1)), np.zeros(40), 1.0, 6.0).features[:, 0]

    def scored(weights):
        if not is_private:
            return lambda model: np.mean(weights())
        return PrivateMean(lambda model: weights(), num_examples=40, noise_multiplier=10.0)

    weights = released()
    best = tune(trainer(small), scored(lambda: weights), 5.0)
    one_run, of_score = poisson(2.0, 0.25, 4), dp_accounting.GaussianDpEvent(10.0)
    if is_private:
        one_run = dp_accounting.ComposedDpEvent([one_run, of_score])
    tuned = dp_event.RepeatAndSelectDpEvent(one_run, 5.0, 1.0)
    expected = by_hand(tuned, dp_accounting.GaussianDpEvent(6.0))
    assert best.model.ledger.epsilon(DELTA) == pytest.approx(expected, rel=1e-6)
    if is_private:
        _, *before = Origin.of(scored(lambda: weights)(None)).releases  # the first is the mean's
        assert before == list(weights.origin.releases)
    with pytest.raises(PrivacyError, match="must cost the same"):
        tune(trainer(small), scored(released), 5.0)


def test_many_runs_of_a_narrow_distribution_are_drawn():
    # f(1) is e^-811 there: of runs of mean 1,000 and standard deviation 39, false alarm 1e-6.
    number = NumberOfRuns(mean=1000, shape=2000)
    drawn = np.array([number.draw() for _ in range(400)])
    deviation = np.sqrt(1000 / number.gamma)
    assert abs(np.mean(drawn) - 1000) < 4.9 * deviation / 20
    assert 0.8 * deviation < np.std(drawn) < 1.2 * deviation
