"""The statement says what is true of what ran, and why not more."""

import json
import math

import dp_accounting
import pytest

from tfdp.accounting import Ledger, LedgerEntry, PrivacyBudget, Sampling, epsilon, privacy_statement
from tfdp.accounting.charges.history import ChargeHistory
from tfdp.accounting.charges.mechanisms import Notes, PrivateTraining
from tfdp.accounting.losses.truncation import truncation_delta
from tfdp.accounting.rounding import round_down, round_up, round_up_to

_N, _B, _SIGMA, _STEPS, _DELTA = 1000, 50, 2.0, 60, 1e-4


def _sampling(kind="poisson", **changes):
    fields = {"num_examples": _N, "expected_batch_size": _B, "steps_per_epoch": 20}
    return Sampling(kind, **{**fields, **changes})


def _training(sampling, sigma=_SIGMA, **changes):
    return PrivateTraining(sigma, 1.0, sampling, _N, **changes)


def _ledger(*samplings, steps=_STEPS, sigma=_SIGMA):
    history = ChargeHistory()
    history.charge(LedgerEntry("frequencies", dp_accounting.LaplaceDpEvent(5.0)))
    for sampling in samplings or [_sampling()]:
        history.count(history.start(_training(sampling, sigma)), steps)
    return history.ledger()


def _state(*samplings, **changes):
    ledger = changes.pop("ledger", None) or _ledger(*samplings)
    return privacy_statement(ledger, **{"delta": _DELTA, "unit": "one user", **changes})


def _text(statement):
    return " ".join(str(statement).split())


def test_the_ledgers_epsilon_is_stated():
    statement = _state()
    assert statement.epsilon == _ledger().epsilon(_DELTA)
    assert statement.assumed_epsilon is None and statement.steps == _STEPS
    text = _text(statement)
    assert "delta = 0.0001" in text
    assert "Unit of privacy: one user, of 1000." in text
    assert "add_or_remove_one" in text and "PLD" in text
    assert "60 x Gaussian noise of multiplier 2, Poisson sampled with probability 0.05" in text
    assert "frequencies: 1 x Laplace noise of multiplier 5" in text
    assert 8 <= len(str(statement).splitlines()) <= 25


def test_printed_epsilons_are_never_below_the_true_ones():
    statement = _state()
    printed = float(_text(statement).split("epsilon = ")[1].split(",")[0])
    assert statement.epsilon <= printed <= statement.epsilon * 1.001
    for value in (0.83700000000001, 7.996 + 1e-12, 1e-7 / 3, 123456.7, 8.0, 0.1 + 0.2):
        assert value <= float(round_up(value)) <= value * 1.001
        assert value <= round_up_to(value, 4) <= value + 1e-4
        assert value >= float(round_down(value)) >= value * (1 - 1e-5)
    assert round_up(8.0) == "8" and round_up(7.9990000001) == "8" and round_up(0.0) == "0"
    assert round_up(1e-5) == "1e-05" and round_down(1.2) == "1.2" and round_up(math.inf) == "inf"


def test_no_printed_number_reads_stronger_than_it_is():
    sampling = _sampling(expected_batch_size=1000 / 3, max_batch_size=480)
    ledger, delta = _ledger(sampling, sigma=1.23456789), 8.27815e-05
    statement = _state(ledger=ledger, delta=delta, budget=PrivacyBudget(50.0, delta))
    text = _text(statement)
    assert text.count("delta = 8.279e-05") == 2 and "* p + 8.279e-05." in text
    assert text.count("probability 0.333334") == 2 and "multiplier 1.23456," in text
    cut = float(text.split("above includes ")[1].split()[0])
    assert cut * 0.999 <= statement.overflow_delta <= cut


@pytest.mark.parametrize("adjacency, change", [
    ("add_or_remove_one", "is added or removed"),
    ("replace_one", "is replaced by any other"),
    ("zero_out", "is blanked out (its contribution becomes zero) or restored"),
])  # fmt: skip
def test_the_definition_is_about_sets_of_outcomes_with_delta_added(adjacency, change):
    ledger = Ledger()
    ledger.add("release", dp_accounting.GaussianDpEvent(2.0))
    statement = _state(ledger=ledger, adjacency=adjacency)
    assert (
        f"If one user {change}, the probability p of any set of outcomes rises to at most "
        f"e^{round_up(statement.epsilon)} * p + 0.0001."
    ) in _text(statement)


def test_the_number_of_units_counts_as_public():
    said = f"Assumed, not checked: - the number of units of privacy, {_N}, is public"
    assert said in _text(_state()) and _state().assumptions == ()


@pytest.mark.parametrize("kind", ["shuffled", "declared_shuffled"])
def test_shuffled_batches_cost_what_they_cost_without_amplification(kind):
    statement = _state(_sampling(kind))
    unamplified = dp_accounting.ComposedDpEvent(
        [
            dp_accounting.LaplaceDpEvent(5.0),
            dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(_SIGMA), 3),
        ]
    )
    expected = epsilon(unamplified, _DELTA, adjacency="zero_out")
    assert statement.epsilon == pytest.approx(expected, rel=1e-12)
    assert statement.epsilon == _ledger(_sampling(kind)).epsilon(_DELTA)
    assert statement.assumed_epsilon == _ledger().epsilon(_DELTA) < statement.epsilon
    assert (statement.adjacency, statement.appearances) == ("zero_out", 3)
    text = _text(statement)
    assert "The pipeline did not sample in this way" in text
    assert "Batches: shuffled" in text and "not Poisson sampled" in text
    assert "Poisson sampled with probability" not in text


def test_shuffled_batches_under_replace_one_keep_it():
    replaced = _state(_sampling("shuffled"), adjacency="replace_one")
    assert replaced.adjacency == "replace_one"
    assert replaced.epsilon > _state(_sampling("shuffled")).epsilon


def test_poisson_and_shuffled_runs_are_told_apart():
    statement = _state(_sampling(), _sampling("shuffled"))
    text = _text(statement)
    assert "Batches: Poisson sampled" in text and "Batches: shuffled" in text
    assert statement.steps == 2 * _STEPS and statement.appearances == 3
    assert statement.epsilon > max(_state().epsilon, _state(_sampling("shuffled")).epsilon)


def test_batches_of_unknown_origin_cost_infinity():
    statement = _state(_sampling(), None)
    assert statement.epsilon == math.inf == _ledger(None).epsilon(_DELTA)
    assert "NO FINITE EPSILON CAN BE STATED" in str(statement)
    assert "does not know how the batches of some training steps were drawn" in _text(statement)
    assert statement.to_dict()["epsilon"] == "infinity"


def test_without_training_no_sampling_is_needed():
    ledger = Ledger()
    ledger.add("forward noise", dp_accounting.GaussianDpEvent(2.0), 3)
    statement = _state(ledger=ledger)
    assert statement.epsilon == ledger.epsilon(_DELTA) and statement.num_examples is None


def test_cut_off_batches_are_charged():
    sampling = _sampling(max_batch_size=100)
    statement = _state(sampling)
    spent = truncation_delta(statement.epsilon, _STEPS, sampling.overflow_probability)
    assert spent > 0 and statement.overflow_delta == pytest.approx(spent)
    assert statement.epsilon == _ledger(sampling).epsilon(_DELTA) > _state().epsilon
    assert "holds at most 100 records" in _text(statement)
    tuned = LedgerEntry("best of some", dp_accounting.GaussianDpEvent(2.0), 1, {
        "one_run": [e.to_dict() for e in _ledger(sampling).entries], "overflow_probability": 1e-9,
    })  # fmt: skip
    assert "holds at most 100 records" in _text(_state(ledger=Ledger([tuned])))
    others = _sampling(), _sampling(max_batch_size=_N), _sampling("shuffled")
    assert "holds at most 100 records" in _text(_state(*others, sampling))


def test_an_epsilon_that_cut_off_batches_make_infinite_says_so_and_what_it_would_be():
    cut, whole = (_ledger(_sampling(max_batch_size=size), sigma=0.25) for size in (150, _N))
    statement = _state(ledger=cut)
    assert math.isinf(statement.epsilon) and math.isfinite(whole.epsilon(_DELTA))
    assert f"{round_up(whole.epsilon(_DELTA))} without cutting" in _text(statement)
    assert "larger `max_batch_size`" in _text(statement)
    assert not any("cutting" in why for why in _state(ledger=_ledger(sigma=0.0)).unstated)


def test_assumptions_gaps_and_fixed_seeds_are_said():
    notes = Notes(("labels",), ("item frequencies are public",), ("microbatches of 16",))
    text = _text(_state(_sampling("declared_poisson", seeded=True), notes=notes))
    assert "Not covered by this guarantee: - labels" in text
    assert "- item frequencies are public" in text
    assert "drawn as declared (poisson)" in text
    assert "The batches were drawn from a fixed seed" in text
    assert "- microbatches of 16" in text
    assert "fixed seed" not in _text(_state())


def test_the_budget_is_compared_with_what_is_true():
    budget = PrivacyBudget(_state().epsilon * 1.01, _DELTA)
    assert "; kept." in _text(_state(budget=budget))
    assert "NOT KEPT" in _text(_state(_sampling("shuffled"), budget=budget))


def test_delta_of_one_over_n_is_remarked_and_above_it_refused():
    assert "delta equals 1/n" in _text(_state(delta=1 / _N))
    for n in (None, 10):  # what the caller says cannot make the data smaller
        with pytest.raises(ValueError, match="at most 1/num_examples"):
            _state(delta=1.1 / _N, num_examples=n)


def test_training_without_noise_is_not_private():
    for kind in ("poisson", "shuffled"):
        statement = _state(ledger=_ledger(_sampling(kind), sigma=0.0))
        assert statement.epsilon == math.inf
        assert "NOT PRIVATE" in str(statement)
        assert json.loads(statement.to_json())["epsilon"] == "infinity"


def test_json_holds_the_whole_statement():
    fields = json.loads(_state(budget=PrivacyBudget(8, 1e-4)).to_json())
    assert fields["epsilon"] == _state().epsilon
    assert fields["entries"] == [entry.to_dict() for entry in _ledger().entries]
    assert fields["sampling"] == _sampling().to_dict()
    assert fields["budget"] == {"epsilon": 8.0, "delta": 1e-4}
