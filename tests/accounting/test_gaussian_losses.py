"""Gaussians' privacy losses as whole arrays: dp_accounting's numbers, from which ε is stated."""

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution

from tfdp.accounting import epsilon
from tfdp.accounting.gaussian_losses import gaussian_losses

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
            atol=1e-15,
        )


@pytest.mark.parametrize("adjacency", ["add_or_remove_one", "zero_out"])
def test_compositions_are_those_of_dp_accounting(adjacency):
    gaussian = dp_accounting.GaussianDpEvent(2.0)
    sampled = dp_accounting.PoissonSampledDpEvent(0.1, gaussian)
    event = dp_accounting.SelfComposedDpEvent(dp_accounting.ComposedDpEvent([gaussian, sampled]), 3)
    theirs = dp_accounting.pld.PLDAccountant().compose(event).get_epsilon(1e-6)
    assert epsilon(event, 1e-6, "pld", adjacency) == pytest.approx(theirs, rel=1e-12)
