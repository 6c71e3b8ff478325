"""Ways to spend one ε, side by side: the numbers are those of each way by itself."""

import math

import dp_accounting
import numpy as np
import pytest

from tfdp.accounting import ways

N, SIZE, DELTA = 51_200, 512, 1e-6


def of(name, found):
    return next(one for one in found if one.name.startswith(name))


def test_one_pass_in_order_has_the_gaussian_of_its_epsilon_and_less_noise_in_the_weights():
    found = ways.compare_ways(N, 1, 3.0, DELTA, SIZE)
    chain, shuffled = of("in order", found), of("shuffled", found)
    sigma = dp_accounting.get_sigma_gaussian(3.0, DELTA)
    assert chain.noise_multiplier == pytest.approx(sigma, rel=2e-3)
    assert shuffled.noise_multiplier == pytest.approx(sigma, rel=2e-3)
    # Independent noise adds up: after t steps the variance is t.
    alone = sigma / SIZE * math.sqrt(np.mean(np.arange(1, 101)))
    assert shuffled.noise_in_weights == pytest.approx(alone, rel=2e-3)
    assert 2.4 < shuffled.noise_in_weights / chain.noise_in_weights < 3.2
    assert found[0].noise_in_weights == min(one.noise_in_weights for one in found)
    assert ways.table(found).count("\n") == 4


def test_passes_in_one_order_pay_for_all_of_their_participations():
    one, two = (of("in order", ways.compare_ways(N, e, 3.0, DELTA, SIZE)) for e in (1, 2))
    assert one.noise_multiplier == two.noise_multiplier
    assert two.noise_in_weights > 1.3 * one.noise_in_weights
