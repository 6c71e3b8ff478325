"""Budgets and deltas are checked where they are made."""

import math

import pytest

from tfdp.accounting import PrivacyBudget
from tfdp.accounting.budget import check_delta


@pytest.mark.parametrize("epsilon", [0, -1, math.inf, math.nan, "8", None, True])
def test_epsilon_must_be_positive_and_finite(epsilon):
    with pytest.raises(ValueError, match="`epsilon` must be a positive, finite number. Received"):
        PrivacyBudget(epsilon, 1e-5)


@pytest.mark.parametrize("delta", [0, 1, -1e-5, 2, math.nan, None])
def test_delta_must_be_strictly_between_0_and_1(delta):
    with pytest.raises(ValueError, match="`delta` must be a number strictly between 0 and 1"):
        PrivacyBudget(1.0, delta)


def test_a_budget_cannot_be_changed():
    budget = PrivacyBudget(8, 1e-4)
    with pytest.raises(AttributeError):
        budget.epsilon = 9
    assert hash(budget) == hash(PrivacyBudget(8.0, 1e-4))


def test_delta_above_one_over_n_is_refused_and_equality_is_remarked():
    assert check_delta(1e-4, 6040) == ""
    assert "delta equals 1/n" in check_delta(1 / 6040, 6040)
    with pytest.raises(ValueError, match="`delta` must be at most 1/num_examples"):
        check_delta(1.001 / 6040, 6040)
