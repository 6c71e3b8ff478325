"""Cyclic Poisson batches: distributions are tested with a false-alarm rate of 1e-6 each."""

import numpy as np
import pytest
from numbered_records import FALSE_ALARM, draws, numbered
from scipy import stats

import tfdp
from tfdp.data.samplers import cyclic_poisson

BANDS, Q = 4, 0.1


@pytest.fixture(scope="module")
def drawn():
    """(passes, rounds, b, n) which record took part in which step."""
    batches = tfdp.data.cyclic_poisson_batches(
        numbered(200), 20, BANDS, passes=2, steps_per_epoch=800
    )
    return np.stack([draws(batches), draws(batches)]).reshape(2, 200, BANDS, 200)


@pytest.fixture(scope="module")
def parts(drawn):
    """(n,) the part of each record, which it was sampled in."""
    return drawn.sum((0, 1)).argmax(0)  # in none of 400 rounds with probability 0.6^400


def test_a_record_is_sampled_in_the_steps_of_one_part_in_every_pass(drawn, parts):
    others = np.arange(BANDS)[:, None] != parts
    assert not np.any(drawn * others)
    assert np.all(drawn.sum(1).max(1) > 0)  # in both passes
    assert drawn.max() == 1


def test_each_is_sampled_with_b_times_the_probability_in_its_turn(drawn, parts):
    counts, probability = drawn.sum((0, 1, 2)), BANDS * Q
    variance = 400 * probability * (1 - probability)
    statistic = ((counts - 400 * probability) ** 2).sum() / variance
    assert FALSE_ALARM / 2 < stats.chi2.sf(statistic, 200) < 1 - FALSE_ALARM / 2


def test_draws_of_records_rounds_and_passes_are_independent(drawn, parts):
    in_turn = drawn.max(2).reshape(400, 200)  # (rounds, n)
    probability = BANDS * Q
    for lag in (1, 7, 200):  # the last compares the same round of two passes
        both = int((in_turn[:-lag] & in_turn[lag:]).sum())
        trials = (400 - lag) * 200
        assert stats.binomtest(both, trials, probability**2).pvalue > FALSE_ALARM
    pairs = int((in_turn[:, 0::2] & in_turn[:, 1::2]).sum())
    assert stats.binomtest(pairs, 400 * 100, probability**2).pvalue > FALSE_ALARM


def test_parts_are_drawn_uniformly_and_for_each_record_by_itself():
    rng = np.random.default_rng(0)
    code = []
    for _ in range(4000):
        part = np.empty(3, int)
        for number, members in enumerate(cyclic_poisson._parts(rng, 3, 2)):
            part[members] = number
        code.append(int(part @ (1, 2, 4)))
    observed = np.bincount(code, minlength=8)
    assert stats.chisquare(observed).pvalue > FALSE_ALARM


def test_two_calls_part_the_records_otherwise_and_none_of_it_is_public():
    one, other = (
        tfdp.data.cyclic_poisson_batches(numbered(200), 50, BANDS, steps_per_epoch=BANDS)
        for _ in range(2)
    )
    first, second = (draws(batches).argmax(0) for batches in (one, other))
    assert 0 < (first == second).sum() < 200  # all alike with probability 4^-200
    assert "array" not in str(tfdp.data.sampling_of(one).to_dict())


def test_the_tag_states_parts_passes_and_steps():
    batches = tfdp.data.cyclic_poisson_batches(numbered(200), 20, 4, passes=3)
    sampling = tfdp.data.sampling_of(batches)
    assert (sampling.kind, sampling.bands, sampling.passes) == ("cyclic_poisson", 4, 3)
    assert sampling.steps_per_epoch == 12 and int(batches.cardinality()) == 12  # 10, rounded
    assert sampling.chain_steps == 36 and sampling.part_probability == 0.4
    assert not sampling.seeded and sampling.overflow_probability < 1e-18
    assert tfdp.data.sampling_of(batches.take(8)).chain_steps == 24
    seeded = tfdp.data.cyclic_poisson_batches(numbered(200), 20, 4, seed=1)
    assert tfdp.data.sampling_of(seeded).seeded


def test_overflow_is_cut_at_the_capacity_and_reported():
    batches = tfdp.data.cyclic_poisson_batches(
        numbered(10), 5, 2, max_batch_size=5, steps_per_epoch=200
    )
    assert draws(batches).sum(1).max() <= 5
    found = tfdp.data.sampling_of(batches).overflow_probability
    np.testing.assert_allclose(found, 2 * stats.binom.sf(5, 11, 0.5))


def test_persons_are_parted_and_sampled_with_their_records():
    ids = np.repeat(np.arange(40), 3)
    x = np.arange(120, dtype=np.int32)
    batches = tfdp.data.cyclic_poisson_batches(
        (x, x), 8, 2, privacy_ids=ids, max_records_per_unit=2, steps_per_epoch=40
    )
    sampling = tfdp.data.sampling_of(batches)
    assert sampling.num_examples == 40 and sampling.part_probability == 0.4
    turns = [set(), set()]
    for number, (rows, _, weight) in enumerate(batches.as_numpy_iterator()):
        people, counts = np.unique(rows[weight > 0] // 3, return_counts=True)
        assert np.all(counts == 2)
        turns[number % 2] |= set(people.tolist())
    # Nobody is missed in 20 turns of probability 0.4 by chance, but with 4e-5·40.
    assert not turns[0] & turns[1] and len(turns[0] | turns[1]) >= 38


@pytest.mark.parametrize("change", [
    {"bands": 0}, {"bands": 11}, {"passes": 0}, {"steps_per_epoch": 10, "passes": 2},
    {"expected_batch_size": 300}, {"steps_per_epoch": 0},
])  # fmt: skip
def test_wrong_arguments_are_refused(change):
    name = next(iter(change))
    with pytest.raises(ValueError, match=name):
        tfdp.data.cyclic_poisson_batches(
            numbered(200), **{"expected_batch_size": 20, "bands": 4, **change}
        )
