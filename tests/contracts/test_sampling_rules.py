"""Each kind of sampling costs what its row here says; a kind without a row, or a field, fails."""

import dataclasses
import json

import dp_accounting
import pytest

from tfdp.accounting import Ledger, PrivacyBudget, Sampling, privacy_statement
from tfdp.accounting.charges.mechanisms import ForwardNoise, PrivateTraining, mechanism_from_dict
from tfdp.accounting.charges.sampled_events import EVENTS
from tfdp.accounting.charges.sampling_rules import RULES, SamplingRule
from tfdp.accounting.events.random_allocation import RandomAllocationGaussianDpEvent
from tfdp.accounting.events.visible_sampling import VisiblySampledGaussianDpEvent
from tfdp.optimizers import calibrating

N, B, STEPS, SIGMA = 60, 15, 10, 2.0
GAUSSIAN = dp_accounting.GaussianDpEvent(SIGMA)
SAMPLED = dp_accounting.PoissonSampledDpEvent(0.25, GAUSSIAN)
VISIBLE = VisiblySampledGaussianDpEvent(0.25, SIGMA)
ADDED, BLANKED = "add_or_remove_one", "zero_out"
POISSON = (
    "Poisson sampled, each record with probability 0.25 in each of 10 steps (15 of 60 expected)."
)
SHUFFLED = "shuffled, 15 of 60 in each of 10 steps; not Poisson sampled."
# Of 10 steps, 4 of which are a pass: event, how many of them, adjacency, the sentence; and the same
# steps of forward noise.
ROWS = {
    "poisson": (SAMPLED, 10, ADDED, POISSON, VISIBLE, 10),
    "declared_poisson": (SAMPLED, 10, ADDED, POISSON, VISIBLE, 10),
    "microbatches": (None, None, None, None, VISIBLE, 10),
    "shuffled": (GAUSSIAN, 3, BLANKED, SHUFFLED, GAUSSIAN, 3),
    "declared_shuffled": (GAUSSIAN, 3, BLANKED, SHUFFLED, GAUSSIAN, 3),
    "allocated": (
        RandomAllocationGaussianDpEvent(4, SIGMA), 3, ADDED,
        "random allocation, each record in one of the 4 steps of an epoch (15 of 60 expected in a "
        "step), 10 steps.", GAUSSIAN, 3,
    ),
    "stream": (
        GAUSSIAN, 3, BLANKED,
        "a stream in its order, 15 of 60 in each of 10 steps; each at most 3 times, once a pass.",
        GAUSSIAN, 3,
    ),
    "cyclic_poisson": (
        dp_accounting.PoissonSampledDpEvent(0.5, GAUSSIAN), 5, ADDED,
        "cyclic Poisson sampled: each record is in one of 2 parts, drawn at random. Steps sample "
        "the parts in turn, each record of a part with probability 0.5 (15 of 60 expected in a "
        "step), 10 steps.", GAUSSIAN, 10,
    ),
    "full_batch": (
        GAUSSIAN, 10, ADDED, "every record in every one of 10 steps.", GAUSSIAN, 10,
    ),
}  # fmt: skip
TRAINED = [kind for kind, (event, *_) in ROWS.items() if event is not None]


def drawn(kind, **changes):
    size = N if kind == "full_batch" else B
    passes = 3 if kind == "stream" else None
    bands = 2 if kind == "cyclic_poisson" else None
    return Sampling(kind, N, size, steps_per_epoch=4, passes=passes, bands=bands, **changes)


def trained(kind, **changes):
    return PrivateTraining(SIGMA, 1.0, drawn(kind), N, **changes)


def test_every_kind_has_a_row_and_an_event_that_exists():
    assert list(ROWS) == list(RULES), "add a row to ROWS for each kind, in the order of RULES"
    assert {rule.event for rule in RULES.values()} == set(EVENTS)


@pytest.mark.thorough_after(6)
@pytest.mark.parametrize("kind", TRAINED)
def test_a_kind_costs_and_says_what_is_listed(kind):
    (entry,) = trained(kind).entries(STEPS, "a run")
    adjacency = entry.adjacency or ADDED
    assert (entry.event, entry.count, adjacency) == ROWS[kind][:3]
    statement = privacy_statement(Ledger([entry]), delta=1e-3)
    assert f"Batches: {ROWS[kind][3]}" in " ".join(str(statement).split())
    assert statement.adjacency == adjacency
    is_compared = kind.removeprefix("declared_") == "shuffled"
    assert statement.appearances == (3 if is_compared else None)
    assert (statement.assumed_epsilon is not None) == is_compared


@pytest.mark.parametrize("kind", ROWS)
def test_noisy_copies_cost_what_is_listed(kind):
    (entry,) = ForwardNoise(SIGMA, BLANKED, drawn(kind), N).entries(STEPS, "a run")
    assert (entry.event, entry.count) == ROWS[kind][4:]


@pytest.mark.thorough
@pytest.mark.parametrize("kind", TRAINED)
def test_a_kind_is_calibrated_to_what_it_is_charged(kind):
    setting, budget = trained(kind), PrivacyBudget(2.0, 1e-3)
    sigma = calibrating.noise_multiplier(budget, setting, STEPS, Ledger())
    entries = dataclasses.replace(setting, noise_multiplier=sigma).entries(STEPS, "a run")
    epsilon = Ledger(entries).epsilon(budget.delta, adjacency=setting.adjacency)
    assert 1.99 <= epsilon <= 2.0


def test_batches_that_repeat_a_record_train_nothing():
    with pytest.raises(ValueError, match="a record twice"):
        trained("microbatches")


@pytest.mark.parametrize("kind", ROWS)
def test_only_draws_of_random_size_are_cut(kind):
    size = N if kind == "full_batch" else 20
    cut = drawn(kind, max_batch_size=size).overflow_probability
    vary = ("poisson", "microbatches", "allocated", "cyclic_poisson")
    assert (cut > 0) == (kind.removeprefix("declared_") in vary)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ROWS)
def test_only_what_the_user_declared_is_assumed(kind):
    statement = privacy_statement(
        Ledger(ForwardNoise(SIGMA, BLANKED, drawn(kind), N).entries(STEPS, "a run")), delta=1e-3
    )
    declared = [one for one in statement.assumptions if "drawn as declared" in one]
    assert bool(declared) == kind.startswith("declared_")


@pytest.mark.parametrize("kind", TRAINED)
def test_histories_that_name_a_kind_load(kind):
    stored = json.loads(json.dumps(trained(kind).to_dict()))
    assert stored["sampling"]["kind"] == kind
    assert mechanism_from_dict(stored) == trained(kind)


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(SamplingRule)])
def test_a_new_kind_states_every_field(name):
    fields = {f.name: getattr(RULES["poisson"], f.name) for f in dataclasses.fields(SamplingRule)}
    del fields[name]
    with pytest.raises(TypeError, match=name):
        SamplingRule(**fields)


def test_a_kind_that_is_not_in_the_table_is_refused_wherever_it_comes_from():
    with pytest.raises(ValueError, match="Argument `kind` must be"):
        drawn("fixed")
    with pytest.raises(ValueError, match="Argument `charged_by` must be"):
        dataclasses.replace(RULES["poisson"], charged_by="epoch")
    with pytest.raises(ValueError, match="Argument `saves_as_poisson` compares passes"):
        dataclasses.replace(RULES["poisson"], saves_as_poisson=True)
    (entry,) = trained("poisson").entries(STEPS, "a run")
    entry.details["sampling"]["kind"] = "fixed"
    with pytest.raises(ValueError, match="Argument `kind` must be"):
        privacy_statement(Ledger([entry]), delta=1e-3)


def test_a_new_kind_is_charged_by_its_own_record(monkeypatch):
    """None of the others' rules is taken for it."""
    new = dataclasses.replace(RULES["full_batch"], words="as they come", event="other")
    monkeypatch.setitem(RULES, "new", new)
    with pytest.raises(KeyError, match="other"):
        trained("new")
    monkeypatch.setitem(EVENTS, "other", lambda *_: dp_accounting.LaplaceDpEvent(3.0))
    (entry,) = trained("new").entries(STEPS, "a run")
    assert entry.event == dp_accounting.LaplaceDpEvent(3.0)
    with pytest.raises(KeyError, match="other"):
        calibrating.noise_multiplier(PrivacyBudget(2.0, 1e-3), trained("new"), STEPS, Ledger())
    assert "Batches: as they come" in str(privacy_statement(Ledger([entry]), delta=1e-3))
