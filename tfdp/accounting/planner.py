"""Which batch size leaves the least noise, at one ε and one number of epochs."""

import dataclasses
import math

from tfdp.accounting.reports.budget_table import TrainingPlan
from tfdp.accounting.reports.figures import new_figure
from tfdp.accounting.reports.text_bars import bar
from tfdp.accounting.rounding import round_up_to


@dataclasses.dataclass(frozen=True)
class PlannedTraining:
    """One way to spend a budget.

    Attributes:
        batch_size: expected number of records of a step.
        steps: number of steps.
        noise_multiplier: σ that meets the budget.
        step_noise: σ/batch_size: the noise's standard deviation in each coordinate of the mean
            gradient of a step, in units of the clip norm.
        total_noise: step_noise/√steps: the same for the mean over all steps. It limits what a
            training run can learn from gradients that stay alike.
    """

    batch_size: int
    steps: int
    noise_multiplier: float

    @property
    def step_noise(self):
        return self.noise_multiplier / self.batch_size

    @property
    def total_noise(self):
        return self.step_noise / math.sqrt(self.steps)


def plan_training(num_examples, epochs, epsilon, delta, batch_sizes=None, accountant=None):
    """The training runs of one ε and one number of epochs, by batch size (MATH.md section 1).

    Args:
        num_examples: n.
        epochs: passes over the data on average, of n/batch size steps each, rounded.
        epsilon, delta: the budget.
        batch_sizes: expected batch sizes; None for six from n/128 to n.
        accountant: "pld", "rdp", or None: that of a statement.

    Returns:
        List of `PlannedTraining`, by batch size.

    Raises:
        ValueError: if an argument is out of range.
    """
    if batch_sizes is None:
        batch_sizes = sorted(
            {max(1, round(num_examples / part)) for part in (128, 64, 32, 16, 4, 1)}
        )
    planned = []
    for size in batch_sizes:
        plan = TrainingPlan.of(
            num_examples=num_examples, batch_size=size, steps=None, epochs=epochs, delta=delta,
            accountant=accountant, adjacency="add_or_remove_one",
        )  # fmt: skip
        _, sigma = plan.row_for_epsilon(epsilon)
        planned.append(PlannedTraining(size, plan.steps, sigma))
    return planned


def table(planned):
    """The training runs as text, with a bar for the noise over all steps; the least is marked."""
    lines = [f"{'batch':>8}  {'steps':>7}  {'noise multiplier':>16}  {'noise of a step':>15}  "
             f"{'of all steps':>12}"]  # fmt: skip
    least, most = (pick(one.total_noise for one in planned) for pick in (min, max))
    for one in planned:
        mark = "  least noise" if one.total_noise == least else ""
        lines.append(
            f"{one.batch_size:8g}  {one.steps:7d}  {round_up_to(one.noise_multiplier, 6):16.6f}  "
            f"{one.step_noise:15.3g}  {one.total_noise:12.3g}  "
            f"{bar(one.total_noise / most)}{mark}"
        )
    return "\n".join(lines)


def plot(planned, path):
    """Draws noise of a step and of all steps against batch size; needs matplotlib."""
    figure = new_figure(6.4, 4.2)
    axes = figure.add_subplot(xlabel="expected batch size", ylabel="standard deviation / clip norm",
                              title="Noise of each coordinate of the mean gradient")  # fmt: skip
    sizes = [one.batch_size for one in planned]
    axes.loglog(sizes, [one.step_noise for one in planned], marker="o", label="of one step")
    axes.loglog(sizes, [one.total_noise for one in planned], marker="o", label="of all steps")
    axes.legend()
    axes.grid(alpha=0.3, which="both")
    figure.savefig(path, dpi=150)
