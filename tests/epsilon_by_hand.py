"""ε by hand, and that everybody states it."""

import functools
import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting import pld
from scipy import optimize, stats

import tfdp
from tfdp.accounting.losses.gdp import log_gaussian_delta

DELTA = 1e-3
N = 40


def poisson(sigma, q, steps):
    event = dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(sigma))
    return dp_accounting.SelfComposedDpEvent(event, steps)


@functools.cache
def by_hand(*events):
    accountant = pld.PLDAccountant()
    for event in events:
        accountant.compose(event)
    return accountant.get_epsilon(DELTA)


def assert_one(model, expected, rel=1e-6):
    """Everything that states an ε states this one."""
    statement = model.privacy_statement(DELTA)
    assert statement.epsilon == pytest.approx(expected, rel=rel)
    assert model.ledger.epsilon(DELTA) == statement.epsilon
    if isinstance(model.optimizer, tfdp.optimizers.DPOptimizer):
        assert model.optimizer.epsilon(DELTA) == statement.epsilon
        assert model.optimizer.ledger == model.ledger


def visible_sampling_epsilon(noise_multiplier, sampling_probability, draws, delta):
    """ε of `draws` visible Bernoulli draws of one noisy vector, in closed form.

    δ(ε) = Σ_k P[Binomial(draws, q) = k] δ_Gaussian(ε; √k/σ). Cross-checks the accountants' value
    of `VisiblySampledGaussianDpEvent`.

    Args:
        noise_multiplier: σ/C.
        sampling_probability: q.
        draws: a count.
        delta: a probability in (0, 1).
    """
    q, target = sampling_probability, delta
    # Beyond these the probability is below 1e-18, far under any delta in use; the upper tail is
    # counted as if it published the record.
    low, high = (int(stats.binom.ppf(p, draws, q)) for p in (1e-18, 1 - 1e-16))
    high = min(draws, high + 10 + high // 2)
    counts = np.arange(low, high + 1)
    weights = stats.binom.pmf(counts, draws, q)
    tail = stats.binom.sf(high, draws, q)

    def excess(eps):
        deltas = [
            math.exp(log_gaussian_delta(eps, math.sqrt(k) / noise_multiplier)) if k else 0.0
            for k in counts
        ]
        return float(weights @ np.array(deltas)) + tail - target

    if excess(0.0) <= 0:
        return 0.0
    mu = math.sqrt(high) / noise_multiplier
    upper = mu * mu / 2 + mu * math.sqrt(-2 * math.log(target)) + 1.0
    return float(optimize.brentq(excess, 0.0, upper, xtol=1e-10))
