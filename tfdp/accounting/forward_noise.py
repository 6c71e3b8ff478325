"""What noise on representations costs (MATH.md section 5)."""

from collections.abc import Sequence

import dp_accounting

from tfdp import _validate
from tfdp.accounting.budget import PrivacyBudget
from tfdp.accounting.calibration import calibrate_noise_multiplier
from tfdp.accounting.losses.analytic_gaussian import gaussian_noise_multiplier

FORWARD_ADJACENCIES = ("zero_out", "replace_one")

#: Below this epsilon the accountants round up by more than a ten-thousandth of it.
_SMALL = 0.05


def calibrate_forward_noise(
    budget: PrivacyBudget,
    copies: int = 1,
    adjacency: str = "zero_out",
    other_events: Sequence[dp_accounting.DpEvent] = (),
) -> float:
    """The smallest noise multiplier at which noisy copies of a record meet a budget.

    Formal guarantees: `copies` releases of a vector clipped to C, each with its own N(0,
    (noise_multiplier·C)² I), together with `other_events`, are (ε, δ)-private if the record's
    features are blanked out ("zero_out", sensitivity C) or replaced by any others ("replace_one",
    sensitivity 2C). Labels are not protected.

    Args:
        budget: a `PrivacyBudget`.
        copies: E, how often each record's vector is released: 1 for a release that is drawn once
            and kept, the number of epochs for fresh noise in every epoch.
        adjacency: "zero_out" or "replace_one".
        other_events: DpEvents that the same budget has to pay for.

    Returns:
        σ/C; for `DPForwardNoise(clip_norm, noise_multiplier)`.

    Raises:
        BudgetError: if no noise meets the budget together with the other events.
        ValueError: if an argument is out of range.

    Example:

    >>> round(calibrate_forward_noise(PrivacyBudget(3, 1 / (2 * 67349))), 2)
    1.41
    """
    _validate.one_of("adjacency", adjacency, FORWARD_ADJACENCIES)
    if not isinstance(budget, PrivacyBudget):
        raise ValueError(
            f"Argument `budget` must be a tfdp.PrivacyBudget. Received: budget={budget!r}"
        )
    if other_events or budget.epsilon < _SMALL:
        return calibrate_noise_multiplier(
            budget, 1.0, copies, adjacency=adjacency, other_events=other_events
        )
    factor = 2.0 if adjacency == "replace_one" else 1.0
    # A little more than exact, so that the accountants' rounding stays inside the budget.
    return gaussian_noise_multiplier(budget, copies) * factor * (1 + 1e-4)
