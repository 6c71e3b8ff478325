"""Whatever was done to some weights, everybody states the ε that dp_accounting composes by hand."""

import math

import pytest
from random_lives import Life
from spent_by_hand import DELTA

# The weights of a life bring what was charged, or its parts; warnings are tested elsewhere.
pytestmark = pytest.mark.filterwarnings("ignore")


def check(life):
    expected = life.spent.epsilon()
    statement = life.model.privacy_statement(DELTA)
    # PLD of both is rounded up to a grid; what cut batches cost is approached from above.
    assert statement.epsilon == pytest.approx(
        expected, rel=2e-4 if not life.spent.overflow else 1e-3
    )
    assert life.model.ledger.epsilon(DELTA) == statement.epsilon
    assert life.model.optimizer.epsilon(DELTA) == statement.epsilon
    assert life.model.optimizer.ledger == life.model.ledger
    if not math.isinf(expected):
        assert statement.epsilon <= life.meter.shown <= statement.epsilon + 1e-4


@pytest.mark.thorough_after(1)
@pytest.mark.parametrize(
    "seed, acts",
    [
        (0, ("forward_noise", "undo")),
        (1, ("sibling", "resume")),
        (2, ("fit", "store", "release", "freeze_and_reuse")),
    ],
)
def test_lives_state_what_dp_accounting_composes_by_hand(seed, acts, tmp_path):
    life = Life(seed, tmp_path)
    life.live(acts)
    check(life)


@pytest.mark.evidence
@pytest.mark.parametrize("seed", range(10, 210))
def test_two_hundred_random_lives(seed, tmp_path):
    life = Life(seed, tmp_path)
    life.live(life.random_acts(3))
    check(life)
