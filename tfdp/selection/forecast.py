"""What a threshold lets through, known before any data are read."""

import dataclasses
import math

#: More rows than this in each step by noise alone are worth a warning.
MANY_ROWS = 1000


@dataclasses.dataclass(frozen=True)
class SelectionForecast:
    """Properties of `AdaFEST` that follow from its settings; it uses no data.

    Args:
        threshold: τ.
        noise_stddev: σ₁·C₁, of the noise on each row's contributions.
        weight: contribution of an example to each row that it activates, min(1, C₁/√p) for p
            features.
        num_rows: rows of all tables, or of those rows that can survive.
        expected_batch_size: B, or None where it is not known.
    """

    threshold: float
    noise_stddev: float
    weight: float
    num_rows: int
    expected_batch_size: float | None = None

    @property
    def threshold_in_stddevs(self) -> float:
        """τ in standard deviations of the noise; infinite without noise."""
        return self.threshold / self.noise_stddev if self.noise_stddev else math.inf

    @property
    def rows_by_noise(self) -> float:
        """Expected number of rows that survive a step although no example activates them."""
        return self.num_rows * 0.5 * math.erfc(self.threshold_in_stddevs / math.sqrt(2.0))

    @property
    def examples_needed(self) -> float:
        """Examples that must share a row so that it survives with probability 1/2."""
        return self.threshold / self.weight

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences about what cannot work, and what to do."""
        found = []
        if self.rows_by_noise >= MANY_ROWS:
            wanted = _stddevs_for(self.num_rows)
            found.append(
                f"AdaFEST's threshold of {self.threshold:g} is {self.threshold_in_stddevs:.2g} "
                f"standard deviations of its noise. In each step, about {self.rows_by_noise:,.0f} "
                f"of {self.num_rows:,} rows will survive by noise alone and be trained on noise "
                f"only. Raise `threshold` to about {wanted * self.noise_stddev:.3g} ({wanted:.2g} "
                "standard deviations, one such row a step), or restrict the rows with "
                "`within=FEST(...)`"
            )
        most = self.expected_batch_size
        if most is not None:
            # Sharing by the whole batch, and the luckiest noise of all rows, does not reach it.
            reach = most * self.weight + (_stddevs_for(self.num_rows) + 2) * self.noise_stddev
            if reach < self.threshold:
                found.append(
                    f"No row can survive AdaFEST's threshold of {self.threshold:g}: even a row "
                    f"that all {most:g} expected examples of a batch share has contributions of "
                    f"{most * self.weight:.3g} only, with noise of standard deviation "
                    f"{self.noise_stddev:.3g}. Lower `threshold`, raise `contribution_norm` (with "
                    "√p, each of p features counts fully), or use larger batches"
                )
        return tuple(found)

    def __str__(self):
        lines = [
            f"threshold {self.threshold:g}: {self.threshold_in_stddevs:.3g} standard deviations of "
            f"the noise ({self.noise_stddev:.4g})",
            f"rows that survive a step by noise alone: {self.rows_by_noise:.3g} of "
            f"{self.num_rows:,} expected",
            "examples that must share a row so that it survives with probability 1/2: "
            f"{self.examples_needed:.3g}"
            + ("" if self.expected_batch_size is None else f" of {self.expected_batch_size:g}"),
        ]
        return "\n".join([*lines, *(f"warning: {w}" for w in self.warnings)])


def _stddevs_for(num_rows):
    """The threshold, in standard deviations, that one of so many rows passes by noise alone."""
    low, high = 0.0, 40.0
    while high - low > 1e-3:
        middle = (low + high) / 2
        expected = num_rows * 0.5 * math.erfc(middle / math.sqrt(2.0))
        low, high = (middle, high) if expected > 1 else (low, middle)
    return high
