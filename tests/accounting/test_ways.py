"""Ways to spend one ε, side by side: the numbers are those of each way by itself."""

import math

import dp_accounting
import numpy as np
import pytest

from tfdp.accounting import PrivacyBudget, banded_noise, calibrate_noise_multiplier, ways

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
    text = ways.table(found)
    assert text.count("\n") == 5
    # Who is in a batch of these may be seen: ε holds for a record whose contribution becomes zero.
    zero_out = {"in order, correlated (4 bands)", "shuffled"}
    assert zero_out == {one.name for one in found if one.adjacency == "zero_out"}
    assert text.count("zero_out") == 2 and text.count("add_or_remove_one") == 3


def test_passes_in_one_order_pay_for_all_of_their_participations():
    # Of few steps, in which the other ways are computed sooner.
    found = (ways.compare_ways(2 * SIZE, epochs, 3.0, DELTA, SIZE) for epochs in (1, 2))
    one, two = (of("in order", some) for some in found)
    assert one.noise_multiplier == two.noise_multiplier
    assert two.noise_in_weights > 1.3 * one.noise_in_weights


def test_bands_are_the_fewest_that_leave_nearly_the_least_noise(n=4000, size=100, steps=200):
    budget = PrivacyBudget(4.0, 1e-5)

    def left(bands):
        sigma = calibrate_noise_multiplier(budget, bands * size / n, steps // bands)
        chain = banded_noise.BandedCorrelation(banded_noise.optimized_strategy(bands, steps), steps)
        return sigma * chain.noise_in_weights() / size

    noise = {bands: left(bands) for bands in (1, 2, 4, 8)}
    nearly = min(b for b, one in noise.items() if one <= 1.05 * min(noise.values()))
    found = ways.banded_way(budget, n, steps * size / n, size)
    assert found.name == f"cyclic Poisson, correlated ({nearly} bands)"
    assert found.noise_in_weights == pytest.approx(noise[nearly])
    assert found.memory == f"{4 * (nearly - 1)} bytes a weight"
    # One band is Poisson batches, whose independent noise adds up.
    sigma = calibrate_noise_multiplier(budget, size / n, steps)
    assert noise[1] == pytest.approx(sigma / size * math.sqrt(np.mean(np.arange(1, steps + 1))))


def test_ways_have_the_steps_that_fit_takes_and_the_accountant_that_was_asked_for():
    n, size, epochs = 1000, 300, 10
    budget = PrivacyBudget(8.0, 1e-4)
    found = of("Poisson", ways.compare_ways(n, epochs, 8.0, 1e-4, size, "rdp"))
    assert found.noise_multiplier == calibrate_noise_multiplier(budget, 0.3, 30, "rdp")
    # 6.7 steps a pass make 6, 3 of 2 each.
    found = ways.banded_way(budget, n, 50, 150)
    assert "(2 bands)" in found.name
    assert found.noise_multiplier == calibrate_noise_multiplier(budget, 0.3, 150, None)
