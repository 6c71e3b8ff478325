"""The release of transitions: its charge, its noise, and what it costs in memory.

Distribution tests have a false-alarm rate of 1e-6 each.
"""

import collections
import math
import tracemalloc

import dp_accounting
import numpy as np
import pytest
from scipy import stats

import tfdp
from tfdp.data import private_transitions
from tfdp.data.releases import transition_rounds
from tfdp.data.releases.transition_counts import UNIT, Histories, transition_sums
from tfdp.noise import NoiseSource

FALSE_ALARM = 1e-6
M = 12


@pytest.fixture(scope="module")
def train():
    return tfdp.data.synthetic_sequences(200, M, max_length=10, min_length=3, seed=1).train


def dense(release, num_items=M):
    matrix = np.zeros((num_items, num_items))
    matrix[tuple(release.indices.T - 1)] = release.values
    return matrix


def test_one_round_is_the_naive_dense_mechanism_and_a_threshold(train):
    # Against the exact law of: all sums, Gaussian noise, forget what is below. The users stand
    # `copies` times in disjoint ranges of items: one release makes as many draws of each sum.
    sigma, share, threshold, copies, releases = 4.0, 0.2, 0.5, 25, 10
    shift = M * np.repeat(np.arange(copies), len(train.x))[:, None]
    tiled = [np.tile(a, (copies, 1)) for a in train]
    data = tuple(np.where(a > 0, a + shift, 0) for a in tiled)
    source = NoiseSource(7)
    histories = Histories(np.concatenate([data[0], data[1][:, -1:]], axis=1), copies * M)
    places, sums, _ = transition_sums(histories, 3, 1.0, False)
    truth = np.zeros((copies * M) ** 2)
    truth[places] = sums
    truth = truth.reshape(copies * M, copies * M)
    made = [
        private_transitions(
            data, noise_multiplier=sigma, num_items=copies * M, window=3, gap_power=1.0, rounds=1,
            threshold=threshold, popularity_share=share, source=source,
        )
        for _ in range(releases)
    ]  # fmt: skip
    stddev = sigma / math.sqrt(1 - share)
    found = np.stack([dense(r, copies * M) for r in made])
    rates = stats.norm.sf(threshold - truth / stddev)
    survived = (found > 0).sum(0)
    blocks = [slice(M * i, M * i + M) for i in range(copies)]
    within = sum(survived[b, b] for b in blocks)
    draws = copies * releases
    rate = rates[:M, :M]
    z = (within - draws * rate) / np.sqrt(draws * rate * (1 - rate))
    assert stats.chi2.sf(np.sum(z**2), M * M) > FALSE_ALARM
    outside = survived.sum() - within.sum()
    number = releases * (truth.size - copies * M * M)
    rate = stats.norm.sf(threshold)
    assert stats.binomtest(int(outside), number, rate).pvalue > FALSE_ALARM
    # values: the Gaussian above the threshold, for sums that are 0 and for those that are not
    drawn, where = found[found > 0], np.broadcast_to(truth, found.shape)[found > 0]
    law = stats.norm.sf((drawn - where) / stddev) / stats.norm.sf(threshold - where / stddev)
    for part in (law[where == 0], law[where > 0]):
        assert len(part) > 500 and stats.kstest(part, "uniform").pvalue > FALSE_ALARM
    # popularity: the other Gaussian
    popularity = np.stack([r.popularity[1:] for r in made])
    mean = np.broadcast_to(histories.item_sums(), popularity.shape)[popularity > 0]
    law = stats.norm(scale=sigma / math.sqrt(share))
    u = law.sf(popularity[popularity > 0] - mean) / law.sf(-mean)
    assert stats.kstest(u, "uniform").pvalue > FALSE_ALARM
    assert made[0].details["noise_stddev"] == pytest.approx(stddev, rel=1e-4)


@pytest.mark.thorough
def test_rounds_add_noise_of_their_share_to_what_is_summed(train, monkeypatch):
    # Every Gaussian of a release is seen: what goes in, what comes out.
    seen = []
    release_any = NoiseSource.release_any

    def watched(self, values, grid, *args):
        result = release_any(self, values, grid, *args)
        seen.append((float(grid.stddev), result.numpy() - values.numpy()))
        return result

    monkeypatch.setattr(NoiseSource, "release_any", watched)
    sigma, share, rounds = 3.0, 0.25, 3
    noise = collections.defaultdict(list)
    for _ in range(12):
        seen.clear()
        private_transitions(
            train, noise_multiplier=sigma, popularity_share=share, rounds=rounds, threshold=0.2
        )
        assert len(seen) == 1 + rounds
        precision = 0.0
        for i, (stddev, drawn) in enumerate(seen):
            noise[i].append(drawn)
            precision += stddev**-2
        assert precision <= sigma**-2  # together they cost no more than is charged
        assert precision == pytest.approx(sigma**-2, rel=1e-5)
    for i, (stddev, _) in enumerate(seen):
        drawn = np.concatenate(noise[i])
        assert stats.kstest(drawn / stddev, "norm").pvalue > FALSE_ALARM


@pytest.mark.thorough
def test_what_the_surviving_pairs_add_up_to_is_known_with_the_noise_of_its_round(
    train, monkeypatch
):
    true, given = [], []
    sums, gain = Histories.transition_sums, transition_rounds._gain

    def summed(self, *settings):
        found = sums(self, *settings)
        true.append(found[2])
        return found

    def seen(before, after, stddev):
        given.append((before, after, stddev))
        return gain(before, after, stddev)

    monkeypatch.setattr(Histories, "transition_sums", summed)
    monkeypatch.setattr(transition_rounds, "_gain", seen)
    noise = []
    for _ in range(25):
        true.clear(), given.clear()
        private_transitions(train, noise_multiplier=3.0, rounds=3, threshold=0.2)
        assert len(true) == 3 and len(given) == 2
        for (before, after, stddev), kept in zip(given, true[1:], strict=True):
            noise += [(before - kept[0]) / stddev, (after - kept[1]) / stddev]
    assert stats.kstest(noise, "norm").pvalue > FALSE_ALARM


@pytest.mark.thorough
def test_every_pair_can_survive_by_noise_alone_the_last_one_too():
    x, seen = np.array([[0, 1]]), set()
    for _ in range(40):  # each of them in half of the releases
        release = private_transitions(
            (x, x * 2), noise_multiplier=5.0, num_items=2, rounds=1, threshold=0.0
        )
        seen |= set(map(tuple, release.indices.tolist()))
    assert seen == {(1, 1), (1, 2), (2, 1), (2, 2)}


def test_later_rounds_measure_better_and_in_the_same_scale():
    # Half of the users have one pair, half have three rare ones, too, on which they spend most.
    rare = [(3 + np.arange(3 * i, 3 * i + 3) % 900).tolist() for i in range(4000)]
    histories = [[1, 2] if i % 2 else [1, 2, *rare[i]] for i in range(4000)]
    train = tfdp.data.leave_one_out_split([[*h, 999] for h in histories], 5, 999).train
    found, stddevs = {}, {}
    for rounds in (1, 3):
        made = [
            private_transitions(
                train, noise_multiplier=3.0, rounds=rounds, window=1, threshold=6.0, gap_power=0.0
            )
            for _ in range(12)
        ]
        found[rounds] = np.array([dense(r, 999)[0, 1] for r in made])
        stddevs[rounds] = np.mean([r.details["noise_stddev"] for r in made])
        # With 3 rounds the mean of 12 is 3,021 with a standard error of 24 (of 1,200 releases), for
        # the gain is estimated from two noisy sums: 180 is more than 6 of them away.
        assert abs(found[rounds].mean() - 3000) < 0.06 * 3000
    # Users spend more on the pair that is left. The ratio is 0.82 with a standard error of 0.005,
    # and would be at least 1 if they did not.
    assert stddevs[3] < 0.87 * stddevs[1]
    assert len(made[0].values) == 1


@pytest.mark.thorough
@pytest.mark.parametrize("epsilon, delta", [(0.5, None), (8.0, 1e-3)])
def test_it_is_charged_as_one_gaussian_of_the_epsilon_asked_for(train, epsilon, delta):
    release = private_transitions(train, epsilon=epsilon, delta=delta)
    entry = release.entry
    assert isinstance(entry.event, dp_accounting.GaussianDpEvent) and entry.count == 1
    delta = 1 / 2000 if delta is None else delta
    assert (entry.details["epsilon"], entry.details["delta"]) == (epsilon, delta)
    assert 0.998 * epsilon < tfdp.accounting.Ledger([entry]).epsilon(delta) <= epsilon
    assert entry.num_examples == 200
    assert entry.details["unit"] == tfdp.models.DPFormer.privacy_unit
    again = private_transitions(train, epsilon=epsilon, delta=delta)
    assert again.entry != entry  # two releases, both cost
    assert tfdp.accounting.LedgerEntry.from_dict(entry.to_dict()) == entry


def test_the_charge_is_that_of_the_noise_multiplier_given(train):
    release = private_transitions(train, noise_multiplier=2.5)
    assert release.event == dp_accounting.GaussianDpEvent(2.5)
    assert "epsilon" not in release.details


def test_a_fixed_seed_is_stated(train):
    release = private_transitions(train, noise_multiplier=1.0, source=NoiseSource(3))
    assert "fixed seed 3" in release.privacy_assumptions[0]
    assert private_transitions(train, noise_multiplier=1.0).privacy_assumptions == []


def test_what_the_sequences_were_made_with_is_carried_along(train):
    frequency = tfdp.data.private_frequency(train, epsilon=1.0)
    small = tfdp.data.FrequentItems(frequency, 5)
    release = private_transitions(small.encode(tuple(train)), noise_multiplier=1.0)
    assert release.num_items == 6
    assert release.privacy_releases == [frequency.entry, release.entry]
    public = tfdp.data.FrequentItems(np.full(M + 1, 0.5), 5).encode(tuple(train))
    assert private_transitions(public, noise_multiplier=1.0).privacy_assumptions


def test_the_noise_of_every_part_is_that_of_its_share_and_of_what_one_user_reaches():
    # A user reaches 7 items and 1·7 + 2 = 9 sums of pairs: steps of 2^-22 in both grids, and so
    # √7 and √9 of them more noise. The quarter that is left to the pairs has twice the σ.
    x = np.array([[1, 2, 3, 1, 2, 3]])
    release = private_transitions(
        (x, x), noise_multiplier=3.0, num_items=3, window=1, rounds=1, popularity_share=0.75
    )
    pairs, items = 3.0 / math.sqrt(0.25), 3.0 / math.sqrt(0.75)
    found = release.details["noise_stddev"], release.details["popularity_noise_stddev"]
    more = (1 + 1e-12) * (1 + 3 * 2.0**-22), (1 + 1e-12) * (1 + math.sqrt(7) * 2.0**-22)
    assert found == pytest.approx((pairs * more[0], items * more[1]), rel=1e-14, abs=0)


def test_the_test_item_is_never_read():
    histories = [[1, 2, 3], [4, 5, 6], [1, 2, 7]]
    other = [[1, 2, 8], [4, 5, 1], [1, 2, 2]]
    a, b = (
        private_transitions(
            tfdp.data.leave_one_out_split(h, 5, 9).train, noise_multiplier=1e-6, rounds=1
        )
        for h in (histories, other)
    )
    np.testing.assert_array_equal(dense(a, 9) > 1e-3, dense(b, 9) > 1e-3)
    np.testing.assert_allclose(dense(a, 9), dense(b, 9), atol=1e-4)
    assert sorted(map(tuple, a.indices[a.values > 1e-3].tolist())) == [(1, 2), (4, 5)]


def test_symmetric_pairs_stand_in_both_orders(train):
    release = private_transitions(train, noise_multiplier=1e-6, symmetric=True, threshold=3.0)
    matrix = dense(release)
    np.testing.assert_array_equal(matrix, matrix.T)
    histories = Histories(np.concatenate([train.x, train.y[:, -1:]], axis=1), M)
    places, sums, _ = transition_sums(histories, 8, 0.7, True)
    truth = np.zeros(M * M)
    truth[places] = sums
    truth = truth.reshape(M, M)
    np.testing.assert_allclose(np.triu(matrix), np.where(truth > 1e-3, truth, 0), rtol=1e-2)


@pytest.mark.thorough
def test_a_million_items_cost_what_is_touched():
    num_items, n, length = 10**6, 3_000, 9
    rng = np.random.default_rng(0)
    x = rng.integers(1, num_items + 1, (n, length)).astype(np.int32)
    x[:1500, :2] = [5, num_items]
    y = np.roll(x, -1, axis=1)
    y[:, -1] = rng.integers(1, num_items + 1, n)
    tracemalloc.start()
    release = private_transitions(
        (x, y), noise_multiplier=1.0, num_items=num_items, window=3, most_survivors=50_000
    )
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2e8  # M numbers are 8e6 bytes, M² 8e12
    assert (release.indices[:, 0] - 1).max() < num_items and release.indices.min() >= 1
    assert release.indices.dtype == np.int64 and len(release.values) < 60_000
    assert release.details["thresholds"][0] == pytest.approx(stats.norm.isf(5e-8), rel=1e-6)
    found = {tuple(p): v for p, v in zip(release.indices.tolist(), release.values, strict=True)}
    assert found[5, num_items] > 300  # 1,500 users give this pair about a third of their norm
    places = (release.indices[:, 0] - 1) * num_items + release.indices[:, 1] - 1
    assert np.all(np.diff(places) > 0)


def test_users_without_pairs_are_fine():
    x = np.zeros((5, 4), np.int32)
    x[0, -1] = 2
    release = private_transitions((x, x * 0), noise_multiplier=1.0, num_items=3)
    assert release.num_examples == 5 and np.isfinite(release.popularity).all()
    one = private_transitions((x[:, :1], x[:, :1]), noise_multiplier=1.0, num_items=1)
    assert one.popularity.shape == (2,)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "Exactly one"),
        ({"epsilon": 1.0, "noise_multiplier": 1.0}, "Exactly one"),
        ({"epsilon": 0.0}, "`epsilon`"),
        ({"epsilon": 1.0, "delta": 1.0}, "`delta`"),
        ({"noise_multiplier": 1.0, "delta": 1e-5}, "`delta`"),
        ({"noise_multiplier": 0.0}, "`noise_multiplier`"),
        ({"noise_multiplier": math.inf}, "`noise_multiplier`"),
        ({"noise_multiplier": 1.0, "window": 0}, "`window`"),
        ({"noise_multiplier": 1.0, "gap_power": -1.0}, "`gap_power`"),
        ({"noise_multiplier": 1.0, "popularity_share": 0.0}, "`popularity_share`"),
        ({"noise_multiplier": 1.0, "popularity_share": 1.0}, "`popularity_share`"),
        ({"noise_multiplier": 1.0, "rounds": 0}, "`rounds`"),
        ({"noise_multiplier": 1.0, "threshold": -1.0}, "`threshold`"),
        ({"noise_multiplier": 1.0, "symmetric": 1}, "`symmetric`"),
        ({"noise_multiplier": 1.0, "num_items": 0}, "`num_items`"),
        ({"noise_multiplier": 1.0, "num_items": 5}, "`train`"),
        ({"noise_multiplier": 1.0, "most_survivors": 0}, "`most_survivors`"),
    ],
)
def test_wrong_arguments_are_named(train, arguments, message):
    with pytest.raises(ValueError, match=message):
        private_transitions(train, **arguments)


def test_the_vocabulary_is_public_and_never_read(train):
    with pytest.raises(ValueError, match="`num_items`"):
        private_transitions((train.x, train.y), noise_multiplier=1.0)
    assert UNIT == 2**24
