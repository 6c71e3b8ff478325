"""Gaussians' privacy losses as whole arrays: dp_accounting's numbers, from which ε is stated."""

import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution

from tfdp.accounting import epsilon
from tfdp.accounting.accountants import best_accountant
from tfdp.accounting.losses.analytic_gaussian import gaussian_epsilon
from tfdp.accounting.losses.gaussian_losses import gaussian_losses

INTERVAL = 1e-2


@pytest.mark.parametrize("sigma", [0.6, 40.0])
@pytest.mark.parametrize("q", [1.0, 0.25, 1e-4])
def test_divergences_are_those_of_dp_accounting(sigma, q):
    ours = gaussian_losses(sigma, q, INTERVAL)
    theirs = privacy_loss_distribution.from_gaussian_mechanism(
        sigma, sampling_prob=q, value_discretization_interval=INTERVAL
    )
    at = np.linspace(-2, 12, 29)  # 0 and both limits, log(1 - q) and -log(1 - q), lie between
    for steps in (1, 30):
        np.testing.assert_allclose(
            ours.self_compose(steps).get_delta_for_epsilon(at),
            theirs.self_compose(steps).get_delta_for_epsilon(at),
            rtol=1e-12,
            atol=2e-15,  # what a composition moves to infinity, which theirs spares few losses
        )


@pytest.mark.thorough_after(1)
@pytest.mark.parametrize("adjacency", ["add_or_remove_one", "zero_out"])
def test_compositions_are_those_of_dp_accounting(adjacency):
    gaussian = dp_accounting.GaussianDpEvent(2.0)
    sampled = dp_accounting.PoissonSampledDpEvent(0.1, gaussian)
    event = dp_accounting.SelfComposedDpEvent(dp_accounting.ComposedDpEvent([gaussian, sampled]), 3)
    theirs = dp_accounting.pld.PLDAccountant().compose(event).get_epsilon(1e-6)
    found = epsilon(event, 1e-6, "pld", adjacency)
    assert theirs <= found <= theirs * (1 + 1e-8)  # above by the bound of PLD's rounding


@pytest.mark.parametrize("steps", [200, 20_000])
@pytest.mark.parametrize("delta", [1e-6, 1e-10, 1e-12])
def test_small_deltas_are_not_below_the_exact_composition(steps, delta):
    """The rounding of Fourier transforms would take 0.12 off the epsilon of 20,000 steps."""
    sigma = math.sqrt(steps) / 2.0
    # As composed without the closed form for unsampled Gaussians: a sampling probability of
    # almost 1 takes the general way, and its epsilon is below that of 1.
    event = dp_accounting.SelfComposedDpEvent(
        dp_accounting.PoissonSampledDpEvent(1 - 1e-9, dp_accounting.GaussianDpEvent(sigma)), steps
    )
    exact = gaussian_epsilon(sigma, delta, steps)
    by = best_accountant(event, delta=delta)
    assert by == ("rdp" if steps == 20_000 and delta < 1e-6 or delta == 1e-12 else "pld")
    assert epsilon(event, delta, "pld") >= exact * (1 - 1e-6)
    assert epsilon(event, delta, by) >= exact * (1 - 1e-6)


def test_pld_states_no_epsilon_at_a_delta_below_its_rounding():
    """2,000 compositions may be wrong by 2,016 · 2^-52 = 4.5e-13."""
    sampled = dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(2.0))
    event = dp_accounting.SelfComposedDpEvent(sampled, 2000)
    assert epsilon(event, 4e-13, "pld") == math.inf > epsilon(event, 5e-13, "pld")
