"""Tables and plots of epsilon against noise multiplier for a planned training."""

import dataclasses

from tfdp import _validate
from tfdp.accounting.accountants import best_accountant, epsilon
from tfdp.accounting.banded_noise import steps_of_epochs
from tfdp.accounting.budget import PrivacyBudget, check_delta
from tfdp.accounting.calibration import calibrate_noise_multiplier
from tfdp.accounting.events.composition import compose, training_event
from tfdp.accounting.reports.figures import new_figure
from tfdp.accounting.reports.text_bars import curve
from tfdp.accounting.rounding import round_down, round_up, round_up_to


@dataclasses.dataclass(frozen=True)
class TrainingPlan:
    """A training run with Poisson sampling, of all records or of parts in turn, before it runs.

    Args:
        num_examples: n.
        sampling_probability: q in (0, 1].
        steps: number of steps.
        delta: at most 1/n.
        accountant: "pld", "rdp", or None: that of a statement.
        adjacency: as for `tfdp.accounting.epsilon`.
        bands: b, the parts of the records that are sampled in turn (cyclic Poisson sampling), each
            with probability b·q; b steps are one event then.
    """

    num_examples: int
    sampling_probability: float
    steps: int
    delta: float
    accountant: str | None
    adjacency: str
    bands: int = 1

    @classmethod
    def of(
        cls, *, num_examples, batch_size, steps, epochs, delta, accountant, adjacency, bands=1
    ):  # fmt: skip
        """A plan from a batch size and either `steps` or `epochs` (the other is `None`)."""
        num_examples = _validate.count("num_examples", num_examples)
        batch_size = _validate.positive("batch_size", batch_size)
        if batch_size * _validate.count("bands", bands) > num_examples:
            raise ValueError(
                "Argument `batch_size` must be at most `num_examples`, or a part of them, where "
                f"there are several (`bands`). Received: batch_size={batch_size}, "
                f"num_examples={num_examples}, bands={bands}"
            )
        if steps is None:
            epochs = _validate.positive("epochs", epochs)
            steps = steps_of_epochs(num_examples, epochs, batch_size, bands)
        check_delta(delta, num_examples)
        return cls(
            num_examples,
            batch_size / num_examples,
            _validate.count("steps", steps),
            delta,
            accountant,
            adjacency,
            bands,
        )

    @property
    def _probability(self):
        """Of a record, in an event."""
        return min(1.0, self.bands * self.sampling_probability)

    def _events(self, steps):
        return -(-steps // self.bands)

    def _event(self, noise_multiplier, steps):
        event = training_event(noise_multiplier, self._probability)
        return compose([(event, self._events(steps))])

    def accountant_of(self, noise_multiplier, steps):
        """The accountant that states the epsilon after some of the steps."""
        if self.accountant is not None:
            return self.accountant
        return best_accountant(self._event(noise_multiplier, steps), self.adjacency, self.delta)

    def epsilon(self, noise_multiplier, steps):
        """epsilon after some of the steps."""
        by = self.accountant_of(noise_multiplier, steps)
        return epsilon(self._event(noise_multiplier, steps), self.delta, by, self.adjacency)

    def _sampling(self):
        if self.bands == 1:
            return "Poisson sampling"
        return (
            f"cyclic Poisson sampling of {self.bands} parts: {self.bands} steps are one event of "
            f"probability {round_up(self._probability, 6)}"
        )

    def over_steps(self, noise_multiplier, points):
        """Two lists: at most so many numbers of steps, evenly up to all, and their epsilons."""
        steps = sorted({max(1, round(self.steps * (i + 1) / points)) for i in range(points)})
        return steps, [self.epsilon(noise_multiplier, t) for t in steps]

    def row_for_noise_multiplier(self, noise_multiplier):
        """(epsilon, noise multiplier)."""
        return self.epsilon(noise_multiplier, self.steps), noise_multiplier

    def row_for_epsilon(self, target):
        """(epsilon really reached, noise multiplier calibrated for `target`)."""
        sigma = calibrate_noise_multiplier(
            PrivacyBudget(target, self.delta),
            self._probability,
            self._events(self.steps),
            self.accountant,
            self.adjacency,
        )
        return self.row_for_noise_multiplier(sigma)

    def format(self, rows):
        """The plan and its rows as text, each with a curve; all curves have one scale."""
        by = dict.fromkeys(self.accountant_of(sigma, self.steps) for _, sigma in rows)
        lines = [
            f"n = {self.num_examples}, q = {round_up(self.sampling_probability, 6)}, "
            f"steps = {self.steps}, delta = {round_up(self.delta, 6)}",
            f"accountant {' or '.join(by)}, adjacency {self.adjacency}, {self._sampling()}",
            "",
            f"{'epsilon':>12}  {'noise multiplier':>16}  epsilon over the steps",
        ]
        highest = max(reached for reached, _ in rows)
        # Both are rounded up: neither may promise more than holds.
        lines += [
            f"{round_up_to(reached, 4):12.4f}  {round_up_to(sigma, 6):16.6f}  "
            f"{curve(self.over_steps(sigma, 16)[1], highest)}"
            for reached, sigma in rows
        ]
        return "\n".join(lines)


def plot(plan, rows, path):
    """Draws epsilon against the number of steps, one curve per row, into an image file.

    Raises:
        ValueError: if matplotlib is missing.
    """
    figure = new_figure(6.4, 4.2)
    axes = figure.add_subplot(
        xlabel="steps",
        ylabel=f"epsilon at delta = {round_up(plan.delta, 6)}",
        title="Privacy cost of training",
    )
    for _, sigma in rows:
        steps, reached = plan.over_steps(sigma, 12)
        label = f"noise multiplier {round_down(sigma, 4)}"
        axes.plot(steps, reached, marker="o", markersize=3, label=label)
    axes.set_ylim(bottom=0)
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=150)
