"""Noise of a chain: the draws it is made of, exactly; its covariance over steps; its counters.

Programs cost more than draws: sources have two bands, or sizes and types of other tests, where no
more is necessary.
"""

import functools
from unittest import mock

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

from tfdp.accounting.correlated_noise import Correlation
from tfdp.errors import PrivacyError
from tfdp.noise import ChainSource, Grid, chain_source, correlated_source
from tfdp.runtime import xla

M = (1.0, -0.39, -0.13, -0.44)
IDENTITY = (1.0, 0.0, 0.0, 0.0)
TWO = (1.0, -0.6)


def chain_of(m, steps, bands=4, seed=None):
    source = ChainSource(bands, seed)
    source.begin(Correlation(m, steps))
    return source


def whitened(y, m, scale):
    """C₀y over the standard deviation of a draw: independent standard normal, if all holds."""
    steps = len(y)
    rows = np.arange(steps)[:, None] - np.arange(steps)[None]
    column = np.concatenate([m, np.zeros(steps)])[:steps]
    return np.linalg.solve(np.where(rows >= 0, column[np.abs(rows)], 0.0), y) / scale


def test_the_covariance_over_steps_is_that_of_the_matrix(steps=8):
    source = chain_of(M, steps)
    grid = source.grid(2.0, 0.5, SIZE, 0.0)
    y = releases(source, steps, grid)
    s = Correlation(M, steps).sensitivity
    assert float(grid.stddev) == pytest.approx(2.0 * s, rel=1e-4)
    assert_standard(whitened(y, M, 2.0 * s))


def test_a_chain_of_fewer_bands_than_its_source_takes_back_no_more(m=(1.0, -0.6), steps=4):
    source = chain_of(m, steps, bands=4)
    y = releases(source, steps, source.grid(1.0, 1.0, SIZE, 0.0))
    assert_standard(whitened(y, m, Correlation(m, steps).sensitivity))


def test_a_step_is_its_own_draw_and_earlier_ones_drawn_again_rounded(steps=6):
    grid = Grid(1.3, 1.0, 50)
    unit = float(grid.step)
    own = releases(chain_of(IDENTITY, steps, seed=3), steps, grid, (30, 20)) / unit
    found = releases(chain_of(M, steps, seed=3), steps, grid, (30, 20), sums=0.25) / unit
    for t in range(steps):
        left = sum(M[i] * own[t - i] for i in range(1, 4) if i <= t)
        np.testing.assert_array_equal(found[t], own[t] + np.round(left) + 0.25 / unit)


def test_nothing_is_taken_back_after_the_last_step(steps=3):
    source = chain_of(M, steps)
    grid = source.grid(1.0, 1.0, SIZE, 0.0)
    y = releases(source, steps + 3, grid) / float(grid.stddev)
    assert_standard(whitened(y[:steps], M, 1.0))
    assert_standard(np.concatenate([whitened(y[:steps], M, 1.0), y[steps:]]))


def test_outside_of_a_chain_noise_is_independent_and_its_key_is_gone():
    source = chain_of(M, 4)
    key = source.variables[0].numpy()
    source.end()
    assert key != source.variables[0].numpy()
    grid = source.grid(1.0, 1.0, SIZE, 0.0)
    assert float(grid.stddev) == pytest.approx(1.0, rel=1e-4)
    assert_standard(releases(source, 4, grid) / float(grid.stddev))


def test_a_chain_begins_with_a_new_key_and_at_its_first_step(steps=2):
    source, draws = chain_of(M, steps), []
    for _ in range(3):
        source.begin(Correlation(M, steps))
        draws.append(releases(source, steps, source.grid(1.0, 1.0, SIZE, 0.0)))
    s = Correlation(M, steps).sensitivity
    assert_standard(np.concatenate([whitened(y, M, s) for y in draws]))


def test_threads_share_no_step():
    assert_threads_draw_apart(chain_of(M, 12), "_position", Grid(1.0, 1.0, 4))


def test_tensors_of_one_step_share_no_draws(monkeypatch):
    monkeypatch.setattr(chain_source, "LARGEST_JOINED", 300)  # each tensor is a part by itself
    source = chain_of(IDENTITY, 2)
    y = releases(source, 2, Grid(1.0, 1.0, 800), sizes=(200, 200, 200, 200))
    # Two of 1,600 draws round to one float32 with probability 0.03; four pairs do with 1e-7.
    assert y.size - len(np.unique(y)) < 4


def test_roundings_of_a_chain_are_in_the_noise_and_stay_small():
    long = Correlation(M, 3000)
    source = chain_of(M, 3000)
    grid = source.grid(1.0, 1.0, 10**6, 0.0)
    raised = float(grid.stddev) / long.sensitivity - 1.0
    # In units of C: what is taken back differs by so many γ·√d in every step of two runs.
    units = 2.0 * sum(map(abs, M))
    moved = float(grid.step) * 1e3 * (1.0 + units * long.carried / long.sensitivity)
    assert raised == pytest.approx(moved, rel=1e-6) and 1e-6 < raised < 2e-4


# Rows of tables -----------------------------------------------------------------------------------

V, D = 40, 3
GRID_OF_ROWS = Grid(1.3, 1.0, 300)


def chosen_rows(steps, seed=0):
    """For each step and each of two tables, rows that are selected, sorted."""
    generator = np.random.default_rng(seed)
    return [[np.flatnonzero(generator.random(V) < 0.5) for _ in range(2)] for _ in range(steps)]


def begin_again(source, m, steps):
    """A chain that draws as those before it did, with no new key."""
    source.begin(Correlation(m, steps))
    source._key.assign([7])
    source._counter.assign([11, 13])


@functools.cache
def source_of_rows():
    """(source, its step of two tables and a vector), traced once."""
    tables = [tf.Variable(tf.zeros([V, D])) for _ in range(2)]
    source = ChainSource(4)
    source.build(tables)

    def step(*rows):
        sums = [tf.zeros([tf.shape(r)[0], D]) for r in rows]
        given = list(zip(tables, rows, sums, strict=True))
        return source.release([tf.zeros([7])], GRID_OF_ROWS, dtype=tf.float64, rows=given)

    run = tf.function(step, input_signature=[tf.TensorSpec([None], tf.int64)] * 2)
    return source, run


def row_releases(m, chosen, steps=None):
    """For each table and row the list of what its turns released, in units of the grid."""
    grid, (source, run) = GRID_OF_ROWS, source_of_rows()
    begin_again(source, m, steps or len(chosen))
    found, dense = [{r: [] for r in range(V + 1)} for _ in range(2)], []
    for rows in chosen:
        *noisy, weights = run(*[tf.constant(r, tf.int64) for r in rows])
        dense.append(weights.numpy() / float(grid.step))
        for table, of_table, values in zip(found, rows, noisy, strict=True):
            for r, value in zip(of_table, values.numpy(), strict=False):
                table[r].append(value / float(grid.step))
    return found, dense


@pytest.mark.thorough
def test_each_row_has_a_chain_of_its_own(steps=7):
    chosen = chosen_rows(steps)
    (own, own_dense), (found, dense) = (row_releases(m, chosen) for m in (IDENTITY, M))
    for table, draws in zip(found, own, strict=True):
        for row, values in table.items():
            for j, value in enumerate(values):
                left = sum(M[i] * draws[row][j - i] for i in range(1, 4) if i <= j)
                np.testing.assert_array_equal(value, draws[row][j] + np.round(left))
    # Draws of tables, rows, turns and dense weights are all different ones.
    flat = [v for table in own for values in table.values() for value in values for v in value]
    flat += np.concatenate(own_dense).tolist()
    assert len(flat) > 700 and len(set(flat)) == len(flat)
    expected = own_dense[2] + np.round(M[1] * own_dense[1] + M[2] * own_dense[0])
    np.testing.assert_array_equal(dense[2], expected)


def test_rows_take_nothing_back_after_the_last_step(steps=2):
    chosen = [[np.arange(V)] * 2] * (steps + 2)
    own, _ = row_releases(IDENTITY, chosen)
    found, _ = row_releases(M, chosen, steps=steps)
    for table, draws in zip(found, own, strict=True):
        for row in range(V):
            same = [np.array_equal(*pair) for pair in zip(table[row], draws[row], strict=True)]
            assert same == [True, False, True, True]


def test_a_step_that_selects_no_row_draws_none_and_the_next_one_goes_on():
    source, table = ChainSource(2), tf.Variable(tf.zeros([V, D]))
    source.build([table])
    begin_again(source, TWO, 2)
    for number in (0, 2):
        rows = [(table, tf.range(number, dtype=tf.int64), tf.zeros([number, D]))]
        noisy, _ = source.release([tf.zeros([7])], GRID_OF_ROWS, dtype=tf.float64, rows=rows)
        assert noisy.shape == (number, D) and noisy.dtype == tf.float64
    assert np.all(noisy != 0.0)


def test_rows_of_any_number_are_drawn_in_blocks_and_divided(monkeypatch):
    grid, table = Grid(2.0, 1.0, 300), tf.Variable(tf.zeros([V, D]))
    numbers = (2, 3, 36, V)
    rows = [np.random.default_rng(number).permutation(V)[:number] for number in numbers]
    sums = [np.float32(100.0 * one[:, np.newaxis] + np.arange(D)) for one in rows]

    def noisy(few, block, divisor):
        monkeypatch.setattr(chain_source, "FEW", few * D)
        monkeypatch.setattr(chain_source, "SMALL_DRAW", block * D)
        chain_source._rows_of_any_number.cache_clear()
        source = ChainSource(2)
        source.build([table])

        def step(rows, sums):
            return source.release([], grid, divisor, rows=[(table, rows, sums)])

        signature = tf.TensorSpec([None], tf.int64), tf.TensorSpec([None, D], tf.float32)
        run, found = tf.function(step, signature, autograph=False), []
        for given in zip(rows, sums, strict=True):
            begin_again(source, TWO, 2)
            found.append(run(*given)[0].numpy())
        return found

    pairs = zip(noisy(V, V, 1.0), noisy(2, 9, 8.0), sums, strict=True)
    chain_source._rows_of_any_number.cache_clear()  # what was traced here has sizes of this test
    for number, (whole, blocks, of_number) in zip(numbers, pairs, strict=True):
        np.testing.assert_array_equal(blocks, whole / 8.0, err_msg=f"{number} rows")
        assert np.all(np.abs(whole - of_number) < 8.0 * float(grid.stddev))
        assert np.all(whole != of_number)


def test_a_capacity_is_drawn_in_blocks_as_far_as_it_is_filled(monkeypatch):
    """Rows of a fixed number: those that hold something get the noise they get without it."""
    monkeypatch.setattr(chain_source, "SMALL_DRAW", 9 * D)  # five blocks, the last not full
    chosen, grid = [[np.array(c)] for c in ([4, 7, 30], range(19), range(V), [4])], Grid(2, 1, 300)
    found = []
    for capacity in (None, V):
        source, table = ChainSource(2, 3), tf.Variable(tf.zeros([V, D]))
        source.build([table])
        source.begin(Correlation(TWO, len(chosen)))

        def step(rows, source=source, table=table, capacity=capacity):
            sums = tf.repeat(tf.cast(rows % 64, tf.float32)[:, tf.newaxis], D, axis=1)
            sums = tf.ensure_shape(sums, [capacity, D])
            with xla.compiling(bool(capacity)):
                return source.release([], grid, rows=[(table, rows, sums)])

        signature = [tf.TensorSpec([capacity], tf.int64)]
        run = tf.function(step, signature, jit_compile=bool(capacity), autograph=False)
        for (rows,) in chosen:
            # What holds nothing may stand anywhere.
            filled = np.full(capacity or len(rows), 2**62 + 1)
            filled[len(filled) - len(rows) :] = rows
            filled = filled if rows[0] == 4 and len(rows) == 1 else np.sort(filled)
            (noisy,) = run(tf.constant(filled, tf.int64))
            found.append(noisy.numpy()[filled < V])
            blocks = -(-len(rows) // 9) * 9 if filled[0] < V else V
            np.testing.assert_array_equal(noisy[blocks:], 0.0)
    for without, with_capacity in zip(found[:4], found[4:], strict=True):
        np.testing.assert_allclose(with_capacity, without, atol=1e-5, rtol=0)
        assert np.all(np.abs(without - np.round(without)) > 0)


def test_the_noise_of_a_row_is_independent_from_place_to_place(width=8):
    source, table = ChainSource(2), tf.Variable(tf.zeros([SIZE // 4, width]))
    source.build([table])
    source.begin(Correlation(TWO, 2))
    grid, rows = Grid(1.0, 1.0, SIZE), tf.range(SIZE // 4, dtype=tf.int64)
    (noisy,) = source.release([], grid, rows=[(table, rows, tf.zeros_like(table))])
    assert_standard(noisy.numpy().T / float(grid.stddev))


def test_the_key_and_the_counter_decide_every_draw():
    grid, table = Grid(1.0, 1.0, 60), tf.Variable(tf.zeros([V, D]))

    def begin():
        source = ChainSource(4)
        source.build([table])
        source.begin(Correlation(M, 2))
        return source

    def release(source):
        rows = [(table, tf.range(5, dtype=tf.int64), tf.zeros([5, D]))]
        noisy = source.release([tf.zeros([30])], grid, dtype=tf.float64, rows=rows)
        return np.concatenate([one.numpy().ravel() for one in noisy])

    assert_key_and_counter_decide(begin, release)


def test_a_new_chain_counts_turns_from_zero():
    source, table = ChainSource(4), tf.Variable(tf.zeros([V, D]))
    source.build([table])
    for _ in range(2):
        source.begin(Correlation(M, 2))
        assert not np.any(source.variables[-1])
        rows = [(table, tf.constant([1, 5, 6, 8, 39], tf.int64), tf.zeros([5, D]))]
        source.release([], Grid(1.0, 1.0, 15), dtype=tf.float64, rows=rows)
        assert np.flatnonzero(source.variables[-1]).tolist() == [1, 5, 6, 8, 39]


@pytest.mark.thorough
def test_tables_of_several_widths_in_one_process():
    """As of models that are trained one after another."""
    for width in (3, 5, 8):
        source, table = ChainSource(2), tf.Variable(tf.zeros([V, width]))
        source.build([table])
        source.begin(Correlation(TWO, 2))

        def step(rows, source=source, table=table, width=width):
            sums = tf.zeros([tf.shape(rows)[0], width])
            return source.release([], Grid(1.0, 1.0, 9), rows=[(table, rows, sums)])

        (noisy,) = tf.function(step, input_signature=[tf.TensorSpec([None], tf.int64)])(
            tf.constant([1, 5], tf.int64)
        )
        assert noisy.shape == (2, width) and np.all(noisy)


@pytest.mark.thorough
def test_tables_of_one_width_share_their_programs(monkeypatch):
    """Of each size one, however many tables: each takes most of a second to compile."""
    for made_once in (chain_source._compiled_rows, chain_source._rows_of_any_number):
        made_once.cache_clear()
    compiled = mock.Mock(wraps=chain_source._released)
    monkeypatch.setattr(chain_source, "_released", compiled)
    tables = [tf.Variable(tf.zeros([V, D])) for _ in range(5)]
    source = ChainSource(2)
    source.build(tables)
    source.begin(Correlation(TWO, 2))

    def step(rows):
        rows = [(table, rows, tf.zeros([tf.shape(rows)[0], D])) for table in tables]
        return source.release([], Grid(1.0, 1.0, 9), rows=rows)

    run = tf.function(step, input_signature=[tf.TensorSpec([None], tf.int64)])
    noisy = np.array(run(tf.constant([1, 5], tf.int64)))
    assert compiled.call_count == 2  # a few rows, and many
    assert len(np.unique(noisy)) == noisy.size == 5 * 2 * D


def test_a_chain_on_a_tpu_is_refused(monkeypatch):
    monkeypatch.setattr(correlated_source, "platform", lambda: "TPU")
    with pytest.raises(PrivacyError, match="not drawn on TPUs"):
        ChainSource(4).release([tf.zeros([4])], Grid(1.0, 1.0, 4))


def test_other_weights_in_a_chain_are_refused():
    source, grid = chain_of(M, 3), Grid(1.0, 1.0, 9)
    source.release([tf.zeros([4, 2])], grid, dtype=tf.float64)
    rows = tf.IndexedSlices(tf.zeros([1, 2]), tf.zeros([1], tf.int64), tf.constant([4, 2]))
    for other in (tf.zeros([5, 2]), rows):
        with pytest.raises(PrivacyError, match="set of trained weights has changed"):
            source.release([other], grid)


@pytest.mark.thorough
def test_a_step_of_another_program_takes_back_what_was_added(monkeypatch):
    """Steps by themselves, and compiled as a whole, which fill up other sizes; to a unit or two."""
    monkeypatch.setattr(chain_source, "LARGEST_JOINED", 300)  # each tensor is a part by itself
    grid, sizes, found, source = Grid(1.0, 1.0, 700), (300, 370), [], ChainSource(2)

    def step(whole):
        with xla.compiling(whole):
            return source.release([tf.zeros([n]) for n in sizes], grid, dtype=tf.float64)

    compiled = tf.function(lambda: step(True), jit_compile=True, autograph=False)
    for first, second in ((False, False), (True, False), (False, True)):
        begin_again(source, TWO, 2)
        steps = [compiled() if whole else step(False) for whole in (first, second)]
        steps = [np.concatenate([np.asarray(t) for t in one]) for one in steps]
        found.append(np.array(steps) / float(grid.step))
    for other in found[1:]:
        assert np.all(np.abs(other - found[0]) <= 2)
