"""The table of what each mechanism would cost and how far off it would be."""

from tfdp.accounting.literature import paper_sampling_epsilon
from tfdp.accounting.release_series import affordable_calls, release_epsilon
from tfdp.accounting.rounding import round_up
from tfdp.attention_release.release_plan import plan_noise, plan_sampling


def explanation(release_plan):
    """A table over both mechanisms, for the setting of a plan.

    Args:
        release_plan: the `NoisePlan` or `SamplingPlan` in use; marked in the table.

    Returns:
        Text.
    """
    setting = release_plan.setting
    lines = [
        f"{setting.length} rows of width {setting.width}, {setting.heads} head(s), "
        f"unit={setting.unit!r}, max_norm={setting.max_norm:g}, per call epsilon="
        f"{setting.budget.epsilon:g}, delta={setting.budget.delta:g}; exact logits lie within "
        f"{setting.logit_range:.4g} of 0.",
        "",
        f"{'mechanism':<19}{'sensitivity':>12}{'epsilon':>9}{'logit std':>11}{'logit 99%':>11}"
        f"{'weights 99%':>13}{'row TV 99%':>12}",
    ]
    plans = {release_plan.mechanism: release_plan}
    for name, make in (("gaussian_noise", plan_noise), ("gaussian_sampling", plan_sampling)):
        try:
            candidate = plans.get(name) or make(setting)
        except ValueError as error:
            lines.append(f"{name:<19}not possible: {error}")
            continue
        plans[name] = candidate
        lines.append(_row(candidate, candidate is release_plan))
    lines += [
        "",
        "logit std: standard deviation of one off-diagonal logit, for the worst input. 99%: holds "
        "for a whole",
        "matrix with that probability: every logit within this, every weight within this factor, "
        "every row",
        "within this total variation of the exact one. * in use.",
    ]
    if "gaussian_sampling" in plans:
        lines.append(_paper(plans["gaussian_sampling"]))
    for times in (10, 100):
        budget = type(setting.budget)(times * setting.budget.epsilon, setting.budget.delta)
        lines.append(
            f"A total epsilon of {budget.epsilon:g} affords "
            f"{affordable_calls(release_plan.event, budget):,} calls about one input."
        )
    return "\n".join(lines)


def _row(release_plan, in_use):
    error = release_plan.error()
    spent = release_epsilon(release_plan.event, release_plan.setting.budget.delta)
    return (
        f"{release_plan.mechanism + (' *' if in_use else ''):<19}{release_plan.sensitivity:>12.4g}"
        f"{round_up(spent):>9}{error.std:>11.3g}{error.bound:>11.3g}"
        f"{error.weight_factor:>13.3g}{error.total_variation:>12.3g}"
    )


def _paper(release_plan):
    heads = release_plan.setting.heads
    head = (
        f"gaussian_sampling: {release_plan.num_samples:,} samples, ridge {release_plan.ridge:.4g}, "
        f"M = {release_plan.relative_sensitivity:.4g}. The paper's rule for one head: "
    )
    delta = release_plan.setting.budget.delta / heads
    try:
        value = paper_sampling_epsilon(
            release_plan.num_samples, release_plan.relative_sensitivity, delta
        )
    except ValueError as error:
        return head + f"refused. {error}"
    return head + f"epsilon {round_up(value)} at delta {round_up(delta)}."
