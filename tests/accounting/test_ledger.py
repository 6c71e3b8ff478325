"""The ledger holds exactly what ran, and survives JSON bit for bit."""

import dp_accounting
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdp.accounting import Ledger, LedgerEntry, epsilon, training_event

_floats = st.floats(min_value=1e-6, max_value=1e6)
_leaves = st.one_of(
    _floats.map(dp_accounting.GaussianDpEvent),
    _floats.map(dp_accounting.LaplaceDpEvent),
    st.just(dp_accounting.NonPrivateDpEvent()),
    st.builds(
        dp_accounting.PoissonSampledDpEvent,
        st.floats(min_value=1e-12, max_value=1.0),
        _floats.map(dp_accounting.GaussianDpEvent),
    ),
)
_events = st.recursive(
    _leaves,
    lambda inner: st.one_of(
        st.builds(dp_accounting.SelfComposedDpEvent, inner, st.integers(1, 10**9)),
        st.lists(inner, max_size=3).map(dp_accounting.ComposedDpEvent),
    ),
    max_leaves=4,
)
_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)  # fmt: skip
_entries = st.builds(
    LedgerEntry,
    st.text(max_size=8),
    _events,
    st.integers(1, 10**12),
    st.dictionaries(st.text(max_size=5), _json, max_size=3),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(_entries, max_size=4))
def test_json_round_trip_is_exact(entries):
    ledger = Ledger(entries)
    text = ledger.to_json()
    restored = Ledger.from_json(text)
    assert restored == ledger
    assert restored.to_json() == text
    assert [e.count for e in restored.entries] == [e.count for e in ledger.entries]


def _example():
    ledger = Ledger()
    ledger.add("frequencies", dp_accounting.LaplaceDpEvent(3.0), kind="release")
    ledger.add("training", training_event(1.3, 0.02), count=100, kind="training", clip_norm=1.0)
    return ledger


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_epsilon_is_that_of_everything_composed(accountant):
    everything = dp_accounting.ComposedDpEvent(
        [
            dp_accounting.LaplaceDpEvent(3.0),
            dp_accounting.SelfComposedDpEvent(training_event(1.3, 0.02), 100),
        ]
    )
    expected = epsilon(everything, 1e-5, accountant)
    assert _example().epsilon(1e-5, accountant) == pytest.approx(expected, rel=1e-12)


def test_an_empty_ledger_costs_nothing():
    assert Ledger().epsilon(1e-5) == 0.0
    assert Ledger().epsilon(1e-5, "rdp") == 0.0
    assert isinstance(Ledger().event(), dp_accounting.NoOpDpEvent)
    assert len(Ledger()) == 0


def test_steps_of_one_configuration_are_one_entry_with_an_exact_count():
    ledger = _example()
    for _ in range(17):
        ledger.add("training", training_event(1.3, 0.02), kind="training", clip_norm=1.0)
    assert [(e.label, e.count) for e in ledger.entries] == [("frequencies", 1), ("training", 117)]
    ledger.add("training", training_event(1.3, 0.02), kind="training", clip_norm=2.0)
    assert [e.count for e in ledger.entries] == [1, 117, 1]
    # Entries that differ in their details only still compose as one event.
    assert ledger.event().events[1] == dp_accounting.SelfComposedDpEvent(
        training_event(1.3, 0.02), 118
    )


def test_merge_adds_and_copy_is_independent():
    ledger, other = _example(), _example()
    copy = ledger.copy()
    ledger.merge(other)
    assert [e.count for e in ledger.entries] == [2, 200]
    assert copy == other == _example() != ledger
    ledger.merge(ledger)
    assert [e.count for e in ledger.entries] == [4, 400]


def test_one_unsampled_release_more_costs_more():
    ledger = _example()
    before = ledger.epsilon(1e-5)
    ledger.add("frequencies", dp_accounting.LaplaceDpEvent(3.0), kind="release")
    assert ledger.epsilon(1e-5) > before


@pytest.mark.parametrize("count", [0, -1, 1.0, True])
def test_counts_are_positive_integers(count):
    with pytest.raises(ValueError, match="`count` must be an integer of at least 1"):
        Ledger().add("training", dp_accounting.GaussianDpEvent(1.0), count=count)


def test_entries_that_cannot_be_stored_are_refused():
    gaussian = dp_accounting.GaussianDpEvent(1.0)
    with pytest.raises(ValueError, match="`event` must be a dp_accounting.DpEvent"):
        Ledger().add("training", 1.0)
    with pytest.raises(ValueError, match="`details` must hold plain"):
        Ledger().add("training", gaussian, clip_norm=object())
    with pytest.raises(ValueError, match="`details` must hold plain"):
        Ledger().add("training", gaussian, clip_norm=float("nan"))
    with pytest.raises(ValueError, match="`overflow_probability` must be a probability"):
        Ledger().add("training", gaussian, overflow_probability=1.5)


def test_text_of_another_version_is_refused():
    for text in ('{"version": 2, "entries": []}', "[]"):
        with pytest.raises(ValueError, match="ledger of version 1"):
            Ledger.from_json(text)


def test_details_of_an_entry_do_not_follow_the_callers_dict():
    details = {"sampling": {"kind": "poisson"}}
    entry = LedgerEntry("training", dp_accounting.GaussianDpEvent(1.0), 1, details)
    details["sampling"]["kind"] = "shuffled"
    assert entry.details == {"sampling": {"kind": "poisson"}}
