"""Coefficients of correlated noise: sensitivities against brute force, noise against matrices."""

import itertools
import time

import jax_privacy_numbers
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdp.accounting import correlated_noise as correlation
from tfdp.accounting.correlated_noise import (
    Workload,
    noise_in_weights,
    optimized,
    sensitivity,
)


def toeplitz(column):
    steps = len(column)
    rows = np.arange(steps)[:, None] - np.arange(steps)[None]
    return np.where(rows >= 0, np.asarray(column)[np.abs(rows)], 0.0)


def padded(m, steps):
    return np.concatenate([m, np.zeros(steps)])[:steps]


def patterns(steps, most, separation):
    for count in range(1, most + 1):
        for chosen in itertools.combinations(range(steps), count):
            if all(b - a >= separation for a, b in itertools.pairwise(chosen)):
                yield chosen


def by_brute_force(m, steps, most, separation):
    """The largest norm over all patterns, and all signs of a record's shares."""
    c = np.linalg.inv(toeplitz(padded(m, steps)))
    largest = 0.0
    for chosen in patterns(steps, most, separation):
        columns = c[:, chosen]
        for signs in itertools.product([1.0, -1.0], repeat=len(chosen) - 1):
            largest = max(largest, np.linalg.norm(columns @ np.array([1.0, *signs])))
    return largest


@settings(max_examples=60, deadline=None)
@given(
    rest=st.lists(st.floats(-0.9, 0.9), min_size=0, max_size=4), steps=st.integers(1, 9),
    most=st.integers(1, 3), separation=st.integers(1, 4),
)  # fmt: skip
def test_the_sensitivity_is_never_below_brute_force(rest, steps, most, separation):
    m = [1.0, *rest]
    true = by_brute_force(m, steps, most, separation)
    found = sensitivity(m, steps, most, separation)
    assert found >= true * (1 - 1e-9)
    if most == 1:
        assert found == pytest.approx(true)


#: Coefficients by how C₀ is: falling, positive with a bump at the last band, of both signs, and
#: with more overlap at larger distances: of steps that are 5 or more apart those that are 6.
KINDS_OF_C0 = {
    "falling": correlation.square_root(12), "bump": (1.0, -0.39, -0.13, -0.43),
    "both signs": (1.0, 0.6, -0.5, 0.3), "comb": (1.0, 0.0, 0.0, -0.9),
}  # fmt: skip


@pytest.mark.parametrize("most, separation", [(1, 1), (2, 5), (3, 4), (4, 1), (6, 1)])
@pytest.mark.parametrize("kind", KINDS_OF_C0)
def test_the_sensitivity_of_twelve_steps_is_exact_or_little_above(kind, most, separation, steps=12):
    m = KINDS_OF_C0[kind]
    true = by_brute_force(m, steps, most, separation)
    found = sensitivity(m, steps, most, separation)
    assert found >= true * (1 - 1e-12)
    above = {"falling": 1 + 1e-9, "bump": 1.03, "both signs": 1.4, "comb": 1.6}
    assert found <= true * above[kind]


def test_many_participations_cost_at_most_what_their_pairs_do_and_at_least_what_they_are():
    m, steps = (1.0, -0.39, -0.13, -0.43), 300
    c = correlation.inverse(m, steps)
    assert np.all(c >= 0) and np.any(np.diff(c) > 0)
    found = sensitivity(m, steps, 150, 2)
    true = np.linalg.norm(sum(np.concatenate([np.zeros(2 * j), c])[:steps] for j in range(150)))
    assert true <= found <= 1.02 * true


@pytest.mark.parametrize("steps", [1, 2, 37, 1000])
def test_overlaps_by_fourier_transform_are_never_too_small(steps):
    c = np.abs(np.random.default_rng(steps).normal(size=steps))
    exact = c.astype(np.longdouble)
    true = np.array([exact[d:] @ exact[: steps - d] for d in range(steps)])
    found = correlation._overlaps(c)
    assert np.all(found[1:] >= true[1:])
    np.testing.assert_allclose(found, true.astype(float), rtol=0, atol=2e-13 * float(true[0]))


def test_ten_thousand_steps_take_less_than_a_second():
    begin = time.process_time()
    sensitivity((1.0, -0.3901, -0.125, -0.436), 10_000, 5_000, 2)
    assert time.process_time() - begin < 1.0


@pytest.mark.parametrize("strategy, most, separation, expected", jax_privacy_numbers.SETTINGS)
def test_coefficients_and_sensitivities_are_those_of_jax_privacy(
    strategy, most, separation, expected
):
    steps, column, noising = jax_privacy_numbers.STRATEGIES[strategy]
    if column is None:
        m, scale = correlation.square_root(steps), 1.0
    else:
        column, scale = padded(column, steps), column[0]
        m = correlation.inverse(column / scale, steps)
    assert m[:6] / scale == pytest.approx(noising, abs=1e-12)
    assert scale * sensitivity(m, steps, most, separation) == pytest.approx(expected, rel=1e-11)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("rates", [None, tuple(np.linspace(1.0, 0.1, 30))])
def test_noise_in_the_weights_is_that_of_the_matrices(momentum, rates):
    steps, m = 30, [1.0, -0.4, -0.1, -0.3]
    learning = np.ones(steps) if rates is None else np.array(rates)
    filtered = toeplitz(momentum ** np.arange(steps)) @ toeplitz(padded(m, steps))
    weights = np.tril(np.ones((steps, steps))) @ (learning[:, None] * filtered)
    true = np.sqrt(np.mean(np.sum(weights**2, 1))) / np.sqrt(np.mean(learning**2))
    assert noise_in_weights(m, steps, Workload(momentum, rates)) == pytest.approx(true)


def gain(m, steps, workload=correlation.PREFIX_SUMS):
    left = sensitivity(m, steps) * noise_in_weights(m, steps, workload)
    return noise_in_weights([1.0], steps, workload) / left


#: Of NEXT.md: gains of the optimum for T steps, of 2, 4 and 8 bands and of the full square root.
GAINS = {60: (2.26, 2.47, 2.54, 2.50), 140: (2.82, 3.20, 3.37, 3.39),
         1000: (4.68, 5.65, 6.27, 7.21), 2746: (6.05, 7.48, 8.52, 10.8)}  # fmt: skip


@pytest.mark.parametrize("steps", GAINS)
def test_coefficients_gain_what_was_computed_for_them(steps):
    found = [gain(optimized(bands, steps), steps) for bands in (2, 4, 8)]
    found.append(gain(correlation.square_root(steps), steps))
    assert np.all(np.array(found) >= np.array(GAINS[steps]) * 0.998)


@pytest.mark.thorough
def test_coefficients_follow_the_workload():
    fading = Workload(0.0, tuple(np.linspace(1.0, 0.02, 200)))
    for workload in (Workload(0.9), fading):
        own, other = optimized(4, 200, workload), optimized(4, 200)
        assert gain(own, 200, workload) > gain(other, 200, workload)


@pytest.mark.parametrize("m", [(1.0, -0.5, -0.125), (1.0, 0.7)])
def test_roundings_of_all_steps_move_no_more_than_is_carried(m, steps=8):
    c = np.linalg.inv(toeplitz(padded(m, steps)))
    signs = np.array(list(itertools.product([1.0, -1.0], repeat=steps)))
    moved = np.linalg.norm(signs @ c.T, axis=1).max()
    assert moved <= correlation.Correlation(m, steps).carried <= 2.0 * moved


def test_an_inverse_that_explodes_has_an_infinite_sensitivity():
    assert sensitivity([1.0, -30.0], 400) == np.inf
    with pytest.raises(ValueError, match="would be infinite"):
        correlation.Correlation((1.0, -15.0), 400)


@pytest.mark.parametrize("name", ["steps", "participations", "min_separation"])
@pytest.mark.parametrize("value", [0, -1, 1.5, "2"])
def test_counts_of_a_chain_are_whole_and_positive(name, value):
    """Of no participation, for one, the noise would be none."""
    fields = {"coefficients": (1.0, -0.5), "steps": 4, name: value}
    with pytest.raises(ValueError, match=f"Argument `{name}`"):
        correlation.Correlation(**fields)


@pytest.mark.parametrize("m", [(), (0.9, 0.1), (1.0, 15.5), (1.0, -15.5), (1.0, float("nan"))])
def test_coefficients_begin_with_one_and_fit_into_exact_sums(m):
    correlation.Correlation((1.0, -0.5, 14.5), 3)
    with pytest.raises(ValueError, match="Argument `coefficients`"):
        correlation.Correlation(m, 3)


@pytest.mark.thorough
def test_coefficients_follow_the_participations(steps=60):
    def left(m):
        return sensitivity(m, steps, 20, 3) * noise_in_weights(m, steps)

    assert left(optimized(4, steps, Workload(), 20, 3)) < 0.97 * left(optimized(4, steps))


def test_one_step_has_nothing_to_take_back():
    assert optimized(4, 1) == (1.0, 0.0, 0.0, 0.0) and sensitivity([1.0, -0.5], 1) == 1.0
