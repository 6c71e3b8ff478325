"""Ways to spend one ε on the same epochs and batch size, side by side."""

import dataclasses
import functools
import math

from tfdp import _validate
from tfdp.accounting import banded_noise, correlated_noise
from tfdp.accounting.budget import PrivacyBudget, check_delta
from tfdp.accounting.calibration import calibrate_noise_multiplier, calibrate_random_allocation
from tfdp.accounting.charges.sampling_rules import RULES
from tfdp.accounting.rounding import round_up_to

# So many times the least noise is worth half of the memory.
_NEARLY = 1.05
_BANDS = 4  # of noise that is correlated over a stream


@dataclasses.dataclass(frozen=True)
class Way:
    """One way to draw batches and to add noise.

    Attributes:
        name: of the way.
        noise_multiplier: σ that meets the budget.
        noise_in_weights: standard deviation in each weight, root mean square over the steps, in
            units of clip norm times learning rate, of plain SGD with a constant rate.
        memory: what it keeps beside a step without it.
        demands: what it asks of the data.
        adjacency: the adjacency under which ε holds.
    """

    name: str
    noise_multiplier: float
    noise_in_weights: float
    memory: str
    demands: str
    adjacency: str


def banded_way(budget, num_examples, epochs, batch_size, accountant=None):
    """The `Way` of cyclic Poisson samples, with a number of bands that leaves little noise.

    More bands take more noise back, are amplified less, and need more memory. Of powers of two, the
    fewest that leave at most 5% more noise than the best; they are doubled as long as that helps.

    Args:
        budget: a `PrivacyBudget`.
        num_examples: n.
        epochs: passes over the data, each of which is rounded to whole rounds.
        batch_size: B, expected.
        accountant: as for `compare_ways`.
    """
    tried, bands = [], 1
    while bands * batch_size <= num_examples:
        share = bands * batch_size / num_examples
        steps = banded_noise.steps_of_epochs(num_examples, epochs, batch_size, bands)
        sigma = calibrate_noise_multiplier(budget, share, -(-steps // bands), accountant)
        c = banded_noise.optimized_strategy(bands, steps)
        left = sigma * banded_noise.BandedCorrelation(c, steps).noise_in_weights() / batch_size
        tried.append(Way(
            f"cyclic Poisson, correlated ({bands} {'bands' if bands > 1 else 'band'})", sigma, left,
            f"{4 * (bands - 1)} bytes a weight" if bands > 1 else "none",
            "every record at any time; parts and draws are secret; one device",
            RULES["cyclic_poisson"].adjacency,
        ))  # fmt: skip
        if len(tried) > 1 and left >= tried[-2].noise_in_weights:
            break
        bands *= 2
    least = min(one.noise_in_weights for one in tried)
    return next(one for one in tried if one.noise_in_weights <= _NEARLY * least)


def compare_ways(num_examples, epochs, epsilon, delta, batch_size, accountant=None):
    """The ways of one ε, one number of epochs and one batch size (MATH.md sections 7, 10, 13).

    Args:
        num_examples: n.
        epochs: passes over the data; where a way knows whole passes alone, rounded up.
        epsilon, delta: the budget.
        batch_size: B, expected or exact.
        accountant: "pld", "rdp", or None: that of a statement.

    Returns:
        List of `Way`, the one of least noise first.

    Raises:
        ValueError: if an argument is out of range.
    """
    n = _validate.count("num_examples", num_examples)
    size = _validate.count("batch_size", batch_size)
    _validate.positive("epochs", epochs)
    check_delta(delta, n)
    budget, passes, of_pass = PrivacyBudget(epsilon, delta), math.ceil(epochs), -(-n // size)
    steps, all_steps = banded_noise.steps_of_epochs(n, epochs, size), passes * of_pass
    pattern = (passes, of_pass if passes > 1 else 1)
    m = correlated_noise.optimized(_BANDS, all_steps, correlated_noise.PREFIX_SUMS, *pattern)
    calibrated = functools.partial(calibrate_noise_multiplier, budget, accountant=accountant)
    gaussian = calibrated(1.0, 1)

    def way(kind, name, sigma, count, memory, demands, m=(1.0,), s=1.0):
        left = sigma * s * correlated_noise.noise_in_weights(m, count) / size
        return Way(name, sigma, left, memory, demands, RULES[kind].adjacency)

    found = [
        way(
            "shuffled", "shuffled", calibrated(1.0, passes), all_steps, "none",
            "each record once an epoch, in any order",
        ),
        way(
            "poisson", "Poisson", calibrated(size / n, steps), steps, "none",
            "every record at any time; its draw is secret",
        ),
        way(
            "allocated", "random allocation",
            calibrate_random_allocation(budget, of_pass, passes, accountant), all_steps,
            "none", "every record at any time; its draw is secret",
        ),
        way(
            "stream", f"in order, correlated ({_BANDS} bands)", gaussian, all_steps,
            "none; of sparse tables 4 bytes a row",
            "one order that stays; the number of steps is known ahead", m,
            correlated_noise.sensitivity(m, all_steps, *pattern),
        ),
        banded_way(budget, n, epochs, size, accountant),
    ]  # fmt: skip
    return sorted(found, key=lambda one: one.noise_in_weights)


def table(ways):
    """The ways as text."""
    width = max(len(one.name) for one in ways)
    lines = [
        f"{'way':{width}}  {'noise multiplier':>16}  {'noise in weights':>16}  "
        f"{'adjacency':17}  demands"
    ]
    for one in ways:
        lines.append(
            f"{one.name:{width}}  {round_up_to(one.noise_multiplier, 6):16.6f}  "
            f"{one.noise_in_weights:16.3g}  {one.adjacency:17}  "
            f"{one.demands} (memory: {one.memory})"
        )
    return "\n".join(lines)
