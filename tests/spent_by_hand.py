"""What random lives of weights cost, composed by hand with dp_accounting alone."""

import collections
import functools
import math

from dp_accounting.pld import privacy_loss_distribution
from scipy import optimize, stats

DELTA = 1e-3
N, BATCH = 40, 10
Q = BATCH / N
FORWARD_SIGMA = 8.0
_INTERVAL = 1e-4  # of privacy losses, rounded up


class Spent:
    """What was done to the data, counted by the test; nothing here asks tfdp."""

    def __init__(self):
        self.poisson = collections.Counter()  # σ -> steps at sampling probability Q
        self.gaussian = collections.Counter()  # σ -> uses of every record that nothing amplifies
        self.laplace = collections.Counter()  # scale -> releases
        self.visible = 0  # steps that published noisy copies of the records they drew
        self.overflow = 0.0  # Σ over steps of P[the batch was cut off]
        self.infinite = False

    def epsilon(self, further=()):
        """The smallest ε with δ(ε) + (1 + e^ε)·overflow ≤ δ.

        Args:
            further: (σ, steps) of Poisson sampled steps that would come on top.
        """
        if self.infinite:
            return math.inf
        losses = self._losses(further)

        def excess(epsilon):
            delta = math.fsum(p * one.get_delta_for_epsilon(epsilon) for p, one in losses)
            return delta + (1 + math.exp(epsilon)) * self.overflow - DELTA

        if len(losses) == 1 and not self.overflow:
            return losses[0][1].get_epsilon_for_delta(DELTA)
        low, high = 0.0, 0.25
        while excess(high) > 0:
            low, high = high, high + 0.25
            if (1 + math.exp(low)) * self.overflow > DELTA:
                return math.inf
        return optimize.brentq(excess, low, high, xtol=1e-6) if excess(low) > 0 else low

    def _losses(self, further):
        """(probability, privacy losses) for each number of copies that may have been published."""
        losses = privacy_loss_distribution.identity(_INTERVAL)
        for (sigma, steps), q in [
            *((one, Q) for one in [*self.poisson.items(), *further]),
            *((one, 1) for one in self.gaussian.items()),
        ]:
            if steps:  # a fit that is resumed at its end has none
                losses = losses.compose(_gaussian(sigma, q).self_compose(steps))
        for scale, releases in self.laplace.items():
            losses = losses.compose(_laplace(scale).self_compose(releases))
        found = []
        for copies in range(int(stats.binom.isf(1e-9, self.visible, Q)) + 1):
            if copies:
                losses = losses.compose(_gaussian(FORWARD_SIGMA, 1))
            found.append((stats.binom.pmf(copies, self.visible, Q), losses))
        return found


@functools.cache
def _gaussian(sigma, q):
    return privacy_loss_distribution.from_gaussian_mechanism(
        sigma, sampling_prob=q, value_discretization_interval=_INTERVAL
    )


@functools.cache
def _laplace(scale):
    return privacy_loss_distribution.from_laplace_mechanism(
        scale, value_discretization_interval=_INTERVAL
    )
