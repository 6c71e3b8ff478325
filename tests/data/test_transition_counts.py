"""One user's contribution to the sums of transitions has norm 1 at most, whatever its history."""

import collections

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdp.data.releases import transition_counts
from tfdp.data.releases.transition_counts import UNIT, Histories, transition_sums
from tfdp.errors import PrivacyError


def padded(histories, length=None):
    length = max(map(len, histories), default=1) if length is None else length
    rows = np.zeros((len(histories), max(length, 1)), np.int32)
    for row, history in zip(rows, histories, strict=True):
        row[len(row) - len(history) :] = history
    return rows


def brute_force(histories, num_items, window, power, symmetric=False, within=None):
    """Sums over users in plain Python, without bounds in integers."""
    sums = collections.Counter()
    for history in histories:
        weights = {}
        for i, first in enumerate(history):
            for gap in range(1, window + 1):
                if i + gap < len(history):
                    pair = (first, history[i + gap])
                    pair = tuple(sorted(pair)) if symmetric else pair
                    weights[pair] = max(weights.get(pair, 0.0), gap**-power)
        places = {p: (p[0] - 1) * num_items + p[1] - 1 for p in weights}
        kept = {p: w for p, w in weights.items() if within is None or places[p] in within}
        norm = np.sqrt(sum(w**2 for w in kept.values()))
        for pair, weight in kept.items():
            sums[places[pair]] += weight / norm
    return dict(sums)


histories_of_items = st.lists(st.lists(st.integers(1, 7), max_size=12), min_size=1, max_size=6)


@pytest.mark.thorough
@settings(max_examples=60, deadline=None)
@given(
    histories_of_items,
    st.integers(1, 5),
    st.sampled_from([0.0, 0.7, 2.0]),
    st.booleans(),
    st.integers(1, 8),
)
def test_sums_are_those_of_the_definition(histories, window, power, symmetric, part):
    raw = Histories(padded(histories), 7)
    places, sums, _ = transition_sums(raw, window, power, symmetric, part=part)
    expected = brute_force(histories, 7, window, power, symmetric)
    assert places.tolist() == sorted(expected)
    np.testing.assert_allclose(sums, [expected[p] for p in places], atol=1e-5)
    within = np.array(sorted(expected)[::2], np.int64)
    found, sums, _ = transition_sums(raw, window, power, symmetric, within, part)
    expected = brute_force(histories, 7, window, power, symmetric, set(within.tolist()))
    assert found.tolist() == sorted(expected)
    np.testing.assert_allclose(sums, [expected[p] for p in found], rtol=0.02)


ADVERSARIAL = {
    "nothing": [],
    "one item": [5],
    "one pair": [5, 6],
    "one item again and again": [3] * 2000,
    "two items in turn": [1, 2] * 1000,
    "2,000 distinct items": list(range(1, 2001)),
    "a random walk of 2,000": np.random.default_rng(0).integers(1, 3000, 2000).tolist(),
    "two random thousands of few": np.random.default_rng(1).integers(1, 30, 2000).tolist(),
}


@pytest.fixture(scope="module")
def some():
    """Two of nine million places, sorted."""
    return np.sort(np.random.default_rng(2).choice(3000**2, 2_000_000, replace=False))


@pytest.mark.thorough
@pytest.mark.parametrize("history", ADVERSARIAL.values(), ids=ADVERSARIAL.keys())
@pytest.mark.parametrize("power", [0.0, 0.7, 30.0])
def test_no_history_moves_the_sums_by_more_than_norm_1(history, power, some):
    others = [[1, 2, 3, 4, 1, 2], [2, 1, 2]]
    everyone, rest = (Histories(padded(h, 2000), 3000) for h in ([*others, history], others))
    for within in (None, some, np.array([0, 1, 3000], np.int64), np.zeros(0, np.int64)):
        sums = collections.Counter()
        shares = 0.0
        for raw, sign in ((everyone, 1.0), (rest, -1.0)):
            places, values, kept = transition_sums(raw, 8, power, False, within)
            sums.update(dict(zip(places.tolist(), (sign * values).tolist(), strict=True)))
            shares = shares + sign * kept
            if within is not None:
                assert np.isin(places, within).all()
        moved = sum(int(round(v * UNIT)) ** 2 for v in [*sums.values(), *shares])
        assert moved <= UNIT**2
        if within is None and len(history) > 1:
            assert moved > 0.999 * UNIT**2  # and none of it is given away
    moved = np.round((everyone.item_sums() - rest.item_sums()) * UNIT).astype(object)
    assert (moved**2).sum() <= UNIT**2 and (len(history) == 0 or (moved**2).sum() > 0.999 * UNIT**2)


@pytest.mark.parametrize("off", [0.999, 2.0**-20, 2.0**-45])
def test_what_exceeds_norm_1_is_never_handed_on(off, monkeypatch):
    # If float64 did what nobody expects, nothing would be released; nor where squares of int64,
    # or the numbers themselves, overflow.
    monkeypatch.setattr(np, "sqrt", lambda x: off * x**0.5)
    with pytest.raises(PrivacyError, match="exceeds norm 1"), np.errstate(invalid="ignore"):
        transition_sums(Histories(padded([[1, 2]]), 7), 2, 1.0, False)


def test_the_two_shares_tell_how_much_the_pairs_that_count_are():
    raw = Histories(padded([[1, 2], [1, 2, 3], [4, 5]]), 7)
    _, _, kept = transition_sums(raw, 1, 0.0, False, within=np.array([1], np.int64))
    most = 10 * np.sqrt(1 * 3)
    np.testing.assert_allclose(most * kept, [1 + 0.5**0.5, 2.0], atol=1e-4)


def test_sums_do_not_depend_on_the_order_or_the_parts():
    rng = np.random.default_rng(3)
    rows = rng.integers(0, 50, (300, 20)).astype(np.int32)
    for within in (None, np.arange(0, 49**2, 3)):
        whole = transition_sums(Histories(rows, 49), 5, 0.7, False, within)
        for part in (1, 37, 4000):
            raw = Histories(rows[rng.permutation(300)], 49)
            other = transition_sums(raw, 5, 0.7, False, within, part)
            for one, two in zip(whole, other, strict=True):
                np.testing.assert_array_equal(one, two)


def test_zeros_between_items_are_nothing():
    apart = np.array([[0, 1, 0, 0, 2, 0, 3]], np.int32)
    together = np.array([[0, 0, 0, 0, 1, 2, 3]], np.int32)
    for one, two in zip(
        transition_sums(Histories(apart, 3), 2, 1.0, False),
        transition_sums(Histories(together, 3), 2, 1.0, False),
        strict=True,
    ):
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("rows", [[[0, 4]], [[-1, 1]]])
def test_ids_out_of_range_are_refused(rows):
    with pytest.raises(ValueError, match="ids from 0 .* to num_items=3"):
        Histories(np.array(rows, np.int32), 3)


def test_a_repeated_pair_counts_once_with_its_smallest_gap():
    raw = Histories(np.array([[1, 2, 2, 1, 2]], np.int32), 2)
    places, sums, _ = transition_sums(raw, 2, 1.0, False)
    np.testing.assert_array_equal(places, [0 * 2 + 1, 1 * 2 + 0, 1 * 2 + 1])
    np.testing.assert_allclose(sums, 1 / np.sqrt(3), atol=1e-6)
    assert transition_counts.UNIT == 2**24


def test_users_are_numbered_anew_before_their_pairs_exceed_64_bits():
    # 2^60 pairs: numbers of users times pairs fit for 4 users at once. With 17 in one part the
    # pair of the last would be taken for one of the first, 2^64 before it.
    size = 2**30
    rows = np.zeros((17, 3), np.int64)
    rows[0] = rows[16] = [1, 2, size]
    places, sums, _ = transition_sums(Histories(rows, size), 1, 0.0, False)
    assert places.tolist() == [1, size + size - 1]
    each = np.floor(UNIT / np.sqrt(2)) / UNIT
    assert sums.tolist() == [2 * each, 2 * each]


def test_the_shares_and_the_pairs_have_norm_1_together():
    # 60 distinct items in a row, of which all pairs count: both shares are √(59/60) of the most.
    raw = Histories(np.arange(1, 61)[np.newaxis], 60)
    within = np.arange(59) * 61 + 1
    places, sums, kept = transition_sums(raw, 1, 0.0, False, within)
    assert places.tolist() == within.tolist()
    assert (kept * UNIT).tolist() == [int(UNIT // 10 * (59 / 60) ** 0.5)] * 2
    squares = sum(int(v * UNIT) ** 2 for v in [*sums, *kept])
    assert 0.999 * UNIT**2 < squares <= UNIT**2


def test_what_nearly_rounds_up_is_rounded_down():
    # UNIT/√179 is less than 2^-30 of itself below a whole number, which 179 times is too much.
    near = int(np.ceil(UNIT / np.sqrt(179)))
    assert UNIT**2 < 179 * near**2 < UNIT**2 * (1 + 2.0**-29)
    sums = Histories(np.arange(1, 180)[np.newaxis], 179).item_sums()
    assert (sums * UNIT).tolist() == [near - 1] * 179


def test_more_users_than_sum_up_exactly_are_refused():
    with pytest.raises(ValueError, match=f"fewer than {2**29} users.*Received: {2**29}"):
        Histories(np.zeros((2**29, 0), np.int32), 3)
    assert Histories(np.zeros((2**29 - 1, 0), np.int32), 3).num_users == 2**29 - 1
