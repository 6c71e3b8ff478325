"""How many settings are tried: a random number, which is what makes the choice cheap."""

import dataclasses
import functools
import math
import secrets

from dp_accounting import dp_event
from scipy import stats

from tfdp import _validate

_LARGEST = 700.0  # of a logarithm: what math.expm1 still has a number for


@dataclasses.dataclass(frozen=True)
class NumberOfRuns:
    """A truncated negative binomial distribution for the number of runs.

    Formal guarantees: trying a random number of settings, each drawn at random, and releasing only
    the best result costs a small multiple of one run, whatever the mean (Papernot and Steinke 2022,
    "Hyperparameter tuning with Rényi differential privacy", theorem 2). A fixed number of runs
    costs that many runs. The drawn number must stay secret; it is not part of the release.

    Args:
        mean: expected number of runs, at least 1.
        shape: η ≥ 0. 1 is the geometric distribution, 0 the logarithmic one. A smaller shape costs
            less, and has a longer tail: usually few runs, sometimes very many.

    Raises:
        ValueError: if an argument is out of range.
    """

    mean: float
    shape: float = 1.0

    def __post_init__(self):
        if not (_validate.is_number(self.mean) and 1 <= self.mean < math.inf):
            raise ValueError(
                f"Argument `mean` must be a number of at least 1. Received: mean={self.mean!r}"
            )
        _validate.not_negative("shape", self.shape)

    @functools.cached_property
    def gamma(self):
        """The parameter γ in (0, 1] that gives the mean; 1 if there is always one run."""
        if self.mean == 1:
            return 1.0
        low, high = -745.0, 0.0  # of log γ; the mean falls with γ
        for _ in range(200):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if _mean(middle, self.shape) > self.mean else (low, middle)
        return math.exp(0.5 * (low + high))

    def event(self, event):
        """The cost of the best of these runs, if one run costs `event`; a `DpEvent`."""
        if self.mean == 1:
            return event
        return dp_event.RepeatAndSelectDpEvent(event, float(self.mean), float(self.shape))

    def draw(self):
        """A number of runs, at least 1, from the operating system's entropy."""
        uniform = (secrets.randbits(64) + 0.5) / 2**64
        gamma, shape = self.gamma, self.shape
        if gamma == 1:
            return 1
        if shape * -math.log(gamma) > _LARGEST:
            # f(1) is below the smallest number, and so is what no run at all would have.
            return max(int(stats.nbinom.ppf(uniform, shape, gamma)), 1)
        # f(1), and f(k + 1)/f(k) = (1 - γ)(k + η)/(k + 1)
        if shape:
            probability = (1 - gamma) * shape / math.expm1(-shape * math.log(gamma))
        else:
            probability = (1 - gamma) / -math.log(gamma)
        number, below = 1, probability
        # Past its maximum the probability falls: what no longer counts ends a sum below `uniform`.
        while below < uniform and below + probability > below:
            probability *= (1 - gamma) * (number + shape) / (number + 1)
            number += 1
            below += probability
        return number


def _mean(log_gamma, shape):
    odds = math.expm1(-log_gamma) if log_gamma > -700 else math.inf
    if shape == 0:
        return odds / -log_gamma if log_gamma else 1.0
    truncated = -math.expm1(shape * log_gamma)
    return shape * odds / truncated if truncated else 1.0
