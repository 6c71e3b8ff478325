"""The central-limit approximation of DP-SGD's epsilon (Gaussian differential privacy)."""

import math

import numpy as np
from scipy import optimize, special

from tfdp import _validate

LARGEST_NOISE = 1e6  # noise multiplier that is looked for


def log_gaussian_delta(epsilon, mu):
    """log of delta(epsilon; mu) = Phi(-eps/mu + mu/2) - e^eps Phi(-eps/mu - mu/2)."""
    first = special.log_ndtr(-epsilon / mu + mu / 2)
    second = epsilon + special.log_ndtr(-epsilon / mu - mu / 2)
    gap = second - first
    return first + np.log(-np.expm1(gap)) if gap < 0 else -math.inf


def gdp_epsilon(mu, delta):
    """The epsilon, at least 0, at which delta(epsilon; mu) is this delta."""

    def excess(epsilon):
        return max(log_gaussian_delta(epsilon, mu), -1e6) - math.log(delta)

    if excess(0.0) <= 0:
        return 0.0
    upper = mu * mu / 2 + mu * math.sqrt(-2 * math.log(delta)) + 1.0
    while excess(upper) > 0:
        upper *= 2
    return float(optimize.brentq(excess, 0.0, upper, xtol=1e-12, rtol=1e-12))


def gdp_clt_epsilon(
    noise_multiplier: float, sampling_probability: float, steps: int, delta: float
) -> float:
    """Approximates epsilon of Poisson-sampled DP-SGD by a central limit theorem.

    mu = q sqrt(T (exp(1/sigma^2) - 1)); epsilon solves delta(epsilon; mu) = delta.

    This is an approximation, not a guarantee: it underestimates epsilon in the usual regime of
    DP-SGD (small q, many steps) and overestimates it for q near 1. tfdp never uses it for a
    statement: it starts the search of a calibration and reproduces tables of papers that used it.

    Args:
        noise_multiplier: sigma, standard deviation over clip norm; positive.
        sampling_probability: q in (0, 1].
        steps: T, a count.
        delta: a probability in (0, 1).

    Returns:
        The approximate epsilon; infinite where the formula overflows.

    Raises:
        ValueError: if an argument is out of range.

    Source: Bu, Dong, Long and Su (2019), "Deep learning with Gaussian differential privacy";
        MATH.md section 5.
    """
    sigma = _validate.positive("noise_multiplier", noise_multiplier)
    q = _validate.probability("sampling_probability", sampling_probability)
    steps = _validate.count("steps", steps)
    delta = _validate.open_unit("delta", delta)
    exponent = sigma**-2
    if exponent > 600:
        return math.inf
    mu = q * math.sqrt(steps * math.expm1(exponent))
    return gdp_epsilon(mu, delta) if mu else 0.0


def gdp_clt_noise_multiplier(epsilon, sampling_probability, steps, delta):
    """The sigma of which `gdp_clt_epsilon` is epsilon; no guarantee, as that is none."""
    low, high = math.log(0.05), math.log(LARGEST_NOISE)
    for _ in range(40):
        middle = (low + high) / 2
        if gdp_clt_epsilon(math.exp(middle), sampling_probability, steps, delta) > epsilon:
            low = middle
        else:
            high = middle
    return math.exp(high)
