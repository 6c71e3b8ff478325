"""Privacy loss distributions of Gaussians, Poisson-sampled or not, computed with whole arrays.

dp_accounting inverts the privacy loss one value at a time; there are 1e5 to 1e6 of them for a
noise multiplier of 1 or less, and a calibration asks for several distributions.
"""

import math

import numpy as np
from dp_accounting.pld import privacy_loss_mechanism
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

from tfdp.accounting.losses.loss_masses import LossMasses

_ADD = privacy_loss_mechanism.AdjacencyType.ADD
_REMOVE = privacy_loss_mechanism.AdjacencyType.REMOVE


def gaussian_losses(noise_multiplier, sampling_probability, value_discretization_interval):
    """What `privacy_loss_distribution.from_gaussian_mechanism` gives, under add-or-remove-one.

    Formal guarantees: pessimistic, by connecting the dots, as dp_accounting's own.

    Args:
        noise_multiplier: sigma > 0, the noise's standard deviation over the sensitivity.
        sampling_probability: q in (0, 1]; 1 means no sampling.
        value_discretization_interval: distance of neighbouring privacy losses.

    Returns:
        A `dp_accounting.pld.privacy_loss_distribution.PrivacyLossDistribution`.

    Source: Doroshenko, Ghazi, Kamath, Kumar and Manurangsi 2022, algorithm 1.
    """
    directions = (_REMOVE,) if sampling_probability == 1 else (_REMOVE, _ADD)
    losses = (_Losses(noise_multiplier, sampling_probability, d) for d in directions)
    return PrivacyLossDistribution(*(_discrete(l, value_discretization_interval) for l in losses))


def _discrete(losses, interval):
    bounds = losses.connect_dots_bounds()
    low = math.floor(bounds.epsilon_lower / interval)
    high = math.ceil(bounds.epsilon_upper / interval)
    deltas = losses.get_delta_for_epsilon(np.arange(low, high + 1) * interval)
    return LossMasses.of_divergences(interval, low, deltas)


class _Losses(privacy_loss_mechanism.GaussianPrivacyLoss):
    """dp_accounting's, whose hockey-stick divergence takes arrays as arrays."""

    def __init__(self, noise_multiplier, sampling_probability, adjacency_type):
        super().__init__(
            noise_multiplier, sampling_prob=sampling_probability, adjacency_type=adjacency_type
        )
        self.variance = noise_multiplier**2

    def get_delta_for_epsilon(self, epsilon):
        """P[upper outcome <= x] - e^epsilon P[lower outcome <= x], x where the loss is epsilon."""
        x = self._where_loss_is(epsilon)
        deltas = self.mu_upper_cdf(x) - np.exp(epsilon + self.mu_lower_log_cdf(x))
        if self.sampling_prob < 1 and self.adjacency_type == _REMOVE:
            # No outcome's loss is below log(1 - q): the divergence is of the whole distributions.
            below = epsilon <= math.log1p(-self.sampling_prob)
            deltas = np.where(below, -np.expm1(epsilon), deltas)
        return np.clip(deltas, 0, 1)

    def _where_loss_is(self, epsilon):
        sign = -1 if self.adjacency_type == _ADD else 1
        unsampled = sign * _unsampled_loss(sign * epsilon, self.sampling_prob)
        x = -0.5 - unsampled * self.variance
        return x + 1 if self.adjacency_type == _ADD else x


def _unsampled_loss(loss, q):
    """log(1 + (e^loss - 1) / q); minus infinity where the loss is at most log(1 - q).

    Rounded as dp_accounting rounds it, so that one event has one epsilon.
    """
    if q == 1:
        return loss
    shifted = loss + np.log(1 / q)
    below = np.minimum(np.log(1 / q - 1) - shifted, 0)
    with np.errstate(divide="ignore"):
        return np.where(loss == 0, np.log(1 / q + (1 - 1 / q)), shifted + np.log1p(-np.exp(below)))
