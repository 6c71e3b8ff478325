"""Tables of epsilon against noise multiplier for training with correlated noise over a stream."""

import dataclasses
import math

from tfdp import _validate
from tfdp.accounting import correlated_noise
from tfdp.accounting.accountants import best_accountant, epsilon
from tfdp.accounting.budget import PrivacyBudget, check_delta
from tfdp.accounting.calibration import calibrate_noise_multiplier
from tfdp.accounting.events.composition import compose, training_event
from tfdp.accounting.rounding import round_up, round_up_to

_ADJACENCY = "zero_out"


@dataclasses.dataclass(frozen=True)
class StreamPlan:
    """Trainings over a stream, before they have run; each is one Gaussian mechanism.

    Args:
        correlation: the `Correlation` of a chain.
        fits: chains that the same records, or persons, are in: calls of `fit`, those that a crash
            ended included. Chains over others (`DisjointPeriods`) do not count.
        batch_size: records of a step.
        delta: at most 1/n.
        accountant: "pld", "rdp", or None: that of a statement.
    """

    correlation: correlated_noise.Correlation
    fits: int
    batch_size: int
    delta: float
    accountant: str | None = None

    @classmethod
    def of(
        cls, *, num_examples, batch_size, passes, fits, delta, bands=4, max_participations=None,
        min_separation=None, num_persons=None, accountant=None,
    ):  # fmt: skip
        """A plan with the coefficients of `tfdp.optimizers.BandedInverse(bands)` for plain SGD.

        Args:
            num_examples: n, the records of a pass.
            passes: of one `fit`.
            bands: b.
            max_participations, min_separation: as for `tfdp.data.stream_batches`, or both None.
            num_persons: with these, the number of persons, to which δ is compared.
            batch_size, fits, delta, accountant: as above.

        Raises:
            ValueError: if an argument is out of range, or one of two is missing.
        """
        n = _validate.count("num_examples", num_examples)
        size, passes = _validate.count("batch_size", batch_size), _validate.count("passes", passes)
        of_pass = -(-n // size)
        bounds = (max_participations, min_separation)
        of_persons = (*bounds, num_persons) != (None, None, None)
        if of_persons and (None in bounds or passes > 1):
            raise ValueError(
                "Arguments `max_participations` and `min_separation` must be given together, for "
                "persons with several records, and need one pass. Received: max_participations="
                f"{max_participations}, min_separation={min_separation}, passes={passes}"
            )
        if bounds == (None, None):
            bounds = passes, of_pass if passes > 1 else 1
        protected = (n,) if num_persons is None else (num_persons, "num_persons")
        check_delta(delta, *protected)
        steps = passes * of_pass
        m = correlated_noise.optimized(
            _validate.count("bands", bands), steps, correlated_noise.PREFIX_SUMS, *bounds
        )
        chain = correlated_noise.Correlation(m, steps, *bounds)
        return cls(chain, _validate.count("fits", fits), size, delta, accountant)

    def _event(self, noise_multiplier):
        return compose([(training_event(noise_multiplier, 1.0), self.fits)])

    def accountant_of(self, noise_multiplier):
        """The accountant that states the epsilon of all fits."""
        if self.accountant is not None:
            return self.accountant
        return best_accountant(self._event(noise_multiplier), _ADJACENCY, self.delta)

    def epsilon(self, noise_multiplier):
        """epsilon of all fits; that of a chain counts from its first step on."""
        by = self.accountant_of(noise_multiplier)
        return epsilon(self._event(noise_multiplier), self.delta, by, _ADJACENCY)

    def row_for_noise_multiplier(self, noise_multiplier):
        """(epsilon, noise multiplier)."""
        return self.epsilon(noise_multiplier), noise_multiplier

    def row_for_epsilon(self, target):
        """(epsilon really reached, noise multiplier calibrated for `target`)."""
        budget = PrivacyBudget(target, self.delta)
        sigma = calibrate_noise_multiplier(budget, 1.0, self.fits, self.accountant, _ADJACENCY)
        return self.row_for_noise_multiplier(sigma)

    def noise_in_weights(self, noise_multiplier):
        """In units of clip norm times learning rate, root mean square over the steps."""
        m, steps = self.correlation.coefficients, self.correlation.steps
        left = correlated_noise.noise_in_weights(m, steps) * self.correlation.sensitivity
        return noise_multiplier * left / self.batch_size

    def format(self, rows):
        """The plan and its rows as text."""
        chain = self.correlation
        most, apart = chain.participations, chain.min_separation
        by = dict.fromkeys(self.accountant_of(sigma) for _, sigma in rows)
        often = "one step" if most == 1 else f"up to {most} steps, {apart} or more apart"
        lines = [
            f"{chain.steps} steps in order, one mechanism from the first on; noise correlated over "
            f"{chain.bands} bands",
            f"a record or person takes part in {often}: sensitivity {round_up(chain.sensitivity)} "
            "(clip norms)",
            f"fits over the same data: {self.fits} (those over other persons, by `DisjointPeriods`,"
            " cost nothing more)",
            f"delta = {round_up(self.delta, 6)}, accountant {' or '.join(by)}, adjacency "
            f"{_ADJACENCY}",
            "",
            f"{'epsilon':>12}  {'noise multiplier':>16}  {'noise in weights':>16}",
        ]
        # Rounded up: nothing may promise more than holds.
        lines += [
            f"{round_up_to(reached, 4):12.4f}  {round_up_to(sigma, 6):16.6f}  "
            f"{self.noise_in_weights(sigma):16.3g}"
            for reached, sigma in rows
        ]
        return "\n".join(lines)


def passes_of(steps, epochs):
    """The passes of a stream that a command was given.

    Raises:
        ValueError: if it was given steps, or parts of a pass.
    """
    if steps is not None or not (math.isfinite(epochs) and epochs == math.floor(epochs)):
        raise ValueError(
            "A stream needs a whole number of `epochs` and no `steps`: a chain is charged for all "
            f"steps of its passes. Received: steps={steps}, epochs={epochs}"
        )
    return int(epochs)
