"""The ledger holds exactly what ran, and survives JSON bit for bit."""

import math

import dp_accounting
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdp.accounting import Ledger, LedgerEntry, epsilon
from tfdp.accounting.events.composition import training_event
from tfdp.accounting.losses.analytic_gaussian import gaussian_epsilon

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


def test_what_is_done_to_an_encoded_entry_changes_none():
    entry = LedgerEntry("a", training_event(1.3, 0.02), 1, {"sampling": {"n": 1}})
    entry.to_dict()["details"]["sampling"]["n"] = 2
    assert entry.details == {"sampling": {"n": 1}}


def _example():
    ledger = Ledger()
    ledger.add("frequencies", dp_accounting.LaplaceDpEvent(3.0))
    ledger.add("training", training_event(1.3, 0.02), count=100, clip_norm=1.0)
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
        ledger.add("training", training_event(1.3, 0.02), clip_norm=1.0)
    assert [(e.label, e.count) for e in ledger.entries] == [("frequencies", 1), ("training", 117)]
    ledger.add("training", training_event(1.3, 0.02), clip_norm=2.0)
    assert [e.count for e in ledger.entries] == [1, 117, 1]
    # Entries that differ in their details only still compose as one event.
    assert ledger.event().events[1] == dp_accounting.SelfComposedDpEvent(
        training_event(1.3, 0.02), 118
    )


def test_merge_adds_and_leaves_the_other_as_it_was():
    ledger, other = _example(), _example()
    ledger.merge(other)
    assert [e.count for e in ledger.entries] == [2, 200]
    assert other == _example() != ledger
    ledger.merge(ledger)
    assert [e.count for e in ledger.entries] == [4, 400]


def test_one_unsampled_release_more_costs_more():
    ledger = _example()
    before = ledger.epsilon(1e-5)
    ledger.add("frequencies", dp_accounting.LaplaceDpEvent(3.0))
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
        LedgerEntry("training", gaussian, 1, {"overflow_probability": 1.5})


def test_text_of_another_version_is_refused():
    for text in ('{"version": 2, "entries": []}', "[]"):
        with pytest.raises(ValueError, match="ledger of version 1"):
            Ledger.from_json(text)


def test_details_of_an_entry_do_not_follow_the_callers_dict():
    details = {"sampling": {"kind": "poisson"}}
    entry = LedgerEntry("training", dp_accounting.GaussianDpEvent(1.0), 1, details)
    details["sampling"]["kind"] = "shuffled"
    assert entry.details == {"sampling": {"kind": "poisson"}}


@pytest.mark.parametrize("accountant", [None, "pld", "rdp"])
@pytest.mark.parametrize(
    "event",
    [
        dp_accounting.GaussianDpEvent(0.0),
        dp_accounting.LaplaceDpEvent(0.0),
        dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.GaussianDpEvent(0.0)),
        dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(0.0), 3),
    ],
)
def test_a_mechanism_without_noise_costs_infinity(event, accountant):
    ledger = Ledger()
    ledger.add("training", event)
    assert ledger.epsilon(1e-5, accountant) == math.inf


def test_delta_is_checked_against_the_largest_data_in_the_ledger():
    ledger = Ledger()
    ledger.add("a", dp_accounting.GaussianDpEvent(2.0), num_examples=100)
    ledger.epsilon(1 / 100)
    sampling = {"sampling": {"num_examples": 1000}}
    ledger.merge(Ledger([LedgerEntry("b", dp_accounting.GaussianDpEvent(2.0), 1, sampling)]))
    assert ledger.num_examples == 1000
    with pytest.raises(ValueError, match="at most 1/num_examples"):
        ledger.epsilon(1 / 100)


def test_cut_off_batches_are_in_the_ledgers_epsilon():
    """By hand: the smallest ε with δ(ε) + (1 + e^ε)·T·P ≤ δ."""
    cut_off = {"overflow_probability": 1e-8}
    ledger = Ledger([LedgerEntry("a", dp_accounting.GaussianDpEvent(2.0), 4, cut_off)])
    delta = 1e-5
    found = ledger.epsilon(delta)
    left = delta - (1 + math.exp(found)) * 4e-8
    exact = gaussian_epsilon(2.0, left, 4)
    assert exact <= found * (1 + 1e-6) and found == pytest.approx(exact, rel=1e-2)
    assert found > gaussian_epsilon(2.0, delta, 4) * 1.01
