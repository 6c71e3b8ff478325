"""Cutting a Poisson batch off costs delta, and the ledger pays it."""

import math

import dp_accounting
import numpy as np
import pytest

from tfdp.accounting import Ledger, LedgerEntry, Sampling
from tfdp.accounting.accountants import compose_accountant, key_of
from tfdp.accounting.events.composition import training_event
from tfdp.accounting.losses.truncation import (
    overflow_probability,
    smallest_capacity,
    truncation_delta,
)

_N, _Q, _STEPS = 6040, 512 / 6040, 1200


@pytest.mark.parametrize(("capacity", "cost"), [(640, 0.017), (700, 2e-10)])
def test_published_costs_of_truncation(capacity, cost):
    # MATH.md section 7.
    overflow = overflow_probability(_N, _Q, capacity)
    assert truncation_delta(8.0, _STEPS, overflow) == pytest.approx(cost, rel=0.02)


def test_truncation_changes_both_neighbours():
    assert truncation_delta(0.0, 10, 1e-6) == pytest.approx(2e-5)
    assert truncation_delta(1.0, 10, 0.0) == 0.0
    assert truncation_delta(1e4, 10, 1e-300) == math.inf


def test_overflow_is_strictly_more_than_the_capacity():
    # Two records, each drawn with probability 1/2.
    assert overflow_probability(2, 0.5, 1) == pytest.approx(0.25)
    assert overflow_probability(2, 0.5, 2) == 0.0
    assert overflow_probability(2, 0.5, None) == 0.0


def test_smallest_capacity_is_smallest():
    capacity = smallest_capacity(_N, _Q)
    assert overflow_probability(_N, _Q, capacity) <= 1e-20
    assert overflow_probability(_N, _Q, capacity - 1) > 1e-20
    assert smallest_capacity(5, 1.0) == 5


def test_samplings_know_their_overflow():
    def sampling(**kw):
        return Sampling(**{"kind": "poisson", "num_examples": _N, "expected_batch_size": 512, **kw})

    # Of the larger of two neighbours: at a capacity of n, one record more may not fit.
    of_larger = overflow_probability(_N + 1, _Q, 640)
    assert sampling(max_batch_size=640).overflow_probability == of_larger
    full = sampling(expected_batch_size=_N, max_batch_size=_N)
    assert full.overflow_probability == 1.0
    assert sampling(expected_batch_size=_N, max_batch_size=_N + 1).overflow_probability == 0.0
    assert sampling().overflow_probability == 0.0
    assert sampling(kind="shuffled", max_batch_size=640).overflow_probability == 0.0


def _ledger(overflow):
    details = {"kind": "training", "overflow_probability": overflow}
    return Ledger([LedgerEntry("training", training_event(2.0, _Q), _STEPS, details)])


@pytest.mark.parametrize("overflow", [1e-13, 1e-11, 3e-11])
def test_the_stated_epsilon_and_delta_pay_for_truncation(overflow):
    delta = 1e-4
    stated = _ledger(overflow).epsilon(delta)
    composed = compose_accountant(*key_of(_ledger(0.0).event(), "pld", "add_or_remove_one"))

    def total(epsilon):
        return composed.get_delta(epsilon) + truncation_delta(epsilon, _STEPS, overflow)

    assert stated > _ledger(0.0).epsilon(delta)
    assert total(stated) <= delta * (1 + 1e-9)
    assert total(stated) > delta * 0.99 or total(stated * 0.999) > delta


def test_every_run_of_every_entry_pays_for_its_own_truncation():
    # 1,200 runs at 2e-11 and one at 1e-8 are one charge of 3.4e-8, and the smallest ε that pays.
    ledger = _ledger(2e-11)
    cut_off = {"overflow_probability": 1e-8}
    ledger.merge(Ledger([LedgerEntry("noise", dp_accounting.GaussianDpEvent(9.0), 1, cut_off)]))
    composed = compose_accountant(*key_of(ledger.event(), "pld", "add_or_remove_one"))
    delta, stated = 1e-4, ledger.epsilon(1e-4)

    def total(epsilon):
        return composed.get_delta(epsilon) + (1 + math.exp(epsilon)) * 3.4e-8

    assert total(stated) <= delta * (1 + 1e-9) and total(stated * 0.99) > delta


def test_truncation_beyond_delta_is_not_private():
    assert _ledger(1e-6).epsilon(1e-4) == math.inf
    assert _ledger(1.0).epsilon(1e-4) == math.inf


def test_without_truncation_nothing_changes():
    ledger = _ledger(0.0)
    plain = Ledger()
    plain.add("training", training_event(2.0, _Q), count=_STEPS)
    assert ledger.epsilon(1e-4) == plain.epsilon(1e-4)


def test_a_poisson_simulation_overflows_as_often_as_stated():
    # 20,000 draws; a false alarm at 5 standard deviations has probability below 1e-6.
    draws = np.random.default_rng(1).binomial(100, 0.1, size=20_000) > 14
    expected = overflow_probability(100, 0.1, 14)
    spread = math.sqrt(expected * (1 - expected) / 20_000)
    assert abs(draws.mean() - expected) < 5 * spread


@pytest.mark.parametrize(
    ("arguments", "named"),
    [((-1.0, 1, 0.1), "epsilon"), ((1.0, -1, 0.1), "steps"), ((1.0, 1, 1.1), "overflow_prob"),
     ((math.nan, 1, 0.1), "epsilon"), ((1.0, math.nan, 0.1), "steps"),
     ((1.0, 1, math.nan), "overflow_prob")],
)  # fmt: skip
def test_arguments_out_of_range_are_named(arguments, named):
    with pytest.raises(ValueError, match=f"`{named}"):
        truncation_delta(*arguments)
