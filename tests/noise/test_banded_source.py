"""Noise of a banded matrix: the draws it is made of, exactly; its covariance; its end."""

import numpy as np
import pytest
import tensorflow as tf
from noise_over_steps import (
    SIZE,
    assert_key_and_counter_decide,
    assert_standard,
    assert_threads_draw_apart,
    releases,
)

from tfdp.accounting.banded_noise import BandedCorrelation
from tfdp.errors import PrivacyError
from tfdp.noise import BandedSource, Grid, banded_source
from tfdp.noise.training_source import compiled_size
from tfdp.runtime import xla

C = (1.0, 0.55, 0.2, 0.3)
IDENTITY = (1.0, 0.0, 0.0, 0.0)


def source_of(c, steps=12, seed=None):
    source = BandedSource(len(c), seed)
    source.begin(BandedCorrelation(c, steps))
    return source


def draws_of(y, c, scale):
    """C₀y over the standard deviation of a draw: independent standard normal, if all holds."""
    return sum(one * np.eye(len(y), k=-k) for k, one in enumerate(c)) @ y / scale


@pytest.mark.parametrize("c", [C, pytest.param((1.0, 0.8), marks=pytest.mark.evidence), (1.0,)])
def test_the_covariance_over_steps_is_that_of_the_matrix(c, steps=8):
    source = source_of(c, steps)
    grid = source.grid(2.0, 0.5, SIZE, 0.0)
    y = releases(source, steps, grid)
    s = np.linalg.norm(c)
    assert float(grid.stddev) == pytest.approx(2.0 * s, rel=1e-3)
    assert_standard(draws_of(y, c, 2.0 * s))


def test_the_noise_of_a_step_is_its_draw_less_what_is_taken_back_of_earlier_noise(steps=9):
    c = (1.0, 0.5625, 0.25, 0.3125)  # sums of products are exact, and so are their ties
    grid = source_of(c).grid(1.3, 1.0, 50, 0.0)
    unit = float(grid.step)
    own = releases(source_of(IDENTITY, seed=3), steps, grid, (30, 20)) / unit
    found = releases(source_of(c, seed=3), steps, grid, (30, 20), sums=0.25) / unit
    noise = found - 0.25 / unit
    for t in range(steps):
        taken = sum(c[i] * noise[t - i] for i in range(1, 4) if i <= t)
        np.testing.assert_array_equal(noise[t], own[t] - np.round(taken))


def test_after_the_end_nothing_of_a_chain_is_kept_and_noise_is_independent():
    source = source_of(C)
    grid = source.grid(1.0, 1.0, SIZE, 0.0)
    releases(source, 5, grid)
    key = source.variables[0].numpy()
    assert np.all(np.any(source.variables[-1].numpy(), axis=(1, 2)))
    source.end()
    assert key != source.variables[0].numpy() and not np.any(source.variables[-1].numpy())
    grid = source.grid(1.0, 1.0, SIZE, 0.0)
    assert float(grid.stddev) == pytest.approx(1.0, rel=1e-4)
    assert grid.tensors == BandedSource(4).grid(1.0, 1.0, SIZE, 0.0).tensors
    assert_standard(releases(source, 5, grid) / float(grid.stddev))


def test_a_chain_begins_with_a_new_key_and_nothing_kept(steps=2):
    source, draws, keys = source_of(C), [], set()
    for _ in range(3):
        source.begin(BandedCorrelation(C, steps))
        keys.add(int(source.variables[0].numpy()[0]))
        y = releases(source, steps, source.grid(1.0, 1.0, SIZE, 0.0))
        draws.append(draws_of(y, C, np.linalg.norm(C)))
    assert_standard(np.concatenate(draws))
    assert len(keys) == 3


@pytest.mark.thorough_after(1)
@pytest.mark.parametrize("c", [C, (1.0,)])
def test_the_key_and_the_counter_decide_every_draw(c):
    grid = source_of(c).grid(1.0, 1.0, 60, 0.0)
    assert_key_and_counter_decide(lambda: source_of(c), lambda one: releases(one, 2, grid, (30,)))


def test_threads_share_no_step():
    assert_threads_draw_apart(source_of((1.0,)), "_position", Grid(1.0, 1.0, 4))


def test_tensors_of_one_step_share_no_draws_and_nothing_kept(monkeypatch):
    monkeypatch.setattr(banded_source, "LARGEST_JOINED", 300)  # each tensor is a part by itself
    source = source_of(IDENTITY)  # takes nothing back: what is released are the draws
    source._counter.assign([0, 5])
    y = releases(source, 3, source.grid(1.0, 1.0, 800, 0.0), sizes=(200, 200, 200, 200))
    # Two of 2,400 draws round to one float32 with probability 0.06; four pairs do with 1e-6.
    assert y.size - len(np.unique(y)) < 4
    # Each draw takes one value of the counter, those that fill up a part too.
    assert source._counter.numpy()[0] >= 3 * 4 * compiled_size(200)
    assert len(source.variables) == 5 + 4


def test_what_is_kept_fits_into_its_bits_and_roundings_are_in_the_noise():
    chain = BandedCorrelation(C, 3000)
    source = BandedSource(4)
    source.begin(chain)
    for stddev, coordinates in ((1.0, 10**6), (30.0, 10**8), (1e-3, 10)):
        grid = source.grid(tf.constant(stddev, tf.float64), 1.0, coordinates, 0.01)
        step = float(grid.step)
        assert 12.0 * chain.largest * float(grid.stddev) / step < 2.0**31
        # In units of C: each of the three later steps may round otherwise by one unit.
        moved = step * coordinates**0.5 * (1.0 + 3.0**0.5 / chain.sensitivity)
        raised = float(grid.stddev) / (stddev * chain.sensitivity) - 1.01
        assert moved <= raised <= 1.01 * moved + 1e-12
    assert np.isnan(float(source.grid(1e4, 1.0, 10**8, 0.0).stddev))


@pytest.mark.parametrize("c", [C, (1.0, 0.9)])
def test_the_largest_noise_of_any_setting_fits_into_its_bits_and_little_is_left(c):
    source, largest, allowed = BandedSource(len(c)), 0.0, 0
    source.begin(BandedCorrelation(c, 3000))
    limit = 2.0**31 / (12.0 * BandedCorrelation(c, 3000).largest)
    stddevs = tf.constant(np.geomspace(1.0, 1.9, 5))
    for rounding in (0.0, 0.5):
        for coordinates in np.geomspace(1e6, 1e16, 41):
            grid = source.grid(stddevs, 1.0, coordinates, rounding)
            units = (grid.stddev / grid.step).numpy()
            units = units[~np.isnan(units)]
            largest = max(largest, units.max(initial=0.0) / limit)
            allowed += len(units)
    assert 0.8 < largest <= 1.0 and 100 < allowed < 350


def test_noise_of_one_band_and_of_several_is_divided():
    for c in ((1.0,), C):
        grid, found = source_of(c).grid(1.0, 1.0, 9, 0.0), []
        for divisor in (1.0, 8.0):
            source = source_of(c, seed=3)
            (noisy,) = source.release([tf.fill([9], 5.0)], grid, divisor, tf.float64)
            found.append(noisy.numpy())
        np.testing.assert_array_equal(found[1], found[0] / 8.0)


@pytest.mark.thorough
def test_a_step_that_fails_moves_nothing_that_is_kept():
    source = source_of(C)
    grid = source.grid(1.0, 1.0, 9, 0.0)

    @tf.function
    def step(x):
        x = tf.debugging.check_numerics(x, "the data have ended")
        return source.release([x], grid, dtype=tf.float64)

    step(tf.zeros([9]))
    before = [v.numpy() for v in source.variables]
    for _ in range(5):
        with pytest.raises(tf.errors.InvalidArgumentError, match="ended"):
            step(tf.fill([9], np.nan))
    position, *kept = (v.numpy() for v in source.variables[3:])
    np.testing.assert_array_equal(position, before[3])
    for one, old in zip(kept, before[4:], strict=True):
        np.testing.assert_array_equal(one, old)


def test_before_its_first_chain_a_source_adds_independent_noise():
    source = BandedSource(4)
    grid = source.grid(1.0, 1.0, SIZE, 0.0)
    assert_standard(releases(source, 5, grid) / float(grid.stddev))


def test_rows_of_tables_are_refused():
    with pytest.raises(PrivacyError, match="dense weights only"):
        BandedSource(4).build([tf.Variable(tf.zeros([5, 2]))])


def test_other_weights_in_a_chain_are_refused():
    source = source_of(C)
    grid = source.grid(1.0, 1.0, 9, 0.0)
    source.release([tf.zeros([4, 2])], grid, dtype=tf.float64)
    with pytest.raises(PrivacyError, match="set of trained weights has changed"):
        source.release([tf.zeros([5, 2])], grid)


@pytest.mark.thorough
def test_a_step_that_is_compiled_as_a_whole_goes_on_from_what_was_kept(monkeypatch):
    """Parts of sizes that single steps fill up, and compiled ones do not."""
    monkeypatch.setattr(banded_source, "LARGEST_JOINED", 300)
    source, sizes = source_of((1.0, -0.9), seed=5), (301, 371)
    grid = source.grid(1.0, 1.0, 700, 0.0)

    def step(whole):
        with xla.compiling(whole):
            return source.release([tf.zeros([n]) for n in sizes], grid, dtype=tf.float64)

    compiled = tf.function(lambda: step(True), jit_compile=True, autograph=False)
    found = []
    for program in (lambda: step(False), compiled, compiled, lambda: step(False)):
        found.append(np.concatenate([np.asarray(t) for t in program()]))
    kept = zip(source.variables[5:], sizes, strict=True)
    # The first values of pairs lie before the second ones.
    kept = np.concatenate([v.numpy()[0].T.reshape(-1)[:n] for v, n in kept])
    unit = float(grid.step)
    np.testing.assert_array_equal(kept, found[-1] / unit)
    own = (found[-1] - 0.9 * found[-2]) / float(grid.stddev)
    # 670 draws: their mean square is off by 0.33 with probability below 1e-8.
    assert abs(np.mean(own**2) - 1.0) < 0.33
