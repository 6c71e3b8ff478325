"""How much noise a budget needs for steps of private training."""

import warnings

from tfdp import accounting
from tfdp.accounting.losses.truncation import truncation_delta

# The share of δ that calibration keeps back for truncated Poisson batches.
_TRUNCATION_SHARE = 1e-3
# So much more noise than without earlier charges gets a warning.
_MUCH_MORE = 5.0


def noise_multiplier(budget, setting, steps, ledger):
    """σ with which steps meet a budget, together with what was charged already.

    Args:
        budget: a `PrivacyBudget`.
        setting: the `PrivateTraining` of the steps, with any σ.
        steps: how many there will be.
        ledger: the `Ledger` of everything else.
    """
    overflow = sum(e.count * e.overflow_probability for e in ledger.entries)
    overflow += setting.count(steps) * setting.sampling.overflow_probability
    extra = truncation_delta(budget.epsilon, 1, min(overflow, 1.0)) * 1.01
    beside = {
        "adjacency": accounting.events.adjacency.strongest([ledger.adjacency, setting.adjacency]),
        "other_events": [ledger.event()] if len(ledger) else [],
        "extra_delta": max(extra, _TRUNCATION_SHARE * budget.delta),
        "accountant": None,
    }
    event = setting.sampling.rule.event
    if event == "allocation":
        return accounting.calibrate_random_allocation(
            budget, setting.sampling.allocation_steps, setting.count(steps), **beside
        )
    probability = {
        "poisson": lambda sampling: sampling.sampling_probability,
        "cyclic": lambda sampling: sampling.part_probability,
        "gaussian": lambda sampling: 1.0,
    }[event]
    return accounting.calibrate_noise_multiplier(
        budget,
        probability(setting.sampling),
        setting.count(steps),
        mechanism=setting.mechanism,
        max_records_per_unit=setting.draws_per_unit,
        **beside,
    )


def warn_of_spent_budget(budget, setting, steps, sigma, ledger):
    """Says that earlier charges leave so little of a budget that its steps are all noise.

    Args:
        budget, setting, steps, ledger: as for `noise_multiplier`.
        sigma: its result.
    """
    if not len(ledger) or sigma < _MUCH_MORE:
        return
    alone = noise_multiplier(budget, setting, steps, accounting.Ledger())
    if sigma > _MUCH_MORE * alone:
        warnings.warn(
            "Argument `budget` covers all charges of these weights, and earlier charges leave "
            f"little of it. The new steps get noise_multiplier={sigma:.4g}; without the earlier "
            f"charges, {alone:.4g} would suffice. With this much noise, the model hardly learns. "
            f"Use a budget larger than epsilon={budget.epsilon:g}, or new weights.",
            stacklevel=2,
        )


def warn_of_shuffling(budget, mechanism, poisson):
    """Says, once at the start of a run, what Poisson batches would save.

    Args:
        budget: a `PrivacyBudget`.
        mechanism: the `PrivateTraining` of the run.
        poisson: the `Sampling` of Poisson batches of the same expected size.
    """
    # With the other charges left out: this is advice, and no guarantee.
    needed = accounting.calibrate_noise_multiplier(
        budget, poisson.sampling_probability, mechanism.budget[2], accountant=None,
        mechanism=mechanism.mechanism,
    )  # fmt: skip
    if needed < mechanism.noise_multiplier:
        warnings.warn(
            "These batches are shuffled, not Poisson sampled. Without amplification by sampling, "
            f"the budget (epsilon={budget.epsilon:g}) needs "
            f"noise_multiplier={mechanism.noise_multiplier:.4g}. With "
            f"`tfdp.data.poisson_batches`, {needed:.4g} would suffice.",
            stacklevel=2,
        )
