"""The statement says what is true of what ran, and why not more."""

import json
import math

import dp_accounting
import pytest

from tfdp.accounting import (
    Ledger,
    PrivacyBudget,
    Sampling,
    epsilon,
    privacy_statement,
    training_event,
    truncation_delta,
)

_N, _B, _SIGMA, _STEPS, _DELTA = 1000, 50, 2.0, 60, 1e-4


def _sampling(kind="poisson", **changes):
    fields = {"num_examples": _N, "expected_batch_size": _B, "steps_per_epoch": 20}
    return Sampling(kind, **{**fields, **changes})


def _ledger(q=_B / _N, **details):
    ledger = Ledger()
    ledger.add("frequencies", dp_accounting.LaplaceDpEvent(5.0), kind="release")
    ledger.add("training", training_event(_SIGMA, q), _STEPS, kind="training", **details)
    return ledger


def _state(ledger=None, **changes):
    arguments = {
        "delta": _DELTA,
        "num_examples": _N,
        "sampling": _sampling(),
        "steps": _STEPS,
        "unit": "one user",
        **changes,
    }
    return privacy_statement(_ledger() if ledger is None else ledger, **arguments)


def _text(statement):
    return " ".join(str(statement).split())


def test_poisson_batches_state_the_ledgers_epsilon():
    statement = _state()
    assert statement.epsilon == _ledger().epsilon(_DELTA)
    assert statement.assumed_epsilon is None
    text = _text(statement)
    assert "delta = 0.0001" in text
    assert "Unit of privacy: one user, of 1000." in text
    assert "add_or_remove_one" in text and "PLD" in text
    assert "60 x Gaussian noise of multiplier 2, Poisson sampled with probability 0.05" in text
    assert "frequencies: 1 x Laplace noise of multiplier 5" in text
    assert 8 <= len(str(statement).splitlines()) <= 25


def test_the_printed_epsilon_is_never_below_the_true_one():
    statement = _state()
    printed = float(_text(statement).split("epsilon = ")[1].split(",")[0])
    assert statement.epsilon <= printed <= statement.epsilon * 1.001


@pytest.mark.parametrize("kind", ["shuffled", "asserted_shuffled"])
def test_shuffled_batches_state_the_epsilon_without_amplification(kind):
    statement = _state(sampling=_sampling(kind))
    unamplified = dp_accounting.ComposedDpEvent(
        [
            dp_accounting.LaplaceDpEvent(5.0),
            dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(_SIGMA), 3),
        ]
    )
    expected = epsilon(unamplified, _DELTA, adjacency="zero_out")
    assert statement.epsilon == pytest.approx(expected, rel=1e-12)
    assert statement.assumed_epsilon == _ledger().epsilon(_DELTA)
    assert statement.epsilon > statement.assumed_epsilon
    assert (statement.adjacency, statement.appearances) == ("zero_out", 3)
    text = _text(statement)
    assert "assumes Poisson sampling which the pipeline did not do" in text
    assert "not Poisson sampled" in text


def test_shuffled_batches_under_replace_one_keep_it():
    zeroed = _state(sampling=_sampling("shuffled"))
    replaced = _state(sampling=_sampling("shuffled"), adjacency="replace_one")
    assert replaced.adjacency == "replace_one"
    assert replaced.epsilon > zeroed.epsilon


def test_an_entry_is_judged_by_its_own_sampling():
    own = _ledger(sampling=_sampling("shuffled").to_dict())
    assert _state(own).epsilon == _state(sampling=_sampling("shuffled")).epsilon


def test_the_caller_can_say_how_often_a_record_appears():
    once = _state(sampling=_sampling("shuffled"), epochs_of_unamplified=1)
    assert once.appearances == 1
    assert once.epsilon < _state(sampling=_sampling("shuffled")).epsilon


def test_batches_drawn_in_an_unknown_way_have_no_epsilon():
    statement = _state(sampling=None)
    assert statement.epsilon is None
    assert "NO EPSILON CAN BE STATED" in str(statement)
    assert "not known how the training batches were drawn" in _text(statement)
    assert statement.to_dict()["epsilon"] is None


def test_steps_that_were_not_charged_have_no_epsilon():
    statement = _state(steps=_STEPS + 1)
    assert statement.epsilon is None
    assert "the ledger holds 60" in _text(statement)


def test_batches_larger_than_charged_have_no_epsilon():
    statement = _state(sampling=_sampling(expected_batch_size=100))
    assert statement.epsilon is None
    assert "drawn at 0.1" in _text(statement)
    full = Sampling("full_batch", _N, _N)
    assert _state(sampling=full).epsilon is None
    assert _state(_ledger(q=1.0), sampling=full).epsilon == _ledger(q=1.0).epsilon(_DELTA)


def test_without_training_no_sampling_is_needed():
    ledger = Ledger()
    ledger.add("forward noise", dp_accounting.GaussianDpEvent(2.0), 3, kind="forward_noise")
    statement = _state(ledger, sampling=None, steps=0)
    assert statement.epsilon == ledger.epsilon(_DELTA)


def test_truncation_is_charged_even_if_the_ledger_does_not_mention_it():
    sampling = _sampling(max_batch_size=100)
    statement = _state(sampling=sampling)
    spent = truncation_delta(statement.epsilon, _STEPS, sampling.overflow_probability)
    assert spent > 0
    assert statement.overflow_delta == pytest.approx(spent)
    noted = _state(_ledger(overflow_probability=sampling.overflow_probability), sampling=sampling)
    assert statement.epsilon == noted.epsilon > _state().epsilon
    assert "cut off at 100 records" in _text(statement)


def test_what_is_asserted_uncovered_and_seeded_is_said():
    statement = _state(
        sampling=_sampling("asserted_poisson", seeded=True),
        uncovered=("labels",),
        asserted=("item frequencies are public",),
        remarks=("microbatches of 16",),
    )
    text = _text(statement)
    assert "Not covered by this guarantee: - labels" in text
    assert "- item frequencies are public" in text
    assert "drawn as declared (poisson)" in text
    assert "A fixed seed drew the batches" in text
    assert "- microbatches of 16" in text
    assert "fixed seed" not in _text(_state())


def test_the_budget_is_compared_with_what_is_true():
    budget = PrivacyBudget(_state().epsilon * 1.01, _DELTA)
    assert "; kept." in _text(_state(budget=budget))
    assert "NOT KEPT" in _text(_state(budget=budget, sampling=_sampling("shuffled")))


def test_delta_of_one_over_n_is_remarked_and_above_it_refused():
    assert "delta equals 1/n" in _text(_state(delta=1 / _N))
    with pytest.raises(ValueError, match="at most 1/num_examples"):
        _state(delta=1.1 / _N)


def test_training_without_noise_is_not_private():
    ledger = Ledger()
    ledger.add("training", training_event(0.0, _B / _N), _STEPS, kind="training")
    for kind in ("poisson", "shuffled"):
        statement = _state(ledger, sampling=_sampling(kind))
        assert statement.epsilon == math.inf
        assert "NOT PRIVATE" in str(statement)
        assert json.loads(statement.to_json())["epsilon"] == "infinity"


def test_json_holds_the_whole_statement():
    fields = json.loads(_state(budget=PrivacyBudget(8, 1e-4)).to_json())
    assert fields["epsilon"] == _state().epsilon
    assert fields["entries"] == [entry.to_dict() for entry in _ledger().entries]
    assert fields["sampling"] == _sampling().to_dict()
    assert fields["budget"] == {"epsilon": 8.0, "delta": 1e-4}
