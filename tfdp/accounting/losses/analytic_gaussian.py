"""Exact privacy of the Gaussian mechanism without sampling, at any epsilon."""

import math

from scipy import optimize

from tfdp import _validate
from tfdp.accounting.losses.gdp import gdp_epsilon, log_gaussian_delta


def gaussian_epsilon(noise_multiplier, delta, releases=1):
    """epsilon of `releases` Gaussian releases, from delta(eps; mu), mu = sqrt(releases) / sigma.

    Args:
        noise_multiplier: sigma, the standard deviation over the l2 sensitivity.
        delta: a probability in (0, 1).
        releases: a count.

    Returns:
        A float of at least 0.

    Source: Balle and Wang (2018), theorem 8.

    Example:

    >>> round(gaussian_epsilon(3.7304, 1e-5), 3)
    1.0
    """
    mu = math.sqrt(_validate.count("releases", releases)) / _validate.positive(
        "noise_multiplier", noise_multiplier
    )
    return gdp_epsilon(mu, _validate.open_unit("delta", delta))


def gaussian_noise_multiplier(budget, releases=1):
    """The smallest noise multiplier with which `releases` Gaussian releases meet a budget.

    Args:
        budget: a `PrivacyBudget`.
        releases: a count.

    Returns:
        sigma, rounded up by a relative 1e-9.
    """
    target = math.log(budget.delta)

    def excess(log_sigma):
        return max(log_gaussian_delta(budget.epsilon, math.exp(-log_sigma)), -1e6) - target

    low = high = 0.0
    while excess(low) <= 0:
        low -= 1.0
    while excess(high) > 0:
        high += 1.0
    root = math.exp(optimize.brentq(excess, low, high, xtol=1e-13, rtol=1e-13))
    return root * math.sqrt(_validate.count("releases", releases)) * (1 + 1e-9)
