"""Privacy losses of a Gaussian sum that one unit moves by a random amount, with whole arrays.

dp_accounting inverts such a loss by a bisection in Python, over 1e5 values and more: 10 to 40 s for
one noise multiplier, of which a calibration asks for several.
"""

import functools
import math

import numpy as np
from dp_accounting.dp_event import MixtureOfGaussiansDpEvent
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from scipy import special

from tfdp.accounting.losses.loss_masses import LossMasses

_TAIL = math.exp(-50)  # what is cut off on either side of a distribution, as dp_accounting does
_RARE = 1e-10
_POINTS = 1 << 16  # where the loss is evaluated


def records_of_unit_event(noise_multiplier, sampling_probability, max_records):
    """One step in which each of at most k records of a person is drawn by itself (MATH.md 11).

    Args:
        noise_multiplier: σ > 0, over the norm bound of one *record*.
        sampling_probability: q in (0, 1), of each record.
        max_records: k, the most records of a person.

    Returns:
        A `dp_accounting.dp_event.MixtureOfGaussiansDpEvent`: j of the records, and so a
        sensitivity of j, with probability Binomial(k, q)(j).
    """
    weights = binomial_weights(max_records, float(sampling_probability))
    sensitivities = tuple(float(j) for j in range(max_records + 1))
    return MixtureOfGaussiansDpEvent(noise_multiplier, sensitivities, weights)


@functools.lru_cache(maxsize=256)
def binomial_weights(count, probability):
    """P[Binomial(count, probability) = j] for j = 0 … count, each rounded once, as a tuple."""
    a, b = probability.as_integer_ratio()
    # Products of integers, of which only the quotient is rounded. Without one power for each.
    rest = [1]
    for _ in range(count):
        rest.append(rest[-1] * (b - a))
    ways, drawn, all_ways, weights = 1, 1, b**count, []
    for j in range(count + 1):
        weights.append(ways * drawn * rest[count - j] / all_ways)
        if not weights[-1] and j > probability * count:
            break  # past the most probable number, those that follow are smaller still
        ways, drawn = ways * (count - j) // (j + 1), drawn * a
    weights += [0.0] * (count + 1 - len(weights))
    return tuple(weights)


def mixture_losses(event, value_discretization_interval):
    """The privacy loss distribution of a mixture of Gaussians, for adding and for removing.

    Formal guarantees: pessimistic, by connecting the dots; sensitivities that have a probability
    below e^-50 together count as an infinite loss.

    Args:
        event: a `dp_accounting.dp_event.MixtureOfGaussiansDpEvent` with noise and a sensitivity
            above 0.
        value_discretization_interval: distance of neighbouring privacy losses.

    Returns:
        A `dp_accounting.pld.privacy_loss_distribution.PrivacyLossDistribution`.

    Source: Choquette-Choo, Ganesh, Steinke and Thakurta 2023; Charles et al. 2024.
    """
    mixture = _Mixture(event)
    return PrivacyLossDistribution(
        mixture.discrete(value_discretization_interval, mixture.removing),
        mixture.discrete(value_discretization_interval, mixture.adding),
    )


def mixture_renyi(event, orders):
    """A bound on both Rényi divergences of a mixture of Gaussians, at each order above 1.

    By joint convexity of e^((a-1)·D_a): as if it were seen how many records were drawn. True, and
    far from tight; for noise so small that privacy loss distributions take too much memory.
    """
    shifts, weights = _sorted(event)
    orders = np.asarray(orders, float)
    exponents = np.multiply.outer(orders * (orders - 1) / 2, shifts**2)
    bounds = special.logsumexp(exponents, b=weights, axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(orders > 1, bounds / (orders - 1), np.inf)


def mixture_loss_scale(event, count):
    """About the largest privacy loss of so many mixtures of Gaussians; for choosing a method."""
    shifts, weights = _sorted(event)
    one = shifts[np.cumsum(weights[::-1])[::-1] > _RARE].max() ** 2 / 2
    # log E[e^loss] is at least the mean of the loss.
    pairs = special.logsumexp(np.multiply.outer(shifts, shifts), b=np.outer(weights, weights))
    return max(float(one), 0.1 * count * float(pairs))


def _sorted(event):
    """Sensitivities over σ, in order, and their probabilities, none of which is 0."""
    shifts = np.asarray(event.sensitivities, float) / event.standard_deviation
    weights = np.asarray(event.sampling_probs, float)
    order = np.argsort(shifts, kind="stable")
    order = order[weights[order] > 0]
    if np.any(shifts < 0) or not math.isclose(weights.sum(), 1):
        raise ValueError(
            "A mixture of Gaussians must have sensitivities of at least 0 and probabilities that "
            f"add up to 1. Received: event={event!r}"
        )
    return shifts[order], weights[order]


class _Mixture:
    """Outcomes t ~ N(0, 1) without the unit, and t ~ Σ_j w_j N(s_j, 1) with it.

    Its loss l(t) = log Σ_j w_j exp(s_j t - s_j²/2) is increasing. Where it has a given value is
    found from a table, by straight lines: an error of size e in t changes δ, which has its maximum
    there, in the order of e² only. Of losses below those of all outcomes it is the end of the
    table, beyond which there is a probability of e^-50.
    """

    def __init__(self, event):
        shifts, weights = _sorted(event)
        # [j]: probability of more than s_j; no difference, in which the rarest would be lost.
        above = np.append(np.cumsum(weights[:0:-1])[::-1], 0.0)
        kept = int(np.argmax(above <= _TAIL)) + 1
        self.shifts, self.weights = shifts[:kept], weights[:kept]
        self.lost = float(above[kept - 1])
        self._z = z = -special.ndtri(_TAIL)
        share = np.minimum(_TAIL / (kept * self.weights), 0.5)
        self._high = max(z, np.max(self.shifts - special.ndtri(share)))

    def loss(self, t):
        """l(t)."""
        exponents = np.multiply.outer(t, self.shifts) - self.shifts**2 / 2
        return special.logsumexp(exponents, b=self.weights, axis=1)

    def discrete(self, interval, direction):
        """`LossMasses` of one direction: `removing` or `adding`."""
        low, high, deltas_at = direction()
        low, high = math.floor(low / interval), math.ceil(high / interval)
        deltas = deltas_at(np.arange(low, high + 1) * interval)
        return LossMasses.of_divergences(interval, low, np.clip(deltas, 0, 1))

    def removing(self):
        """(lowest loss, highest, δ as a function of them) of l(t) where t has the unit."""
        t = np.linspace(-self._z, self._high, _POINTS)
        losses = self.loss(t)

        def deltas(epsilons):
            cut = np.interp(epsilons, losses, t)
            of_unit = self._mass(-cut, 1) + self.lost
            return of_unit - np.exp(epsilons + special.log_ndtr(-cut))

        return losses[0], losses[-1], deltas

    def adding(self):
        """The same of -l(t) where t is without the unit."""
        t = np.linspace(-self._z, self._z, _POINTS)
        losses = self.loss(t)

        def deltas(epsilons):
            cut = np.interp(-epsilons, losses, t)
            with np.errstate(divide="ignore"):
                of_unit = np.log(self._mass(cut, -1))
            return special.ndtr(cut) - np.exp(epsilons + of_unit)

        return -losses[-1], -losses[0], deltas

    def _mass(self, at, sign):
        """Σ_j w_j Φ(at + sign·s_j)."""
        mass = np.zeros(len(at))
        for shift, weight in zip(self.shifts, self.weights, strict=True):
            mass += weight * special.ndtr(at + sign * shift)
        return mass
