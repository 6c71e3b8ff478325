"""Sampling that everybody can see, which amplifies nothing (MATH.md section 5)."""

import attr
import dp_accounting
import numpy as np
from dp_accounting.pld import privacy_loss_distribution

from tfdp.accounting.events.registry import register_event
from tfdp.accounting.losses.gaussian_losses import gaussian_losses
from tfdp.accounting.rounding import round_down, round_up


@register_event
@attr.s(frozen=True, auto_attribs=True)
class VisiblySampledGaussianDpEvent(dp_accounting.DpEvent):
    """With a known probability a record's own noisy value is published, and otherwise nothing.

    Unlike in a Poisson-sampled *sum*, whoever sees the output sees whether the record was drawn.
    Neighbours agree on who is drawn, and differ in what the drawn record's value is. A mechanism
    that publishes one noisy vector for each drawn record is this, however small the probability.

    Formal guarantees: exact. Over T events, delta(eps) = sum_k P[Binomial(T, q) = k] *
    delta_Gaussian(eps; sqrt(k) / sigma), since the number k of published copies is visible and
    has the same distribution on both data sets. Under add_or_remove_one nothing holds: a record
    that is absent is never drawn. The accountants refuse it.

    Args:
        sampling_probability: q in (0, 1].
        noise_multiplier: sigma, the noise's standard deviation over the clip norm.

    Source: MATH.md section 5, point 1.
    """

    sampling_probability: float
    noise_multiplier: float

    adjacencies = ("zero_out", "replace_one")

    def in_words(self):
        """The event in a statement."""
        return (
            f"Gaussian noise of multiplier {round_down(self.noise_multiplier)} on each record "
            f"drawn with probability {round_up(self.sampling_probability, 6)}; the draw is "
            "visible, so sampling amplifies nothing"
        )

    def doubled(self):
        """The event for values that may move by twice the clip norm (replace-one)."""
        return attr.evolve(self, noise_multiplier=self.noise_multiplier / 2)

    def rdp(self, orders):
        """Rényi curve: log(1 - q + q e^((a-1) a / (2 sigma^2))) / (a-1) at each order a."""
        orders = np.asarray(orders, float)
        exponent = (orders - 1) * orders / (2 * self.noise_multiplier**2)
        q = self.sampling_probability
        with np.errstate(divide="ignore"):
            moments = np.logaddexp(np.log1p(-q), np.log(q) + exponent)
        return np.where(orders > 1, moments / np.maximum(orders - 1, 1e-300), np.inf)

    def pld(self, value_discretization_interval):
        """The privacy loss distribution: a Gaussian's with probability q, and 0 otherwise."""
        gaussian = gaussian_losses(self.noise_multiplier, 1, value_discretization_interval)
        nothing = privacy_loss_distribution.identity(value_discretization_interval)
        return gaussian.compute_mixture(nothing, self.sampling_probability)
