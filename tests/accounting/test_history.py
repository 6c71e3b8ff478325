"""A history of charges: nothing that ran vanishes, copies cost once."""

import gc
import json
import weakref

import dp_accounting
import pytest

from tfdp.accounting import LedgerEntry, Sampling, epsilon
from tfdp.accounting.charges.history import ChargeHistory
from tfdp.accounting.charges.mechanisms import (
    ForwardNoise,
    NoPrivacy,
    Notes,
    PrivateTraining,
    ReleasedData,
    mechanism_from_dict,
)
from tfdp.errors import PrivacyError

_POISSON = Sampling("poisson", 1000, 20, max_batch_size=60)
_SHUFFLED = Sampling("shuffled", 1000, 20, steps_per_epoch=50)


def _training(sampling=_POISSON, **changes):
    return PrivateTraining(1.0, 1.0, sampling, 1000, **changes)


_MECHANISMS = [
    _training(),
    _training(None, budget=(3.0, 1e-4, 50), selection={"name": "FEST", "k": 3}),
    _training(_SHUFFLED, notes=Notes(("a",), ("b", "c"), ("d",)), unit="one user"),
    ForwardNoise(1.5, "zero_out", _SHUFFLED, 1000, layers=({"name": "n", "clip_norm": 1.0},)),
    ForwardNoise(0.0, "replace_one", None, unprotected=("dense/kernel",), bypasses=("x",)),
    ReleasedData(Notes(assumptions=("b",))),
    NoPrivacy(),
]


@pytest.mark.parametrize("mechanism", _MECHANISMS, ids=lambda m: m.kind)
def test_a_mechanism_survives_storage(mechanism):
    assert mechanism_from_dict(mechanism.to_dict()) == mechanism
    history = ChargeHistory()
    history.count(history.start(mechanism), 7)
    other = ChargeHistory()
    other.merge_json(history.to_json())
    assert other.runs == history.runs == [(mechanism, 7)]
    assert other.ledger() == history.ledger() and other.notes == history.notes


@pytest.mark.parametrize(
    "damage",
    [
        lambda state, run: run.update(steps=float("nan")),
        lambda state, run: run.update(steps=-7),
        lambda state, run: run.update(steps="7"),
        lambda state, run: run.pop("steps"),
        lambda state, run: run["mechanism"].pop("noise_multiplier"),
        lambda state, run: run["mechanism"].update(noise_multiplier="1"),
        lambda state, run: run["mechanism"].update(sampling=[]),
        lambda state, run: state.pop("releases"),
        lambda state, run: state.update(runs=None),
    ],
)
def test_a_damaged_history_is_refused_and_charges_stay_as_they_were(damage):
    history = ChargeHistory()
    history.count(history.start(_training()), 7)
    state = json.loads(history.to_json())
    damage(state, *state["runs"].values())
    other = ChargeHistory()
    other.count(other.start(_training()), 3)
    with pytest.raises(ValueError, match="damaged|must be"):
        other.merge_json(json.dumps(state))
    with pytest.raises(ValueError, match="damaged"):
        other.merge_json(history.to_json()[:-1])
    assert [steps for _, steps in other.runs] == [3]


def test_a_kind_of_a_later_version_is_refused():
    with pytest.raises(ValueError, match="cannot account for"):
        mechanism_from_dict({"kind": "quantum"})


def test_steps_of_a_counter_that_nobody_else_holds_still_cost():
    class Counter:
        def __init__(self, history):
            self.history, self.run = history, history.start(_training())

        def flush(self):
            self.history.count(self.run, 5)

    history = ChargeHistory()
    counter = Counter(history)
    history.attach(counter)
    gone = weakref.ref(counter)
    del counter
    gc.collect()
    assert gone() is not None and history.runs == [(_training(), 5)]


def test_steps_of_a_counter_are_read_wherever_its_history_went():
    class Counter:
        def __init__(self, history):
            self.history, self.run = history, history.start(_training())
            history.attach(self)

        def flush(self):
            self.history.count(self.run, 5)

    first, second, third = ChargeHistory(), ChargeHistory(), ChargeHistory()
    for history in (first, second):
        Counter(history)
    third.join(second)
    first.join(third)
    Counter(second)  # of who holds an older name of the history
    for history in (first, second, third):
        assert sum(steps for _, steps in history.runs) == 15


def test_the_later_of_two_copies_counts():
    history, copy = ChargeHistory(), ChargeHistory()
    run = history.start(_training())
    history.count(run, 5)
    copy.merge_json(history.to_json())
    history.count(run, 9)
    copy.merge_json(history.to_json())
    assert copy.runs == [(_training(), 9)]


def test_copies_cost_once_and_counts_never_fall():
    history = ChargeHistory()
    run = history.start(_training())
    history.count(run, 5)
    early = history.to_json()
    history.count(run, 9)
    history.count(run, 3)
    history.merge_json(early)
    assert history.runs == [(_training(), 9)]
    other = ChargeHistory()
    other.merge_json(history.to_json())
    other.count(other.start(_training()), 2)
    history.join(other)
    assert sum(steps for _, steps in history.runs) == 11 and history.runs == other.runs


def test_equal_releases_cost_once_and_others_each():
    history = ChargeHistory()
    for name in ("a", "a", "b"):
        history.charge(LedgerEntry("x", dp_accounting.GaussianDpEvent(2.0), 1, {"release": name}))
    assert sum(e.count for e in history.ledger().entries) == 2


def test_releases_go_where_their_history_goes():
    releases = [LedgerEntry(name, dp_accounting.GaussianDpEvent(2.0)) for name in "abc"]
    first, second, third = ChargeHistory(), ChargeHistory(), ChargeHistory()
    for history, release in zip((first, second, third), releases, strict=True):
        history.charge(release)
    first.join(second)
    second.merge_json(third.to_json())
    for history in (first, second):
        assert {e.label for e in history.ledger().entries} == {"a", "b", "c"}


def test_what_is_charged_beside_a_run_is_everything_but_its_steps():
    history = ChargeHistory()
    run, other = (history.start(_training()) for _ in range(2))
    seen = [history.charges_beside(run)]
    history.count(run, 5)
    assert history.charges_beside(run) == seen[0]
    history.count(other, 1)
    seen.append(history.charges_beside(run))
    history.charge(LedgerEntry("x", dp_accounting.GaussianDpEvent(2.0)))
    seen.append(history.charges_beside(run))
    assert seen[0] < seen[1] < seen[2]


def test_what_is_charged_beside_a_run_asks_every_counter_but_its_own():
    class Counter:
        def __init__(self, history):
            self.history, self.run, self.flushed = history, history.start(_training()), 0
            history.attach(self)

        def flush(self):
            self.flushed += 1
            self.history.count(self.run, 5)

    history = ChargeHistory()
    own, other = Counter(history), Counter(history)
    assert history.charges_beside(own.run) == 5
    assert (own.flushed, other.flushed) == (0, 1)


def test_looking_ahead_goes_on_with_the_pass_of_the_run():
    history = ChargeHistory()
    run = history.start(_training(_SHUFFLED))
    history.count(run, 10)
    (entry,) = history.ledger((run, _training(_SHUFFLED), 40)).entries
    assert entry.count == 1  # the same pass
    (entry,) = history.ledger((run, _training(_SHUFFLED), 41)).entries
    assert entry.count == 2
    assert sum(e.count for e in history.ledger(("new", _training(_SHUFFLED), 40)).entries) == 2


def test_each_run_of_shuffled_batches_begins_its_own_pass():
    history = ChargeHistory()
    for _ in range(3):
        history.count(history.start(_training(_SHUFFLED)), 1)
    three = dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(1.0), 3)
    assert history.ledger().epsilon(1e-4) == epsilon(three, 1e-4, adjacency="zero_out")


def test_forward_noise_on_cut_off_batches_costs_delta():
    """ε by hand with δ − (1 + e^ε)·T·P, which is more than without."""
    sampling = Sampling("poisson", 1000, 100, max_batch_size=150)
    ledgers = []
    for one in (sampling, Sampling("poisson", 1000, 100)):
        history = ChargeHistory()
        history.count(history.start(ForwardNoise(2.0, "zero_out", one, 1000)), 6)
        ledgers.append(history.ledger())
    (cut,) = ledgers[0].entries
    assert cut.overflow_probability == sampling.overflow_probability > 1e-8
    assert ledgers[0].epsilon(1e-4) > ledgers[1].epsilon(1e-4)


@pytest.mark.parametrize("first", ["allocated", "copies"])
def test_a_run_without_a_rule_beside_earlier_ones_is_refused_before_it_begins(first):
    allocated = _training(Sampling("allocated", 1000, 20, steps_per_epoch=50))
    copies = ForwardNoise(1.5, "replace_one", _SHUFFLED, 1000)
    before, then = (allocated, copies) if first == "allocated" else (copies, allocated)
    history = ChargeHistory()
    history.refuse_without_rule(before)
    history.count(history.start(before), 7)
    history.refuse_without_rule(before)
    with pytest.raises(PrivacyError, match="No accountant has a rule") as raised:
        history.refuse_without_rule(then)
    for words in ("training on allocated batches", "forward noise on shuffled batches"):
        assert words in str(raised.value)
    assert history.runs == [(before, 7)]
    with pytest.raises(ValueError, match="has no rule"):  # which is what would come too late
        history.ledger(ahead=("another", then, 1)).epsilon(1e-3)
