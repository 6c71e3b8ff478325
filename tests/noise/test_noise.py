"""The sampler of the noise: true tails, fresh entropy, nothing saved, no two draws alike.

Each statistical test states its false-alarm rate; together they fail by chance once in a million
runs.
"""

import copy
import functools
import itertools
import pickle

import keras
import numpy as np
import pytest
import slow
import tensorflow as tf
from noise_over_steps import assert_key_and_counter_decide, assert_threads_draw_apart, releases
from scipy import stats

from tfdp import noise
from tfdp.noise import Grid, NoiseSource, gaussian, standard_normal_from_bits
from tfdp.runtime.xla import compiling


def bits_of(magnitudes, negative=False):
    return tf.constant([2 * m + negative for m in magnitudes], tf.uint64)


def test_bits_to_normal_is_the_inverse_distribution_function():
    magnitudes = [0, 1, 5, 2**10, 2**30, 2**40, 2**50, 2**56, 2**60, 2**62, 3 * 2**61, 2**63 - 1]
    tail = (np.array(magnitudes, np.float64) + 0.5) * 2.0**-64
    for negative in (False, True):
        values = standard_normal_from_bits(bits_of(magnitudes, negative)).numpy()
        wanted = (-1 if negative else 1) * stats.norm.isf(tail)
        np.testing.assert_allclose(values, wanted, rtol=1e-12, atol=1e-15)


def test_largest_value_is_beyond_nine_sigma():
    # Fault 19: `tf.random.normal` never exceeds 5.678.
    assert standard_normal_from_bits(bits_of([0])).numpy()[0] > 9.0
    assert standard_normal_from_bits(bits_of([0], True)).numpy()[0] < -9.0


@pytest.mark.parametrize("zeros", [20, 25, 27, 40, 55])
def test_tails_are_as_heavy_as_they_should_be(zeros):
    # Uniform bits whose magnitude starts with `zeros` zeros are the tail of that probability:
    # this makes |z| > 5.7 (25 zeros: |z| > 5.54) common, and z must follow the tail's law.
    magnitude = tf.bitwise.right_shift(NoiseSource().bits((20_000,)),
                                       tf.constant(zeros + 1, tf.uint64))  # fmt: skip
    z = standard_normal_from_bits(tf.bitwise.left_shift(magnitude, tf.constant(1, tf.uint64)))
    probability = stats.norm.sf(z.numpy()) / 2.0 ** -(zeros + 1)
    assert stats.kstest(probability, "uniform").pvalue > 1e-8
    if zeros == 25:
        share = np.mean(z.numpy() > 5.7)
        expected = stats.norm.sf(5.7) * 2.0**26
        assert abs(share - expected) < 6 * np.sqrt(expected * (1 - expected) / 20_000)


def test_large_sample_is_normal():
    # 2^22 draws; each comparison fails by chance with a probability below 1e-8.
    z = NoiseSource().normal((1 << 22,), 1.0, tf.float64).numpy()
    n = len(z)
    assert abs(z.mean()) < 6 / np.sqrt(n)
    assert abs(z.var() - 1) < 6 * np.sqrt(2 / n)
    assert stats.kstest(z[: 1 << 19], "norm").pvalue > 1e-8
    for level in (3.0, 4.0, 4.5, 5.0):
        expected = 2 * n * stats.norm.sf(level)
        count = np.sum(np.abs(z) > level)
        assert stats.poisson.cdf(count, expected) > 1e-9
        assert stats.poisson.sf(count - 1, expected) > 1e-9
    assert abs(np.mean(z[1:] * z[:-1])) < 6 / np.sqrt(n)


@pytest.mark.parametrize("jit_compile", slow.cases([False, True, None], slow=[False]))
def test_no_two_draws_share_a_value(jit_compile):
    source = NoiseSource()

    def draw():
        return source.normal((1000,), 1.0, tf.float64), source.normal((7,), 1.0, tf.float64)

    if jit_compile is not None:
        draw = tf.function(draw, jit_compile=jit_compile)
    values = np.concatenate([np.concatenate(draw()) for _ in range(3)])
    assert len(np.unique(np.abs(values))) == len(values) == 3021
    assert stats.kstest(values, "norm").pvalue > 1e-8


@pytest.mark.parametrize("jit_compile", [False, True])
def test_counter_carries_over(jit_compile):
    source = NoiseSource(seed=1)
    source._counter.assign([-3, 5])  # 2^64 − 3, unsigned
    draw = tf.function(lambda: source.normal((64,), 1.0, tf.float64), jit_compile=jit_compile)
    first, second = draw().numpy(), draw().numpy()
    assert source._counter.numpy()[1] == 6
    assert len(np.unique(np.abs([first, second]))) == 128


def test_scale_and_dtype():
    source = NoiseSource(seed=3)
    values = source.normal((100_000,), 0.02)
    assert values.dtype == tf.float32
    assert np.std(values) == pytest.approx(0.02, rel=0.02)  # 9 standard errors
    again = NoiseSource(seed=3).normal((100_000,), 1.0, tf.float64)
    np.testing.assert_allclose(values, again.numpy() * 0.02, rtol=1e-6)


def test_global_seeds_do_not_fix_the_noise():
    draws = []
    for _ in range(2):
        keras.utils.set_random_seed(11)
        source = NoiseSource()
        draws.append(source.normal((8,), 1.0).numpy())
        keras.utils.set_random_seed(11)
        draws.append(source.normal((8,), 1.0).numpy())
    assert len(np.unique(draws)) == 32


def test_seed_is_repeatable_and_differs_between_fits():
    one, other = NoiseSource(seed=4), NoiseSource(seed=4)
    np.testing.assert_array_equal(one.normal((5,), 1.0), other.normal((5,), 1.0))
    first = NoiseSource(seed=4).normal((5,), 1.0).numpy()
    one.rekey()
    assert not np.any(one.normal((5,), 1.0).numpy() == first)
    assert not np.any(NoiseSource(seed=5).normal((5,), 1.0).numpy() == first)


def test_the_key_and_the_counter_decide_every_draw():
    grid = Grid(1.0, 1.0, 60)
    assert_key_and_counter_decide(NoiseSource, lambda one: releases(one, 2, grid, (30,)))


def test_threads_share_no_counter():
    assert_threads_draw_apart(NoiseSource(), "_counter", Grid(1.0, 1.0, 4))


def test_rekey_takes_new_entropy():
    source = NoiseSource()
    before = [source._key.numpy(), source._counter.numpy()]
    source.rekey()
    assert np.all(before[0] != source._key.numpy()) and np.all(before[1] != source._counter.numpy())


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_source_cannot_be_copied(copied):
    """A deep copy drew the same noise."""
    with pytest.raises(TypeError, match="same noise"):
        copied(NoiseSource())


@pytest.mark.parametrize("seed", [1.5, True, "1"])
def test_seed_must_be_an_integer(seed):
    with pytest.raises(ValueError, match="seed"):
        NoiseSource(seed=seed)


@pytest.mark.parametrize("largest", slow.cases([1 << 16, 1 << 22], slow=[1 << 22]))
@pytest.mark.parametrize("jit_compile", slow.cases([False, True], slow=[True]))
def test_a_large_variable_is_noised_in_parts_that_share_nothing(jit_compile, largest, monkeypatch):
    monkeypatch.setattr(noise.training_source, "_LARGEST_DRAW", largest)
    source = NoiseSource(1)

    @functools.partial(tf.function, jit_compile=jit_compile, autograph=False)
    def draw(shape):
        return source.normal(shape, 2.0, tf.float64)

    for shape in ((3, largest), (1000, largest // 500 + 3)):  # no rest, and a rest
        drawn = draw(shape).numpy()
        assert drawn.shape == shape
        assert abs(drawn.std() / 2.0 - 1) < 5 / np.sqrt(2 * drawn.size)
        assert len(np.unique(np.abs(drawn))) == drawn.size
        parts = np.resize(drawn, (2, largest))
        assert abs(np.mean(parts[0] * parts[1])) < 5 * 4 / np.sqrt(largest)


@pytest.mark.parametrize("jit_compile", slow.cases([False, True], slow=[False]))
def test_parts_of_a_compiled_draw_share_nothing(jit_compile):
    source, other = NoiseSource(1), NoiseSource(1)
    part = noise.training_source._PART_OF_A_COMPILED_DRAW
    for one in (source, other):
        one._counter.assign([-part, 5])  # 2^64 − part: the second part carries over

    @functools.partial(tf.function, jit_compile=jit_compile, autograph=False)
    def draw():
        with compiling(True):
            return source.normal((3, part), 2.0, tf.float64), source.normal((7,), 2.0, tf.float64)

    drawn = np.concatenate([np.ravel(d) for _ in range(2) for d in draw()])
    assert len(np.unique(np.abs(drawn))) == len(drawn) == 2 * (3 * part + 7)
    assert abs(drawn.std() / 2.0 - 1) < 5 / np.sqrt(2 * len(drawn))
    # The first part is what an undivided draw begins with.
    np.testing.assert_allclose(drawn[:part], other.normal((part,), 2.0, tf.float64), rtol=1e-12)
    np.testing.assert_array_equal(source._counter, [2 * (3 * (part + 1) + 1 + 8) - part, 6])


@pytest.mark.parametrize("jit_compile", slow.cases([False, True], slow=[False]))
def test_the_fused_blocks_are_those_of_philox(jit_compile):
    key = tf.constant([0xFEDCBA9876543210], tf.uint64)
    counters = tf.constant([[0, 0], [2**64 - 3, 7], [2**64 - 2, 2**64 - 1]], tf.uint64)
    run = tf.function(gaussian.fused_pairs_of_blocks, jit_compile=jit_compile, autograph=False)
    for number, counter in itertools.product((5, 1), counters):
        fused, known = run(key, counter, number), gaussian.pairs_of_blocks(key, counter, number)
        np.testing.assert_array_equal(fused, known)
        assert np.shape(known) == (2, 2, number)
        # One block after another, as TensorFlow has them, of words that are the other way round.
        words = gaussian.philox_bits(key, counter, [number, 2, 2]).numpy().view(np.uint32)
        words = words.reshape(number, 2, 2, 2)[..., ::-1].copy().view(np.uint64)[..., 0]
        np.testing.assert_array_equal(np.transpose(known, [2, 0, 1]), words)


@pytest.mark.parametrize("jit_compile", [False, True])
def test_a_graph_whose_bits_are_partly_constants_keeps_the_tails(jit_compile):
    """TensorFlow's optimizer adds up constants, and could lose the bits of small radii."""
    radii = tf.constant([0, 1, 5, 2**31, 2**40, 2**62], tf.uint64)

    def pairs(radii):
        other = tf.fill([6], tf.constant(0x5555555555555555, tf.uint64))
        return tf.stack(gaussian.normal_pair((radii, other), (other, radii)))

    found = tf.function(pairs, jit_compile=jit_compile)(radii)
    np.testing.assert_allclose(found, pairs(radii), rtol=1e-11)


def test_releases_of_many_sizes_share_a_compilation():
    """Each costs the first step of a model, and every model of a test, most of a second."""
    source, grid = NoiseSource(), noise.grid.Grid(1.0, 1.0, 10)
    source.release([tf.zeros([5])], grid)  # and up to 512
    source.release([tf.zeros([600])], grid)
    compiled = noise.grid._compiled(gaussian.normal_pair, tf.float32)
    before = compiled.experimental_get_tracing_count()
    drawn = [source.release([tf.zeros([n])], grid)[0].numpy() for n in (7, 1, 900, 1024, 512)]
    assert compiled.experimental_get_tracing_count() == before
    assert [len(d) for d in drawn] == [7, 1, 900, 1024, 512]
    drawn = np.concatenate(drawn)
    assert len(np.unique(np.abs(drawn))) > 0.99 * len(drawn)


@pytest.mark.thorough
def test_a_compiled_step_draws_once_for_all_uses_of_the_noise():
    """XLA would draw again for each average of an optimizer, which triples the time of a step."""
    source, grid = NoiseSource(), noise.grid.Grid(1.0, 1.0, 10)

    @tf.function(jit_compile=True, autograph=False)
    def step(sums, average, squares):
        (noisy,) = source.release([sums], grid)
        return 0.9 * average + noisy, 0.99 * squares + noisy * noisy

    program = step.experimental_get_compiler_ir(*3 * [tf.zeros([1 << 15])])("optimized_hlo")
    rounds = [line for line in program.splitlines() if f"constant({0xD2511F53})" in line]
    assert len(rounds) == 1
