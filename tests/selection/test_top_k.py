"""The private top-k. Distribution tests have a false-alarm rate of 1e-6; seeds repeat them."""

import math

import dp_accounting
import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from tfdp.accounting import epsilon
from tfdp.noise import NoiseSource
from tfdp.selection import private_top_k, top_k


class QuickSource(NoiseSource):
    """Its keys come from numpy: a thousandfold draw outside of a graph takes a second, not ten."""

    def __init__(self, seed):
        super().__init__(seed)
        self._generator = np.random.default_rng(seed)

    def bits(self, shape):
        return tf.constant(self._generator.integers(2**64, size=shape, dtype=np.uint64))


def rate_of_the_rarer(mechanism, epsilon, trials):
    """How often the value with fewer examples is chosen from two that differ by 3 examples."""
    ids, source = np.repeat([0, 1], [8, 5]), QuickSource(5)
    found = [
        private_top_k({"a": ids}, {"a": 2}, 1, epsilon, mechanism, source=source).rows["a"][0]
        for _ in range(trials)
    ]
    return np.mean(found)


PAIRS = 4000  # values of eight examples, and as many of five


def rate_of_the_rarer_half(epsilon, features=lambda ids: {"a": ids}, **kwargs):
    """How many of the rarer half of the values are chosen among as many as are in the other half.

    All noise is drawn in one call. The noisy counts of both halves mirror each other, so the cut
    lies in the middle, 1.5 examples from either: but for terms of 1/PAIRS.
    """
    data = features(np.repeat(np.arange(2 * PAIRS), np.repeat([8, 5], PAIRS)))
    sizes = dict.fromkeys(data, 2 * PAIRS)
    rows = private_top_k(data, sizes, PAIRS, epsilon, source=QuickSource(5), **kwargs).rows["a"]
    return np.mean(rows >= PAIRS)


def assert_laplace(rate, scale):
    """Misses a scale that is too small by a factor of 2 with probability below 1e-9.

    The cut moves with the noise of both halves: the rate is the mean of two, of PAIRS each, of
    how many of the rarer lie above the middle, and how many of the others below.
    """
    assert_rate(rate, math.exp(-1.5 / scale) / 2, 2 * PAIRS)


def assert_rate(rate, probability, trials):
    z = (rate - probability) / math.sqrt(probability * (1 - probability) / trials)
    assert abs(z) < stats.norm.isf(5e-7)


def test_laplace_noise_has_scale_one_over_epsilon():
    assert_laplace(rate_of_the_rarer_half(0.5), 2.0)


def test_features_and_values_of_an_example_share_the_budget():
    assert_laplace(rate_of_the_rarer_half(0.5, lambda ids: {"a": ids, "b": ids[::-1]}), 4.0)

    def multi(ids):
        return {"a": np.stack([ids, ids, ids], 1)}  # three values each, though all the same

    assert_laplace(rate_of_the_rarer_half(0.5, multi), 6.0)
    assert_laplace(rate_of_the_rarer_half(0.5, multi, max_values=1), 2.0)
    ids = np.repeat([0, 1], [8, 5])
    # No example has more values than places: a larger bound costs no accuracy.
    assert private_top_k({"a": ids}, {"a": 2}, 1, 0.5, max_values=9).details["max_values"] == 1


def test_the_grid_of_the_noise_is_that_of_the_values_of_an_example_and_of_all_examples(
    monkeypatch,
):
    asked, true = [], top_k.grid_of_counts

    def watched(scale, moved, largest):
        asked.append((scale, moved, largest))
        return true(scale, moved, largest)

    monkeypatch.setattr(top_k, "grid_of_counts", watched)
    data = {"a": np.ones((5, 3), int), "b": np.ones(7, int)}
    release = private_top_k(data, {"a": 2, "b": 2}, 1, 0.5)
    assert asked == [(8.0, 3, 7), (8.0, 1, 7)] and release.num_examples == 7


def test_gumbel_noise_is_the_exponential_mechanism():
    rate = rate_of_the_rarer("gumbel", 0.5, 600)
    assert_rate(rate, 1 / (1 + math.exp(0.5 * 3)), 600)


def test_every_one_of_k_rounds_of_gumbel_gets_its_share_of_the_budget():
    # Both of two values are chosen from three with 12, 8 and 5 examples: the exponential
    # mechanism is peeled by hand, with the parameter 1.5/K of K rounds, over all features.
    ids = np.repeat([0, 1, 2], [12, 8, 5])
    for features, rounds in (({"a": ids}, 2), ({"a": ids, "b": ids}, 4)):
        source, trials = QuickSource(11), 600
        found = [
            set(private_top_k(features, dict.fromkeys(features, 3), 2, 1.5, "gumbel",
                              source=source).rows["a"])
            for _ in range(trials)
        ]  # fmt: skip
        weights = np.exp(1.5 / rounds * np.array([12, 8, 5]))
        total = weights.sum()
        for left_out in range(3):
            i, j = {0, 1, 2} - {left_out}
            first, second = weights[i] / total, weights[j] / total
            probability = first * weights[j] / (total - weights[i]) + second * weights[i] / (
                total - weights[j]
            )
            assert_rate(np.mean([left_out not in rows for rows in found]), probability, trials)


def test_gumbel_is_charged_as_many_rounds_and_never_beyond_epsilon():
    ids = {"a": np.arange(50), "b": np.arange(50)}
    release = private_top_k(ids, {"a": 50, "b": 50}, 10, 1.0, "gumbel")
    assert release.event == dp_accounting.SelfComposedDpEvent(
        dp_accounting.LaplaceDpEvent(20.0), 20
    )
    assert epsilon(release.event, 1e-12) <= 1.0 + 1e-3
    assert [len(r) for r in release.rows.values()] == [10, 10]


def test_laplace_costs_epsilon_for_any_k():
    ids = {"a": np.arange(50)}
    for k in (1, 40):
        release = private_top_k(ids, {"a": 50}, k, 0.7)
        assert release.event == dp_accounting.LaplaceDpEvent(1 / 0.7)
        assert len(release.rows["a"]) == k and np.all(np.diff(release.rows["a"]) > 0)


def test_the_charge_of_a_gumbel_round_lies_above_every_bounded_range_mechanism():
    # Two outcomes with losses t and t − ε: all worst cases of the exponential mechanism, whose
    # privacy curve must stay below that of the Laplace mechanism that is charged.
    for eps in (0.01, 0.5, 2.0, 6.0):
        for s in np.linspace(-eps, eps, 41):
            laplace = 1 - math.exp((s - eps) / 2)
            for t in np.linspace(0, eps, 81)[1:-1]:
                p = (math.exp(eps) - math.exp(t)) / (math.exp(eps) - 1)
                curve = p * max(0, 1 - math.exp(s - t)) + (1 - p) * max(
                    0, 1 - math.exp(s - t + eps)
                )
                assert curve <= laplace + 1e-12


def test_a_fixed_seed_is_said():
    given = {"f": np.arange(20)}, {"f": 20}, 5, 1.0
    (said,) = private_top_k(*given, source=NoiseSource(3)).privacy_assumptions
    assert "seed 3" in said
    assert not private_top_k(*given).privacy_assumptions


def test_a_repeated_value_counts_once_and_values_beyond_the_bound_not_at_all():
    ids = np.array([[3, 3, 3]] * 500 + [[2, 1, -1]] * 700)  # 3 is 500 examples, not 1,500
    rows = private_top_k({"a": ids}, {"a": 5}, 2, 1.0).rows["a"]
    np.testing.assert_array_equal(rows, [1, 2])
    rows = private_top_k({"a": ids}, {"a": 5}, 2, 1.0, max_values=1).rows["a"]
    np.testing.assert_array_equal(rows, [1, 3])
    padded = np.array([[3, 3, 3], [2, 1, 3]] * 600)  # 3 would be the commonest
    rows = private_top_k({"a": padded}, {"a": 5}, 2, 1.0, padding_id=3).rows["a"]
    np.testing.assert_array_equal(rows, [1, 2])


@pytest.mark.parametrize(
    "change",
    [{"epsilon": 0}, {"k": 0}, {"vocabulary_sizes": {}}, {"vocabulary_sizes": {"a": 2}},
     {"features": {"a": np.uint64([2**64 - 1, 1])}}, {"features": {"a": [0.5]}},
     {"features": {}}, {"mechanism": "none"}, {"max_values": 0}],
)  # fmt: skip
def test_arguments_out_of_range_are_refused(change):
    arguments = {"features": {"a": [0, 2]}, "vocabulary_sizes": {"a": 3}, "k": 1, "epsilon": 1.0}
    with pytest.raises(ValueError, match="Received"):
        private_top_k(**{**arguments, **change})
