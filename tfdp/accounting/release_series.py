"""What a series of releases about one input costs, and how many a budget affords."""

import dp_accounting

from tfdp.accounting.accountants import epsilon
from tfdp.accounting.events.composition import leaves
from tfdp.accounting.losses.analytic_gaussian import gaussian_epsilon

_MOST_CALLS = 2**40


def release_epsilon(event, delta):
    """epsilon of any composition of releases: exact for Gaussians alone, by Rényi curves else.

    Args:
        event: a `dp_accounting.DpEvent` built from `GaussianDpEvent`s, events with their own
            Rényi curve such as `WishartDpEvent`, and compositions of these.
        delta: a probability in (0, 1).

    Returns:
        A float of at least 0.

    Raises:
        ValueError: if no accountant has a rule for the event.
    """
    precision = _gaussian_precision(event)
    if precision is None:
        return epsilon(event, delta, accountant="rdp")
    return gaussian_epsilon(precision**-0.5, delta) if precision else 0.0


def affordable_calls(event, budget):
    """How often a release can be repeated on one input within a budget.

    Args:
        event: the `dp_accounting.DpEvent` of one call.
        budget: a `PrivacyBudget` for all calls together.

    Returns:
        An int of at least 0.
    """

    def fits(calls):
        composed = dp_accounting.SelfComposedDpEvent(event, calls)
        return release_epsilon(composed, budget.delta) <= budget.epsilon

    if not fits(1):
        return 0
    low, high = 1, 2
    while high < _MOST_CALLS and fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _gaussian_precision(event):
    """Sum of 1/sigma^2 over the Gaussians of an event; `None` if it holds anything else."""
    parts = list(leaves(event))
    known = all(
        isinstance(leaf, dp_accounting.GaussianDpEvent) and leaf.noise_multiplier > 0
        for leaf, _ in parts
    )
    return sum(count * leaf.noise_multiplier**-2 for leaf, count in parts) if known else None
