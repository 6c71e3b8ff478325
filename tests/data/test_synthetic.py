"""Synthetic sequences: long-tailed, reproducible, and worth a sequence model."""

import numpy as np
import pytest

import tfdp


@pytest.fixture(scope="module")
def data():
    return tfdp.data.synthetic_sequences()


def hit_rate(data, scores):
    metric = tfdp.metrics.HitRate(k=10)
    metric.update_state(data.test[1][:, -1], scores.astype(np.float32))
    return float(metric.result())


def test_popularity_is_long_tailed(data):
    counts = np.bincount(data.train[1].ravel(), minlength=data.num_items + 1)[1:]
    share = np.sort(counts)[::-1].cumsum() / counts.sum()
    assert share[data.num_items // 10 - 1] > 0.4  # a tenth of the items, most of the actions
    assert 1 - share[data.num_items // 2 - 1] < 0.2  # the rarer half, few of them
    assert np.count_nonzero(counts) > 0.95 * data.num_items


@pytest.mark.thorough
def test_the_last_item_predicts_the_next_at_least_three_times_as_well_as_popularity(data):
    x, y = data.train
    bigrams = np.zeros((data.num_items + 1, data.num_items + 1))
    np.add.at(bigrams, (x[x > 0], y[x > 0]), 1)
    popularity = bigrams.sum(0)
    last = data.test[0][:, -1]
    by_popularity = hit_rate(data, np.broadcast_to(popularity, (len(last), len(popularity))))
    by_bigram = hit_rate(data, bigrams[last] + 1e-6 * popularity)
    assert 0.05 < by_popularity < 0.3
    assert by_bigram > 3 * by_popularity


def test_lengths_cover_the_range_asked_for():
    data = tfdp.data.synthetic_sequences(500, 30, max_length=8, min_length=4)
    lengths = np.count_nonzero(data.test[0], axis=1) + 1  # the test target is one more item
    assert lengths.min() == 4
    assert lengths.max() == 9
    assert data.train[0].shape == (500, 8)
    assert data.train[0].min() >= 0 and data.train[0].max() <= 30


def test_the_seed_makes_the_data():
    first, again, other = (
        tfdp.data.synthetic_sequences(50, 40, max_length=10, seed=seed).train[0]
        for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


@pytest.mark.parametrize("num_items", [1, 2, 19, 21])
def test_tiny_catalogues_work(num_items):
    data = tfdp.data.synthetic_sequences(20, num_items, max_length=5, min_length=1)
    assert data.num_items == num_items


@pytest.mark.parametrize("name", ["num_users", "num_items", "max_length", "min_length"])
def test_sizes_must_be_positive_integers(name):
    with pytest.raises(ValueError, match=f"Argument `{name}` must be"):
        tfdp.data.synthetic_sequences(**{name: 0})


def test_a_shortest_length_beyond_the_longest_is_refused():
    with pytest.raises(ValueError, match="Argument `min_length` must be at most"):
        tfdp.data.synthetic_sequences(max_length=5, min_length=8)
