"""From an attacker's successes to a lower bound on ε, with a confidence."""

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from tfdp import _validate


def epsilon_of_rates(
    hits: int,
    with_record: int,
    false_alarms: int,
    without_record: int,
    delta: float,
    confidence: float = 0.95,
) -> float:
    """A lower bound on ε from a test between two neighbouring data sets.

    Formal guarantees: if the mechanism is (ε, δ)-private, the result exceeds ε with probability
    1 - confidence at most. Rates are bounded by Clopper and Pearson. (ε, δ)-privacy requires hits ≤
    e^ε·false alarms + δ, and the same for the complements (Kairouz, Oh and Viswanath 2015).

    Args:
        hits: times the test said "in" when the record was there.
        with_record: times it was there.
        false_alarms: times the test said "in" when it was not.
        without_record: times it was not.
        delta: δ of the claim.
        confidence: of the bound, in (0, 1).

    Returns:
        A float of at least 0.

    Raises:
        ValueError: if an argument is out of range.
    """
    _check(delta, confidence)
    for name, value, most in (("hits", hits, with_record),
                              ("false_alarms", false_alarms, without_record)):  # fmt: skip
        if not 0 <= value <= most or most < 1:
            raise ValueError(
                f"Argument `{name}` must be a count of at most {most}. Received: {name}={value!r}"
            )
    failure = (1 - confidence) / 2
    lowest = stats.beta.ppf(failure, hits, with_record - hits + 1) if hits else 0.0
    if false_alarms < without_record:
        highest = stats.beta.ppf(1 - failure, false_alarms + 1, without_record - false_alarms)
    else:
        highest = 1.0
    pairs = ((lowest, highest), (1 - highest, 1 - lowest))
    found = [math.log((a - delta) / b) for a, b in pairs if a > delta and b > 0]
    return max(0.0, *found) if found else 0.0


def epsilon_of_scores(
    scores_with: ArrayLike, scores_without: ArrayLike, delta: float, confidence: float = 0.95
) -> float:
    """A lower bound on ε from a score that tends to be higher if the record is in the data.

    The threshold is chosen on one half of the trials, and the bound is computed on the other.

    Args:
        scores_with: scores of independent runs with the record, (m,).
        scores_without: scores of independent runs without it, (m',).
        delta, confidence: as for `epsilon_of_rates`.
    """
    parts = []
    for name, scores in (("scores_with", scores_with), ("scores_without", scores_without)):
        scores = np.asarray(scores, np.float64).reshape(-1)
        if len(scores) < 4 or np.isnan(scores).any():
            raise ValueError(
                f"Argument `{name}` must hold at least 4 numbers. Received: {len(scores)}, "
                f"{np.isnan(scores).sum()} of them not a number"
            )
        parts.append((scores[::2], scores[1::2]))
    (choose_with, use_with), (choose_without, use_without) = parts
    candidates = np.quantile(np.concatenate([choose_with, choose_without]), np.linspace(0, 1, 201))

    def bound(threshold, with_record, without_record):
        return epsilon_of_rates(
            int((with_record > threshold).sum()), len(with_record),
            int((without_record > threshold).sum()), len(without_record), delta, confidence,
        )  # fmt: skip

    best = max(candidates, key=lambda t: bound(t, choose_with, choose_without))
    return bound(best, use_with, use_without)


def epsilon_of_guesses(
    correct: int, guesses: int, canaries: int, delta: float, confidence: float = 0.95
) -> float:
    """A lower bound on ε from guesses about many canaries of one run.

    Formal guarantees: each canary was in the data with probability 1/2, independently; an attacker
    guessed about some of them. If the mechanism is (ε, δ)-private for adding or removing one
    record, the result exceeds ε with probability 1 - confidence at most (Steinke, Nasr and
    Jagielski 2023, "Privacy auditing with one training run", theorem 5.2).

    Args:
        correct: right guesses.
        guesses: guesses made.
        canaries: canaries in all.
        delta, confidence: as for `epsilon_of_rates`.

    Returns:
        A float of at least 0.

    Raises:
        ValueError: if an argument is out of range.
    """
    _check(delta, confidence)
    if not 0 <= correct <= guesses <= canaries or canaries < 1:
        raise ValueError(
            "Arguments `correct`, `guesses` and `canaries` must be counts in rising order. "
            f"Received: correct={correct!r}, guesses={guesses!r}, canaries={canaries!r}"
        )

    def probability(epsilon):
        """Largest probability of so many right guesses under (epsilon, delta)."""
        right = 1 / (1 + math.exp(-epsilon))
        tail = stats.binom.sf(correct - 1, guesses, right)
        below = np.cumsum(stats.binom.pmf(np.arange(correct - 1, -1, -1), guesses, right))
        slack = (below / np.arange(1, correct + 1)).max(initial=0.0)
        return tail + 2 * canaries * delta * slack

    if probability(0.0) > 1 - confidence:
        return 0.0
    low, high = 0.0, 50.0
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if probability(middle) < 1 - confidence else (low, middle)
    return low


def _check(delta, confidence):
    _validate.open_unit("confidence", confidence)
    if not 0 <= delta < 1:
        raise ValueError(f"Argument `delta` must be in [0, 1). Received: delta={delta!r}")
