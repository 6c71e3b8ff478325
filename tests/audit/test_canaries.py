"""Canaries through the data path of whole runs: below the claim, and above it where it is false.

1,000 canaries and 100 guesses: a claim of 2.4 to 2.5 is refuted by 97 or 98 right guesses. Of the
best guesses about the library as it is, 69% (AdaFEST), 80% (FEST) and 72% (mixtures) are right, so
that a true claim is refuted once in two million runs (FEST; the others never), where the theorem
alone promises once in twenty. Of a broken trainer that shows who was in, all guesses are right if
at least 100 of about 500 canaries that are in show: a miss has a probability below 1e-12. Without
clipping the canaries stand out from noise that is there: a miss takes three wrong guesses, and of
400 simulated runs none had one.
"""

import json

import dp_accounting
import keras
import numpy as np
import pytest
import tensorflow as tf
from dp_accounting.pld import PLDAccountant
from scipy import special, stats

from tfdp import audit, cli
from tfdp.audit import chain_games, mixture_canaries, row_canaries
from tfdp.audit.bounds import epsilon_of_guesses
from tfdp.data.releases import representations
from tfdp.noise import ChainSource, NoiseSource
from tfdp.optimizers import logical_step
from tfdp.selection import top_k
from tfdp.selection.contribution_map import ContributionMap

CANARIES = 1000


def steps(noise_multiplier, sampling_probability, count):
    gaussian = dp_accounting.GaussianDpEvent(noise_multiplier)
    step = dp_accounting.PoissonSampledDpEvent(sampling_probability, gaussian)
    return dp_accounting.SelfComposedDpEvent(step, count)


#: What each of the runs does to the data, once more by hand.
EVENTS = {
    "canary rows, AdaFEST": steps(2.0, 0.5, 4),
    "canary rows, FEST": dp_accounting.ComposedDpEvent(
        [steps(3.0, 0.5, 4), dp_accounting.LaplaceDpEvent(1.0)]
    ),
    "canaries in mixtures": steps(2.0, 0.25, 16),
    "canaries in a stream": dp_accounting.GaussianDpEvent(2.0),
}


def watched(monkeypatch, name):
    """Plays the canaries; returns the result, and a dict: who was in, scores, counts of FEST."""
    seen = {}

    def one_run(train, score, *others):
        def training(included):
            seen["included"] = included
            return train(included)

        def scoring(model):
            seen["scores"] = score(model)
            return seen["scores"]

        return audit.one_run(training, scoring, *others)

    def noisy(counts, *others):
        seen["counts"] = counts
        return drawn(counts, *others)

    drawn = top_k._noisy
    monkeypatch.setattr(top_k, "_noisy", noisy)
    for module in (row_canaries, mixture_canaries, chain_games):
        monkeypatch.setattr(module, "one_run", one_run)
    return audit.play(name, CANARIES), seen


@pytest.mark.thorough_after(2)
@pytest.mark.parametrize("name", list(audit.CANARIES))
def test_canaries_stay_below_the_claim_and_score_what_they_should(monkeypatch, name):
    result, seen = watched(monkeypatch, name)
    included, scores = seen["included"], seen["scores"]
    assert result.name == name and result.trials == CANARIES and result.delta == 1e-5
    assert result.holds
    if name == "canary rows, FEST":  # who is out is padding, which nobody counts
        np.testing.assert_array_equal(seen["counts"][-CANARIES:], included)
        assert seen["counts"][0] == 0 and seen["counts"].sum() == CANARIES + included.sum()

    accountant = PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    by_hand = accountant.compose(EVENTS[name]).get_epsilon(1e-5)
    assert result.claim == pytest.approx(by_hand, rel=2e-3)

    # Scores are log likelihood ratios: a canary is in with probability sigmoid(score), exactly so
    # where canaries are independent. Each sum is beyond 5 deviations once in 2e6 runs. FEST
    # chooses a fixed number of rows: the threshold moves a little with who is in.
    likely = special.expit(scores)
    for weight in (np.ones(CANARIES), scores):
        spread = np.sqrt(((weight**2) * likely * (1 - likely)).sum())
        assert abs((weight * (included - likely)).sum()) < 5 * spread
    assert scores.std() > 0.25  # what is constant is in order, too, and says nothing


@pytest.mark.thorough
def test_scores_of_mixtures_are_those_of_their_densities(monkeypatch):
    score = {}
    monkeypatch.setattr(
        mixture_canaries, "one_run", lambda *a: score.update(train=a[0], score=a[1])
    )
    audit.play("canaries in mixtures", 40)
    release = score["train"](np.arange(40) % 2 == 0)
    stddevs = release.details["feature_stddev"], release.details["label_stddev"]
    q = release.details["expected_size"] / release.num_examples

    def log_density(i, mean):
        parts = release.features[:, i], release.targets[:, i]
        return sum(stats.norm.logpdf(p, mean, s) for p, s in zip(parts, stddevs, strict=True))

    for i, found in enumerate(score["score"](release)):
        ratio = np.log(1 - q + q * np.exp(log_density(i, 1.0) - log_density(i, 0.0)))
        assert found == pytest.approx(ratio.sum(), rel=1e-5, abs=1e-5)


def test_rows_of_canaries_are_chosen_by_fest_as_often_as_their_score_says():
    generator = np.random.default_rng(0)
    counts = np.repeat([1.0, 0.0], 200_000)
    noisy = counts + generator.laplace(size=len(counts))
    chosen = noisy >= np.quantile(noisy, 0.75)
    # 5 deviations of a share of 200,000 are 0.005.
    expected = chosen[counts == 1].mean(), chosen[counts == 0].mean()
    assert row_canaries._chosen_by_fest(1.0) == pytest.approx(expected, abs=0.005)


def noised_only_where_touched(monkeypatch):
    true = logical_step.release_rows

    def release_rows(sums, grid, source):
        noisy = true(sums, grid, source)
        touched = [tf.reduce_any(s != 0, axis=1, keepdims=True) for s in sums]
        return [tf.where(t, n, s) for t, n, s in zip(touched, noisy, sums, strict=True)]

    monkeypatch.setattr(logical_step, "release_rows", release_rows)


def map_without_noise(monkeypatch):
    true = ContributionMap.survivors
    monkeypatch.setattr(
        ContributionMap, "survivors",
        lambda self, threshold, noise_multiplier, source: true(self, threshold, 1e-9, source),
    )  # fmt: skip


def choice_without_noise(monkeypatch):
    monkeypatch.setattr(top_k, "_noisy", lambda counts, *others: counts)


def mixtures_without_noise(monkeypatch):
    monkeypatch.setattr(
        NoiseSource, "release", lambda self, tensors, *a, **k: [tf.identity(t) for t in tensors]
    )


def mixtures_without_clipping(monkeypatch):
    monkeypatch.setattr(representations, "_clipped", lambda h, clip_norm: h.astype(np.float64))


def steps_of_a_chain_draw_alike(monkeypatch):
    true = ChainSource._next
    monkeypatch.setattr(
        ChainSource, "_next", lambda self: (tf.constant(3, tf.int64), true(self)[1])
    )


@pytest.mark.parametrize(
    "broken, name",
    [
        (noised_only_where_touched, "canary rows, AdaFEST"),
        (map_without_noise, "canary rows, AdaFEST"),
        (choice_without_noise, "canary rows, FEST"),
        (mixtures_without_noise, "canaries in mixtures"),
        (mixtures_without_clipping, "canaries in mixtures"),
        (steps_of_a_chain_draw_alike, "canaries in a stream"),
    ],
)
def test_trainers_that_show_who_was_in_are_refuted(monkeypatch, broken, name):
    broken(monkeypatch)
    assert not audit.play(name, CANARIES).holds


@pytest.mark.thorough
def test_the_command_plays_canaries_at_a_delta_of_their_own(tmp_path, capsys):
    out = tmp_path / "audit.json"
    arguments = ["audit", "--trials", "300", "--mechanism", "forward noise", "canaries in mixtures"]
    assert cli.main([*arguments, "--canary-delta", "1e-6", "--json", str(out)]) == 0
    game, canaries = json.loads(out.read_text())
    assert (game["delta"], canaries["delta"]) == (1e-3, 1e-6) and canaries["trials"] == 300
    shown = capsys.readouterr().out
    assert "0.001" in shown and "1e-06" in shown


class Seen:
    """A "release" that shows the coins."""

    def __init__(self, included):
        self.included = included

    def privacy_statement(self, delta):
        return type("Statement", (), {"epsilon": 1.0})


@pytest.mark.parametrize("guesses, counted", [((40, 0), 40), ((0, 30), 30), ((7, 5), 12)])
def test_guesses_of_either_kind_are_those_asked_for(guesses, counted):
    result = audit.one_run(Seen, lambda seen: seen.included, 400, 1e-6, guesses)
    assert result.bound == epsilon_of_guesses(counted, counted, 400, 1e-6)
    assert audit.one_run(Seen, lambda seen: ~seen.included, 400, 1e-6, guesses).bound == 0


def test_coins_are_fair_and_owe_nothing_to_seeds():
    canaries = 100_000
    runs = []
    for _ in range(2):
        keras.utils.set_random_seed(0)
        audit.one_run(
            lambda included: runs.append(included) or Seen(included),
            lambda seen: np.zeros(canaries), canaries, 1e-6,
        )  # fmt: skip
    # Each of the three counts is beyond 5 deviations, of 158, once in 2e6 runs.
    for coins in (*runs, runs[0] ^ runs[1]):
        assert abs(coins.sum() - canaries / 2) < 5 * np.sqrt(canaries) / 2


@pytest.mark.thorough_after(7)
@pytest.mark.parametrize(
    "call, named",
    [
        (lambda: audit.one_run(len, len, 10, 1e-3, (6, 5)), "guesses"),
        (lambda: audit.one_run(len, len, 10, 1e-3, (-1, 5)), "guesses"),
        (lambda: audit.one_run(len, len, 10, 1e-3, (0, 0)), "guesses"),
        (lambda: audit.one_run(len, len, 10, 1e-3, (1, 2, 3)), "guesses"),
        (lambda: audit.one_run(len, len, 10, 1e-3, (0.5, 2)), "guesses"),
        (lambda: audit.one_run(len, len, 10, 1e-3, 1), "guesses"),
        (lambda: audit.one_run(Seen, lambda seen: [np.nan] * 10, 10, 1e-3), "score"),
        (lambda: audit.play("canaries in mixtures", 100, delta=0.5), "delta"),
        (lambda: audit.play("canary rows, AdaFEST", trials=0), "trials"),
    ],
)
def test_bad_arguments_of_canaries_are_named(call, named):
    with pytest.raises(ValueError, match=f"`{named}`"):
        call()
