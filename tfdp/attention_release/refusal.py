"""The refusal of a release that would be further off than a constant matrix."""

import dataclasses

from tfdp.accounting.losses.analytic_gaussian import gaussian_epsilon, gaussian_noise_multiplier


def useless_message(release_plan):
    """Why a release cannot be useful, how far off it would be, and what can change.

    Args:
        release_plan: a `NoisePlan` or `SamplingPlan` whose `error().std` exceeds the range
            of the logits.

    Returns:
        Text for an error.
    """
    setting, error = release_plan.setting, release_plan.error()
    ways = []
    shorter = _largest(lambda n: _std_ratio(release_plan, length=n) <= 1, setting.length)
    ways.append(
        f"shorten the input to {shorter} rows" if shorter > 1 else "no number of rows above 1 helps"
    )
    # The error is proportional to noise_multiplier * sensitivity, near enough for both mechanisms.
    room = setting.logit_range / error.std
    sigma = gaussian_noise_multiplier(setting.budget, setting.heads) * room
    spent = gaussian_epsilon(sigma, setting.budget.delta, setting.heads)
    ways.append(f"raise the budget's epsilon to about {spent:.3g} per call")
    if setting.unit != "sequence":
        near = 2 * setting.max_norm
        while _std_ratio(release_plan, neighbor_distance=near) > 1:
            near /= 1.1
        ways.append(f"protect changes up to neighbor_distance={near:.3g} only")
    else:
        ways.append(
            'protect one token (unit="token") if each row is a function of its own token only'
        )
    return (
        f"No useful release is possible with unit={setting.unit!r}, {setting.length} rows, "
        f"epsilon={setting.budget.epsilon:.6g}, delta={setting.budget.delta:.3g} over "
        f"{setting.heads} head(s), mechanism={release_plan.mechanism!r}. The error of each logit "
        f"is {error.std:.3g} (standard deviation), while exact logits lie within "
        f"{setting.logit_range:.3g} of 0: a constant matrix would be closer. You can: "
        f"{'; '.join(ways)}."
    )


def _std_ratio(release_plan, **changes):
    """Error over range in a changed setting, at the noise multiplier or M of the plan."""
    setting = dataclasses.replace(release_plan.setting, **changes)
    growth = setting.sensitivity(release_plan.mechanism) / release_plan.sensitivity
    return release_plan.error().std * growth / setting.logit_range


def _largest(holds, most):
    low, high = 1, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
