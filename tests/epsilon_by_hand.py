"""ε by hand, and that everybody states it."""

import functools

import dp_accounting
import pytest
from dp_accounting import pld

import tfdp

DELTA = 1e-3
N = 40


def poisson(sigma, q, steps):
    event = dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(sigma))
    return dp_accounting.SelfComposedDpEvent(event, steps)


@functools.cache
def by_hand(*events):
    accountant = pld.PLDAccountant()
    for event in events:
        accountant.compose(event)
    return accountant.get_epsilon(DELTA)


def assert_one(model, expected, rel=1e-6):
    """Everything that states an ε states this one."""
    statement = model.privacy_statement(DELTA)
    assert statement.epsilon == pytest.approx(expected, rel=rel)
    assert model.ledger.epsilon(DELTA) == statement.epsilon
    if isinstance(model.optimizer, tfdp.optimizers.DPOptimizer):
        assert model.optimizer.epsilon(DELTA) == statement.epsilon
        assert model.optimizer.ledger == model.ledger
