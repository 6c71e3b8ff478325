"""Masses of privacy losses as whole arrays: dp_accounting's own numbers."""

import itertools
import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import common, pld_pmf
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tfdp._compat.dp_accounting import parts_of
from tfdp.accounting import epsilon
from tfdp.accounting.events.visible_sampling import VisiblySampledGaussianDpEvent
from tfdp.accounting.losses.loss_masses import LossMasses

INTERVAL = 0.01


def _pair(seed, size=300, lowest=-80, infinity=1e-7):
    """The same masses as ours and as dp_accounting's."""
    generator = np.random.default_rng(seed)
    masses = generator.gamma(0.3, size=size) * np.exp(-((np.arange(size) - size / 2) ** 2) / 2e3)
    masses *= (1 - infinity) / masses.sum()
    theirs = pld_pmf.DensePLDPmf(INTERVAL, lowest, masses.copy(), infinity, True)
    return LossMasses(INTERVAL, lowest, masses.copy(), infinity), theirs


def _assert_equal(ours, theirs):
    for mine, other in zip(parts_of(ours), parts_of(theirs), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-9, atol=1e-17)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 64, 1000])
def test_powers_are_those_of_dp_accounting(count):
    ours, theirs = _pair(count)
    _assert_equal(ours.self_compose(count), theirs.self_compose(count))


@pytest.mark.parametrize("truncated", [0, 1e-15, 1e-3])
def test_products_are_those_of_dp_accounting(truncated):
    (ours, theirs), (mine, other) = _pair(1), _pair(2, 500, 30, 1e-3)
    _assert_equal(ours.compose(mine, truncated), theirs.compose(other, truncated))
    _assert_equal(ours.compose(other, truncated), theirs.compose(other, truncated))


def test_losses_on_another_grid_are_refused():
    """Index by index, the sum of two losses would be some other loss."""
    with pytest.raises(ValueError, match="0.01 and 0.02"):
        _pair(1)[0].compose(LossMasses(2 * INTERVAL, -80, np.full(10, 0.1), 0.0))


def test_the_range_of_a_sum_is_that_of_dp_accounting():
    """Else a composition would keep too much, or put more than it says to infinity."""
    ours, _ = _pair(3)
    masses = parts_of(ours)[2]
    for count in (1, 40, 5000):
        low, high = common.compute_self_convolve_bounds(masses, count, 1e-15)
        composed = ours.self_compose(count)
        assert parts_of(composed)[1] - count * parts_of(ours)[1] == low
        assert composed.size == high - low + 1
    # Nothing may be cut: all that can occur is kept.
    assert ours.self_compose(3, 0).size == 3 * (ours.size - 1) + 1


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    lowest=st.sampled_from([-400, -301, -300, -299, -80, 0, 40, 69_900, 80_000]),
    log_delta=st.floats(-9, -0.01),
    infinity=st.sampled_from([0.0, 1e-7, 1e-2]),
)
def test_epsilon_is_that_of_dp_accounting(seed, lowest, log_delta, infinity):
    ours, theirs = _pair(seed, lowest=lowest, infinity=infinity)
    delta = 10**log_delta
    expected = theirs.get_epsilon_for_delta(delta)
    assert ours.get_epsilon_for_delta(delta) == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_dots_are_connected_as_dp_accounting_connects_them():
    losses = INTERVAL * np.arange(-700, 600)
    deltas = stats.norm.cdf(0.5 - losses) - np.exp(losses) * stats.norm.cdf(-0.5 - losses)
    deltas[-1] = deltas[-2] + 1e-13  # rounding may let a divergence rise
    ours = LossMasses.of_divergences(INTERVAL, -700, deltas)
    theirs = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(INTERVAL, -700, 599, deltas)
    _assert_equal(ours, theirs)
    assert math.isclose(parts_of(ours)[2].sum() + parts_of(ours)[3], 1)


@pytest.mark.thorough
def test_events_of_every_kind_compose_in_every_order():
    gaussian = dp_accounting.GaussianDpEvent(3.0)
    events = [
        dp_accounting.PoissonSampledDpEvent(0.1, gaussian),
        VisiblySampledGaussianDpEvent(0.25, 8.0),
        dp_accounting.LaplaceDpEvent(20.0),
        gaussian,
    ]
    found = {
        round(epsilon(dp_accounting.ComposedDpEvent(order), 1e-6, adjacency="zero_out"), 8)
        for order in itertools.permutations(events)
    }
    assert len(found) == 1
