"""Click statistics: exact sums, the noise that is charged, and odds that know what noise is."""

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

import tfdp
from tfdp.accounting.charges.sampling import PERSON
from tfdp.data.releases import click_statistics
from tfdp.data.releases.click_odds import shrunken_log_odds
from tfdp.data.releases.click_statistics import private_click_statistics, value_of_count
from tfdp.noise import NoiseSource

SIZES = {"a": 5, "b": 300}
K = 4  # with two counts


def clicks(n=400, seed=0):
    rng = np.random.default_rng(seed)
    x = {name: rng.integers(0, size, n) for name, size in SIZES.items()}
    x["integers"] = rng.integers(-1, 50, (n, 2)).astype(np.float32)
    return x, rng.integers(0, 2, (n, 1)).astype(np.float32)


@pytest.fixture
def sums(monkeypatch):
    """What was to be released: sums, standard deviations, and how many sums one unit moves."""
    seen = []

    def noisy(values, stddev, moved, largest):
        assert np.abs(values).max() <= largest
        seen.append((values, stddev, moved))
        return values

    monkeypatch.setattr(click_statistics, "_noisy", noisy)
    return seen


def test_sums_are_those_of_the_records(sums):
    x, y = clicks()
    found = private_click_statistics((x, y), SIZES, noise_multiplier=1.0)
    assert list(found.shows) == ["a", "b", "integers_0", "integers_1"]
    columns = {"a": x["a"], "b": x["b"]}
    columns |= {f"integers_{j}": value_of_count(x["integers"][:, j]).numpy() for j in range(2)}
    for name, ids in columns.items():
        size = len(found.shows[name])
        np.testing.assert_array_equal(found.shows[name], np.bincount(ids, minlength=size))
        clicked = np.bincount(ids, y[:, 0], minlength=size)
        np.testing.assert_array_equal(found.clicks[name], clicked)


def test_a_record_moves_the_sums_by_what_is_charged(sums):
    x, y = clicks()
    for i in (0, 17, 399):
        kept = np.arange(400) != i
        private_click_statistics((x, y), SIZES, noise_multiplier=3.0)
        less = {name: values[kept] for name, values in x.items()}
        private_click_statistics((less, y[kept]), SIZES, noise_multiplier=3.0)
        (whole, stddev, moved), (rest, _, _) = sums[-2:]
        assert np.count_nonzero(whole - rest) == moved == 2 * K
        norm = np.linalg.norm(whole - rest)
        assert norm == (2 * K) ** 0.5 and stddev == pytest.approx(3.0 * norm, rel=1e-12)


@pytest.mark.parametrize("k", [1, 3])
def test_a_person_moves_the_sums_by_no_more_than_what_is_charged(sums, k):
    x, y = clicks()
    alike = np.arange(400) < 10  # one person with ten records, all the same
    x = {name: np.where(alike.reshape(-1, *[1] * (v.ndim - 1)), v[:1], v) for name, v in x.items()}
    y[alike] = 1.0
    ids = np.where(alike, 0, np.arange(400))
    settings = {"noise_multiplier": 2.0, "max_records_per_unit": k}
    found = private_click_statistics((x, y), SIZES, privacy_ids=ids, **settings)
    less = {name: values[~alike] for name, values in x.items()}
    private_click_statistics((less, y[~alike]), SIZES, privacy_ids=ids[~alike], **settings)
    (whole, stddev, moved), (rest, _, _) = sums[-2:]
    assert moved == 2 * k * K  # if its records are not alike
    assert whole[0].sum() == (390 + k) * K  # the others have one record each
    assert np.linalg.norm(whole - rest) == pytest.approx(k * (2 * K) ** 0.5)
    assert stddev == pytest.approx(2.0 * k * (2 * K) ** 0.5)
    assert found.num_examples == 391 and found.details["unit"] == PERSON
    assert found.details["max_records_per_unit"] == k


def test_the_largest_sum_is_that_of_all_records_of_all_persons(sums):
    x = {"a": np.zeros(12, int)}  # of four persons, all alike
    persons = {"privacy_ids": np.repeat(np.arange(4), 3), "max_records_per_unit": 3}
    private_click_statistics((x, np.ones(12)), {"a": 5}, noise_multiplier=1.0, **persons)
    assert sums[0][0].max() == 12  # the fixture compares it with what is said of it


def test_how_many_records_persons_have_is_not_used(monkeypatch):
    used, true = [], click_statistics.shrunken_log_odds

    def watched(shows, balances, stddev, num_records):
        used.append(num_records)
        return true(shows, balances, stddev, num_records)

    monkeypatch.setattr(click_statistics, "shrunken_log_odds", watched)
    ids = np.repeat(np.arange(200), 2)
    for settings in ({}, {"max_records_per_unit": 1}, {"max_records_per_unit": 2}):
        persons = {"privacy_ids": ids} if settings else {}
        private_click_statistics(clicks(), SIZES, noise_multiplier=1.0, **persons, **settings)
    assert used == [400, 200, None]  # the numbers of records and of persons are public


@pytest.mark.thorough
def test_noise_is_gaussian_everywhere_and_new_each_time():
    x, y = clicks()
    sizes = {"a": 5, "b": 20_000}
    found = [private_click_statistics((x, y), sizes, noise_multiplier=2.0) for _ in range(2)]
    (shows, again), stddev = [f.shows["b"] for f in found], found[0].details["noise_stddev"]
    assert stddev == pytest.approx(2.0 * (2 * K) ** 0.5)
    noise = shows - np.bincount(x["b"], minlength=20_000)
    balance = 2 * found[0].clicks["b"] - shows
    signs = np.bincount(x["b"], 2 * y[:, 0] - 1, minlength=20_000)
    # Each test has a false alarm in 1e-6 of runs.
    for sample in (noise, balance - signs, (shows - again) / 2**0.5):
        assert scipy.stats.kstest(sample / stddev, "norm").pvalue > 1e-6
    assert abs(np.corrcoef(noise, balance - signs)[0, 1]) < 5 / 20_000**0.5
    assert found[0].entry != found[1].entry


@pytest.mark.parametrize("delta", [1e-4, 1e-9])  # where the accountant rounds up more
def test_the_guarantee_is_the_one_asked_for(delta):
    found = private_click_statistics(clicks(), SIZES, epsilon=2.0, delta=delta)
    assert 1.999 < tfdp.accounting.epsilon(found.event, delta) <= 2.0
    sigma = found.event.noise_multiplier
    assert found.details["noise_stddev"] == pytest.approx(sigma * (2 * K) ** 0.5)


@pytest.mark.thorough
def test_hardly_any_noise_is_asked_for_by_a_large_epsilon():
    """Privacy losses of 10,000 are too many numbers for a distribution of losses."""
    found = private_click_statistics(clicks(), SIZES, epsilon=1e4, delta=1e-6)
    stated = tfdp.accounting.epsilon(found.event, 1e-6, accountant="rdp")
    assert 9e3 < stated <= 1e4 and found.event.noise_multiplier < 0.01


def test_counts_have_values_by_their_logarithm():
    counts = [np.nan, -3.0, 0.0, 0.5, 1.0, 10.0, 1e30, np.inf]
    assert value_of_count(counts).numpy().tolist() == [0, 0, 0, 1, 2, 5, 39, 39]


def test_without_noise_odds_are_those_of_the_rates():
    shows = {"f": np.array([1e9, 1e9, 2e9, 0.0])}
    rates = np.array([0.1, 0.3, 0.2, 0.2])
    balances = {"f": shows["f"] * (2 * rates - 1)}
    odds, rate = shrunken_log_odds(shows, balances, 0.0)
    assert rate == pytest.approx(0.2)
    expected = np.log(rates / (1 - rates)) - np.log(0.2 / 0.8)
    np.testing.assert_allclose(odds["f"], expected, atol=1e-4)


def test_odds_are_shrunk_by_noise_and_nothing_is_made_of_noise_alone():
    rng = np.random.default_rng(1)
    stddev, shows = 30.0, np.concatenate([np.full(200, 300.0), np.zeros(5000)])
    rates = np.clip(0.25 + 0.1 * rng.normal(size=200), 0.02, 0.9)
    balances = np.concatenate([shows[:200] * (2 * rates - 1), np.zeros(5000)])
    noisy = [values + stddev * rng.normal(size=5200) for values in (shows, balances)]
    odds, _ = shrunken_log_odds({"f": noisy[0]}, {"f": noisy[1]}, stddev)
    raw = np.clip((noisy[1] / noisy[0] + 1) / 2, 0.01, 0.95)[:200]
    true = np.log(rates / (1 - rates)) - np.log(0.25 / 0.75)
    errors = odds["f"][:200] - true, np.log(raw / (1 - raw)) - np.log(0.25 / 0.75) - true
    assert np.mean(errors[0] ** 2) < 0.8 * np.mean(errors[1] ** 2)
    # Of 5,000 values that nobody has, 2.3% exceed two standard deviations.
    assert np.mean(odds["f"][200:] != 0) < 0.04


def test_a_record_is_in_one_period():
    periods = tfdp.data.DisjointPeriods()
    ids = np.arange(400)
    found = private_click_statistics(
        clicks(), SIZES, noise_multiplier=1.0, privacy_ids=ids, max_records_per_unit=1,
        period=periods.period("june"),
    )  # fmt: skip
    assert found.details["period"][-1] == "june"


GOOD = clicks()


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"train": GOOD[0]}, "must be a pair"),
        ({"vocabulary_sizes": [5]}, "must be a pair"),
        ({"train": (GOOD[0], GOOD[1] + 1)}, "labels that are 0 or 1"),
        ({"train": (GOOD[0], GOOD[1] * 0.5)}, "labels that are 0 or 1"),
        ({"vocabulary_sizes": {"a": 4}}, "ids of feature 'a' from 0 to 3"),
        ({"train": (GOOD[0] | {"a": GOOD[0]["a"] - 1}, GOOD[1])}, "feature 'a' from 0 to 4"),
        ({"vocabulary_sizes": {"a": 5.5}}, "vocabulary_sizes"),
        ({"vocabulary_sizes": {"z": 5}}, "no such feature"),
        ({"train": ({"a": GOOD[0]["a"] * 1.0}, GOOD[1])}, "integer ids"),
        ({"train": ({"a": GOOD[0]["a"][:9]}, GOOD[1])}, "integer ids"),
        ({"train": ({"a": np.zeros((400, 2), int)}, GOOD[1])}, "integer ids"),
        ({"train": (GOOD[0] | {"integers": np.zeros(400)}, GOOD[1])}, "of shape"),
        ({"train": (GOOD[0] | {"integers": np.zeros((399, 1))}, GOOD[1])}, "numbers of shape"),
        ({"train": (GOOD[0], [None] * 400)}, "one label"),
        ({"train": (GOOD[0], np.ones((400, 2)))}, "one label"),
        ({"train": (GOOD[0] | {"integers": np.full((400, 1), "3")}, GOOD[1])}, "numbers of shape"),
        ({"train": ({}, GOOD[1]), "vocabulary_sizes": {}}, "at least one feature"),
        ({"epsilon": 1.0}, "Exactly one"),
        ({"noise_multiplier": 0.0}, "noise_multiplier"),
        ({"delta": 1e-5}, "delta"),
        ({"max_records_per_unit": 2}, "privacy_ids"),
    ],
)
def test_bad_arguments_are_named(changes, message):
    settings = {"train": GOOD, "vocabulary_sizes": {"a": 5}, "noise_multiplier": 1.0} | changes
    with pytest.raises(ValueError, match=message):
        private_click_statistics(**settings)


def test_a_feature_cannot_take_the_name_of_a_count():
    for name in ("integers_0", 3):
        x = GOOD[0] | {name: GOOD[0]["a"]}
        with pytest.raises(ValueError, match="do not begin with"):
            private_click_statistics((x, GOOD[1]), {name: 5}, noise_multiplier=1.0)


def test_what_the_records_were_made_with_is_charged_too():
    frequent = tfdp.accounting.LedgerEntry("made before", found_event(), 1, {})
    origin = tfdp.data.provenance.origins.Origin((frequent,), ("that is public",))
    x = GOOD[0] | {"a": tfdp.data.provenance.origins.OriginArray.of(GOOD[0]["a"], origin)}
    found = private_click_statistics((x, GOOD[1]), SIZES, noise_multiplier=1.0)
    assert found.privacy_releases == [frequent, found.entry]
    assert found.privacy_assumptions == ["that is public"]


def found_event():
    return private_click_statistics(GOOD, {"a": 5}, noise_multiplier=5.0).event


def test_noise_does_not_depend_on_tensorflows_seed():
    tf.random.set_seed(1)
    first = private_click_statistics(GOOD, SIZES, noise_multiplier=1.0)
    tf.random.set_seed(1)
    second = private_click_statistics(GOOD, SIZES, noise_multiplier=1.0)
    assert (first.shows["b"] != second.shows["b"]).all()


@pytest.mark.thorough
def test_large_sums_are_not_cut():
    # 2^20 values that nobody has must not make the grid of those that all have too fine.
    n = 1_500_000
    x = {"large": np.zeros(n, np.int64), "small": np.zeros(n, np.int64)}
    found = private_click_statistics(
        (x, np.arange(n) % 4 == 0), {"large": 2**20, "small": 2}, noise_multiplier=1.0
    )
    assert found.shows["small"][0] == pytest.approx(n, abs=50)
    assert found.clicks["large"][0] == pytest.approx(n / 4, abs=50)


@pytest.mark.thorough
@pytest.mark.parametrize("largest", [1, 10**6, 10**9, 10**12, 2**50])
@pytest.mark.parametrize("moved", [1, 78, 10**6])
def test_no_count_is_cut_or_rounded(largest, moved):
    grid = tfdp.noise.grid_of_counts(1.0, moved, largest)
    assert 2.0**51 * float(grid.step) >= largest and float(grid.step) <= 1.0
    assert 1.0 <= float(grid.stddev) < 1.0 + 2.0**-19
    if largest == 1:  # as fine as for other releases
        assert float(grid.step) <= 2.0**-20 / moved**0.5
    counts = tf.constant([largest, -largest, largest // 3], tf.float64)
    (found,) = NoiseSource().release([counts], grid, dtype=tf.float64)
    assert np.abs(found - counts).max() < 20  # of three draws, at most 12 standard deviations


def test_counts_that_no_grid_holds_are_refused():
    """From 2⁵¹ on, the grid would have even numbers alone, to which an odd count is rounded."""
    for stddev, largest in ((1.0, 2**53), (1.0, 2**51), (1e14, 1)):
        with pytest.raises(ValueError, match="too large for an exact release"):
            tfdp.noise.grid_of_counts(stddev, 10, largest)


def test_features_that_are_made_of_the_numbers_bring_their_charge():
    found = private_click_statistics(GOOD, SIZES, noise_multiplier=1.0)
    feature = found.log_odds["a"][GOOD[0]["a"]]
    batches = tfdp.data.poisson_batches(({"z": feature}, GOOD[1]), 20)
    assert found.entry in tfdp.data.provenance.origins.Origin.of(batches).releases
