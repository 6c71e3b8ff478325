"""Private item frequencies: sensitivity by brute force, noise by measurement."""

import itertools
import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from scipy import stats

import tfdp
from tfdp.data.releases import frequency
from tfdp.data.releases.frequency import _count_records

FALSE_ALARM = 1e-6


def counts_of(x, y, num_items):
    x, y = np.asarray(x), np.asarray(y)
    return _count_records(np.concatenate([x, y[:, -1:]], axis=1), num_items)


def test_an_item_counts_once_for_each_record_that_contains_it():
    data = tfdp.data.leave_one_out_split([[1, 2, 1, 2, 9], [3, 9], [2, 3, 3, 1, 4, 9]], 3)
    # records: 1 2 1 2 | nothing | 2 3 3 1 4 of which the newest four: 2 3 3 1 4 -> x 3 3 1, y 4
    np.testing.assert_array_equal(counts_of(*data.train, 4), [2, 1, 1, 1])


def test_the_items_of_a_record_are_all_items_of_its_truncated_history():
    data = tfdp.data.synthetic_sequences(200, 50, max_length=7, min_length=1)
    x, y = data.train
    expected = np.zeros(50)
    for row in np.concatenate([x, y], axis=1):
        expected[np.unique(row[row > 0]) - 1] += 1
    np.testing.assert_array_equal(counts_of(x, y, 50), expected)


def test_no_record_moves_the_counts_by_more_than_the_stated_sensitivity():
    length, num_items = 2, 4
    rest = (np.array([[1, 2], [3, 3]]), np.array([[2, 4], [1, 1]]))
    base = counts_of(*rest, num_items)
    l1, l2 = [], []
    # Every possible record, also those that no loader would make.
    for record in itertools.product(range(num_items + 1), repeat=2 * length):
        x = np.concatenate([rest[0], [record[:length]]])
        y = np.concatenate([rest[1], [record[length:]]])
        change = counts_of(x, y, num_items) - base
        l1.append(np.abs(change).sum())
        l2.append(np.linalg.norm(change))
    release = tfdp.data.private_frequency(rest, 1.0, num_items=num_items)
    assert max(l2) == pytest.approx(release.details["sensitivity"])
    release = tfdp.data.private_frequency(rest, 1.0, mechanism="laplace", num_items=num_items)
    assert max(l1) == release.details["sensitivity"]


@pytest.mark.thorough
@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
def test_the_measured_noise_has_the_stated_mean_spread_and_shape(mechanism):
    n, length, num_items, epsilon = 2000, 400, 500, 20.0
    # Each item is in four records of five, so that no noise of this size is ever clipped.
    rng = np.random.default_rng(0)
    x = np.argsort(rng.random((n, num_items)), axis=1)[:, :length] + 1
    train = (x, np.zeros_like(x))
    truth = counts_of(*train, num_items)
    releases = [
        tfdp.data.private_frequency(train, epsilon, mechanism=mechanism, num_items=num_items)
        for _ in range(20)
    ]
    noise = np.concatenate([release.probabilities[1:] * float(n) - truth for release in releases])
    stddev = releases[0].details["noise_stddev"]
    if mechanism == "gaussian":
        sigma = releases[0].event.noise_multiplier
        assert stddev == pytest.approx(sigma * math.sqrt(length + 1))
        law = stats.norm(scale=stddev)
    else:
        scale = releases[0].event.noise_multiplier * (length + 1)
        assert scale == pytest.approx((length + 1) / epsilon)
        assert stddev == pytest.approx(math.sqrt(2) * scale)
        law = stats.laplace(scale=scale)
    assert stats.kstest(noise, law.cdf).pvalue > FALSE_ALARM
    assert abs(noise.mean()) < stats.norm.isf(FALSE_ALARM / 2) * stddev / math.sqrt(len(noise))


def test_noise_differs_between_calls_and_between_items():
    train = tfdp.data.synthetic_sequences(2000, 20, max_length=10).train
    first, second = (tfdp.data.private_frequency(train, 1.0).probabilities[1:] for _ in range(2))
    assert (first != second).any()


def test_two_releases_of_the_same_counts_are_two_entries():
    train = (np.array([[1, 2]]), np.array([[2, 3]]))
    first, second = (tfdp.data.private_frequency(train, 1.0, num_items=3) for _ in range(2))
    assert first.entry != second.entry


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
def test_the_grid_of_the_noise_is_that_of_all_counts_of_a_record(mechanism, monkeypatch):
    asked, true = [], frequency.grid_of_counts

    def watched(scale, moved, largest):
        asked.append((scale, moved, largest))
        return true(scale, moved, largest)

    monkeypatch.setattr(frequency, "grid_of_counts", watched)
    x = np.ones((5, 3), int)
    release = tfdp.data.private_frequency((x, x), 2.0, mechanism=mechanism, num_items=3)
    scale = release.event.noise_multiplier * release.details["sensitivity"]
    assert asked == [(pytest.approx(scale), 4, 5)]


@pytest.mark.thorough
@pytest.mark.parametrize("epsilon", [0.1, 0.5, 3.0])
def test_the_event_costs_the_epsilon_and_delta_asked_for(epsilon):
    train = tfdp.data.synthetic_sequences(500, 20, max_length=5, min_length=2).train
    release = tfdp.data.private_frequency(train, epsilon)
    assert release.details["delta"] == 1 / 5000
    sigma = release.event.noise_multiplier
    exact = stats.norm.cdf(1 / (2 * sigma) - epsilon * sigma) - math.exp(epsilon) * stats.norm.cdf(
        -1 / (2 * sigma) - epsilon * sigma
    )
    assert exact == pytest.approx(1 / 5000, rel=1e-6)
    pure = tfdp.data.private_frequency(train, epsilon, mechanism="laplace")
    assert isinstance(pure.event, dp_accounting.LaplaceDpEvent)
    loss = privacy_loss_distribution.from_laplace_mechanism(pure.event.noise_multiplier)
    assert loss.get_epsilon_for_delta(1e-12) == pytest.approx(epsilon, rel=1e-3)


def test_probabilities_are_clipped_and_padding_has_probability_one():
    train = tfdp.data.synthetic_sequences(300, 40, max_length=5, min_length=2).train
    release = tfdp.data.private_frequency(train, 0.1)
    assert release.probabilities.dtype == np.float32
    assert release.probabilities.shape == (41,)
    assert release.probabilities[0] == 1
    assert release.probabilities.min() == np.float32(1 / 300)
    assert release.probabilities.max() <= 1
    assert (release.num_examples, release.label) == (300, "item frequencies")


def test_with_little_noise_the_release_is_the_truth():
    train = tfdp.data.synthetic_sequences(1000, 30, max_length=6, min_length=3).train
    release = tfdp.data.private_frequency(train, 1e6, mechanism="laplace")
    truth = np.maximum(counts_of(*train, 30) / 1000, 1 / 1000)
    np.testing.assert_allclose(release.probabilities[1:], truth, atol=1e-6)


def test_the_release_does_not_depend_on_which_ids_occur():
    x = np.array([[0, 1], [1, 2]])
    release = tfdp.data.private_frequency((x, x), 1.0, num_items=50)
    assert release.probabilities.shape == (51,)


@pytest.mark.parametrize(
    ("train", "arguments", "message"),
    [
        (None, {"num_items": None}, "num_items"),
        (None, {"epsilon": 0}, "epsilon"),
        (None, {"epsilon": math.inf}, "epsilon"),
        (None, {"delta": 0}, "delta"),
        (None, {"delta": 1e-5, "mechanism": "laplace"}, "delta"),
        (None, {"mechanism": "gumbel"}, "mechanism"),
        (None, {"num_items": 1}, "train"),
        ((np.array([[-1]]), np.array([[1]])), {}, "train"),
        ((np.array([[1.0]]), np.array([[1]])), {}, "train"),
        ((np.array([1]), np.array([1])), {}, "train"),
        ((np.array([[1]]), np.array([[1, 2]])), {}, "train"),
        (np.array([[1, 2]]), {}, "train"),
    ],
)
def test_wrong_arguments_are_named(train, arguments, message):
    train = (np.array([[1, 2]]), np.array([[2, 3]])) if train is None else train
    with pytest.raises(ValueError, match=f"Argument `{message}` must"):
        tfdp.data.private_frequency(train, **{"epsilon": 1.0, "num_items": 5, **arguments})
