"""The smallest noise that meets a budget after the other charges."""

import functools
import itertools
import json
import math
from collections.abc import Sequence
from typing import Any

import dp_accounting

from tfdp import _validate
from tfdp.accounting.accountants import (
    ACCOUNTANTS,
    best_accountant,
    epsilon,
    is_beyond_memory,
)
from tfdp.accounting.budget import PrivacyBudget
from tfdp.accounting.events.adjacency import ADJACENCIES
from tfdp.accounting.events.composition import MECHANISMS, compose, training_event
from tfdp.accounting.events.description import describe
from tfdp.accounting.events.random_allocation import allocation_event
from tfdp.accounting.events.registry import event_from_dict, event_to_dict
from tfdp.accounting.losses.gdp import LARGEST_NOISE, gdp_clt_noise_multiplier
from tfdp.errors import BudgetError

_TIGHTNESS = 1e-3  # epsilon of the result is within this share of the budget
_NARROW = 1e-5  # a bracket of this relative width is one of a jump, between two accountants


def calibrate_noise_multiplier(
    budget: PrivacyBudget,
    sampling_probability: float,
    steps: int,
    accountant: str = "pld",
    adjacency: str = "add_or_remove_one",
    other_events: Sequence[dp_accounting.DpEvent] = (),
    extra_delta: float = 0.0,
    mechanism: Any = "gaussian",
    max_records_per_unit: int = 1,
) -> float:
    """The smallest noise multiplier whose training, with the other events, meets a budget.

    Formal guarantees: `other_events` composed with `steps` training steps at the result have
    epsilon at most `budget.epsilon` at `budget.delta - extra_delta`, by the same accountant that
    states epsilon later. This epsilon exceeds 99.9% of the budget, unless less noise than float64
    can represent would do.

    Args:
        budget: a `PrivacyBudget`.
        sampling_probability: q in (0, 1]; 1 means no sampling.
        steps: number of training steps.
        accountant: "pld", "rdp", or None: PLD, or RDP where PLD has no rule.
        adjacency: as for `tfdp.accounting.epsilon`.
        other_events: DpEvents that the same budget must pay for.
        extra_delta: delta already promised elsewhere, e.g.
            `truncation_delta(budget.epsilon, steps, overflow_probability)`.
        mechanism: what a step is, as for `training_event`.
        max_records_per_unit: k, if single records are sampled and the unit of privacy is a person
            with at most k records (MATH.md section 11).

    Returns:
        The noise multiplier: standard deviation of the noise on the *sum* of clipped gradients,
        over the clip norm.

    Raises:
        BudgetError: if no noise multiplier meets the budget; the message shows what used it up.
        ValueError: if an argument is out of range or an event has no rule.
    """
    q = _validate.probability("sampling_probability", sampling_probability)
    steps = _validate.count("steps", steps)
    _validate.one_of("mechanism", mechanism, MECHANISMS)
    k = _validate.count("max_records_per_unit", max_records_per_unit)
    return _calibrate(
        (training_event, q, mechanism, k), min(k * q, 1.0), steps, steps,
        budget, accountant, adjacency, other_events, extra_delta, max(k * q, 1.0),
    )  # fmt: skip


def calibrate_random_allocation(
    budget: PrivacyBudget,
    num_steps: int,
    epochs: int,
    accountant: str = "pld",
    adjacency: str = "add_or_remove_one",
    other_events: Sequence[dp_accounting.DpEvent] = (),
    extra_delta: float = 0.0,
) -> float:
    """As `calibrate_noise_multiplier`, for epochs in which each record joins one random step.

    Args:
        budget: a `PrivacyBudget`.
        num_steps: T, the steps of an epoch.
        epochs: number of epochs; an epoch counts as soon as it begins.
        accountant, adjacency, other_events, extra_delta: as for `calibrate_noise_multiplier`; "rdp"
            does not amplify by allocation.

    Returns:
        The noise multiplier.

    Raises:
        BudgetError, ValueError: as `calibrate_noise_multiplier`.
    """
    num_steps = _validate.count("num_steps", num_steps)
    epochs = _validate.count("epochs", epochs)
    return _calibrate(
        (allocation_event, num_steps), 1 / num_steps, epochs * num_steps, epochs,
        budget, accountant, adjacency, other_events, extra_delta,
    )  # fmt: skip


def _calibrate(
    make, q, steps, count, budget, accountant, adjacency, other_events, extra_delta, sensitivity=1.0
):  # fmt: skip
    """σ at which `count` events make[0](σ, *make[1:]) meet the budget.

    q, steps and sensitivity, of Poisson samples with about the same cost, are for a first guess.
    """
    if not isinstance(budget, PrivacyBudget):
        raise ValueError(
            f"Argument `budget` must be a tfdp.PrivacyBudget. Received: budget={budget!r}"
        )
    _validate.one_of("accountant", accountant, (None, *ACCOUNTANTS))
    _validate.one_of("adjacency", adjacency, ADJACENCIES)
    extra_delta = _validate.not_negative("extra_delta", extra_delta)
    if extra_delta >= budget.delta:
        raise BudgetError(
            f"The budget's delta of {budget.delta:.3g} is used up before training: truncated "
            f"batches and other extra costs take extra_delta={extra_delta:.3g} of it. Raise "
            "`max_batch_size`, split batches into micro-batches instead of truncating them, or "
            f"use a larger delta. Received: budget={budget}, extra_delta={extra_delta:.3g}"
        )
    encoded = json.dumps([event_to_dict(event) for event in other_events])
    delta = budget.delta - extra_delta
    guess = sensitivity * gdp_clt_noise_multiplier(budget.epsilon, q, steps, delta)
    return _calibrate_cached(
        make, count, guess, budget, accountant, adjacency, encoded, extra_delta
    )  # fmt: skip


@functools.lru_cache(maxsize=256)
def _calibrate_cached(
    make, count, guess, budget, accountant, adjacency, encoded_events, extra_delta
):
    others = [(event_from_dict(encoded), 1) for encoded in json.loads(encoded_events)]
    delta = budget.delta - extra_delta

    def epsilon_at(sigma):
        event = compose([*others, (make[0](sigma, *make[1:]), count)])
        # Chosen anew for each σ, as the ledger will when it states ε.
        by = best_accountant(event, adjacency, delta) if accountant is None else accountant
        # So little noise that it need not be known how much is too little.
        return math.inf if is_beyond_memory(event, by) else epsilon(event, delta, by, adjacency)

    if accountant is None:
        one = make[0](1.0, *make[1:])
        named = best_accountant(compose([*others, (one, 1)]), adjacency, delta)
    else:
        named = accountant
    if others and epsilon(compose(others), delta, named, adjacency) >= budget.epsilon:
        raise BudgetError(_spent_message(budget, delta, named, adjacency, others))
    guess = min(guess * (2 if adjacency == "replace_one" else 1), LARGEST_NOISE)
    return _search(epsilon_at, budget, guess, named)


def _search(epsilon_at, budget, sigma, accountant):
    """Secants in log sigma and log epsilon, kept inside the bracket once there is one."""
    aim = math.log(budget.epsilon * (1 - _TIGHTNESS / 2))
    low = high = previous = None  # low: too little noise; high: enough
    slope = -1.3
    for evaluation in itertools.count(1):
        reached = epsilon_at(sigma)
        if reached <= budget.epsilon:
            high = sigma
            if reached >= budget.epsilon * (1 - _TIGHTNESS):
                return sigma
        else:
            low = sigma
            if sigma == LARGEST_NOISE:
                raise BudgetError(_unmet_message(budget, reached, accountant))
        if low and high and high / low <= 1 + _NARROW:
            return high
        x, y = math.log(sigma), math.log(min(max(reached, 1e-300), 1e300))
        if previous is not None and math.isfinite(reached):
            slope = min((y - previous[1]) / (x - previous[0]), -0.05)
        previous = (x, y)
        step = min(max((aim - y) / slope, -math.log(4)), math.log(4))
        if evaluation > 3 and not (low and high):  # crawling along a flat curve
            step = math.copysign(max(abs(step), 0.1 * 2**evaluation), step)
        sigma = min(math.exp(min(x + step, 700)), LARGEST_NOISE)
        if low and high and (not low < sigma < high or evaluation % 5 == 0):
            sigma = math.sqrt(low * high)


def _spent_message(budget, delta, accountant, adjacency, others):
    parts = ", ".join(
        f"{describe(event)} (epsilon {epsilon(event, delta, accountant, adjacency):.4g} alone)"
        for event, _ in others
    )
    total = epsilon(compose(others), delta, accountant, adjacency)
    return (
        "The other charges use up the budget before training: together they cost epsilon "
        f"{total:.4g} of {budget.epsilon:.4g}. They are: {parts}. A budget covers all charges of "
        "these weights, including those of earlier training. Raise it, or begin again with new "
        f"weights and smaller charges. Received: budget={budget}"
    )


def _unmet_message(budget, reached, accountant):
    return (
        f"No noise multiplier up to {LARGEST_NOISE:g} meets the budget: at that noise epsilon is "
        f"still {reached:.4g}. Either the other charges leave too little of the budget, or the "
        f"budget is below the resolution of the {accountant.upper()} accountant. Use a larger "
        f"epsilon, fewer steps or smaller charges. Received: budget={budget}"
    )
