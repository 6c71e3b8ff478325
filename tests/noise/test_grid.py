"""Sums and noise on one grid: exact arithmetic, a public step, the law of the noise.

Distribution tests have a false-alarm rate of 1e-6.
"""

import itertools
import math

import numpy as np
import pytest
import slow
import tensorflow as tf
from scipy import stats

from tfdp.noise import Grid, NoiseSource, laplace_pair, normal_of_tail, normal_pair, sum_rounding
from tfdp.noise.gaussian import dither, log
from tfdp.noise.grid import CLIPPED, release
from tfdp.runtime.xla import compiling

KEY = tf.constant([7], tf.uint64)
COUNTER = tf.constant([1, 2], tf.uint64)
RNG = np.random.default_rng(0)
TAILS = np.concatenate([0.5 * RNG.random(300), 2.0 ** -(1 + 93 * RNG.random(300))])


def numbers(grid):
    return [float(t) for t in grid.tensors]


@pytest.mark.parametrize("sigma", [1e-3, 0.5, 20.0, 1e9])
@pytest.mark.parametrize(
    "clip_norm, coordinates", [(1.0, 3), (0.37, 10_000), (3e5, 1), (1e-6, 10**9)]
)
def test_the_step_is_a_power_of_two_that_moves_the_sensitivity_by_a_millionth(
    clip_norm, coordinates, sigma
):
    step, stddev, window = numbers(Grid(sigma * clip_norm, clip_norm, coordinates))
    assert math.frexp(step)[0] == math.frexp(window)[0] == 0.5
    finest = 2.0**-20 * clip_norm / coordinates**0.5
    if sigma * clip_norm <= 2.0**43 * finest / 2:
        assert finest / 2 < step <= finest
    # 11.1 deviations of a normal and 66 of a Laplace draw fit below 2^51 steps.
    assert (66 if sigma < 1e9 else 12) * stddev < 2.0**51 * step
    excess = CLIPPED + step * coordinates**0.5 / clip_norm
    assert stddev == pytest.approx(sigma * clip_norm * (1 + excess), rel=1e-15)
    assert window == 1 or 2.0**-6 < window * step / stddev <= 2.0**-5 or window == 2.0**31


@pytest.mark.thorough
def test_no_noise_has_no_grid():
    grid = Grid(0.0, 1.0, 10)
    values = tf.constant(np.random.default_rng(0).normal(size=10) * 1e-9, tf.float32)
    (found,) = NoiseSource(1).release([values], grid)
    np.testing.assert_array_equal(found, values)


def test_a_deviation_that_nobody_has_set_releases_nothing():
    grid = Grid(tf.constant(float("nan"), tf.float64), 1.0, 3)
    assert np.isnan(release(tf.ones([3]), grid, KEY, COUNTER)).all()


@pytest.mark.parametrize("law", [normal_pair, laplace_pair])
def test_a_release_is_the_rounded_sum_and_the_rounded_noise_added_exactly(law):
    grid = Grid(1.7, 1.0, 4096, sum_rounding(64))
    step, _, _ = numbers(grid)
    values = np.random.default_rng(1).normal(size=4096) * 100
    zero, found = (
        release(tf.constant(v), grid, KEY, COUNTER, law, tf.float64).numpy()
        for v in (0 * values, values)
    )
    units = [int(u) for u in found / step]
    expected = [round(v / step) + int(z) for v, z in zip(values, zero / step, strict=True)]
    assert units == expected and np.array_equal(np.array(units) * step, found)
    assert np.array_equal(np.round(zero / step) * step, zero)


def test_the_release_of_a_shifted_sum_is_the_shifted_release():
    # What is possible does not depend on the sum: only where it stands does.
    grid = Grid(1.0, 1.0, 1000)
    step, _, _ = numbers(grid)
    shift = 12_345 * step
    values = np.random.default_rng(2).normal(size=1000)
    one, other = (
        release(tf.constant(v), grid, KEY, COUNTER, dtype=tf.float64).numpy()
        for v in (np.round(values / step) * step, np.round(values / step) * step + shift)
    )
    np.testing.assert_array_equal(other - one, shift)


@pytest.mark.parametrize("value", [1e30, -1e30, np.inf])
def test_sums_beyond_the_range_are_cut_where_it_ends_for_all_data(value):
    grid = Grid(1.0, 1.0, 4)
    step, _, _ = numbers(grid)
    found = release(tf.constant([value, 0.0], tf.float64), grid, KEY, COUNTER, dtype=tf.float64)
    noise = release(tf.zeros([2], tf.float64), grid, KEY, COUNTER, dtype=tf.float64)
    np.testing.assert_array_equal(found - noise, [np.sign(value) * 2.0**51 * step, 0])


def test_noise_has_the_law_of_its_quantile_and_true_tails():
    for law, known in ((normal_pair, stats.norm), (laplace_pair, stats.laplace)):
        grid = Grid(2.5, 1.0, 1, rounding=0.0)
        zeros = tf.zeros([1 << 20], tf.float64)
        (noise,) = NoiseSource().release([zeros], grid, law, tf.float64)
        assert stats.kstest(noise[: 1 << 18].numpy() / 2.5, known.cdf).pvalue > 1e-6
        tail = np.sum(np.abs(noise.numpy()) > 4 * 2.5)
        expected = 2 * known.sf(4) * (1 << 20)
        assert abs(tail - expected) < 5 * np.sqrt(expected)


def test_the_largest_noise_is_beyond_eleven_deviations(monkeypatch):
    # 95 bits of zero: 11.53 for a normal draw, 66.5 for a Laplace one. Sign and window have others.
    monkeypatch.setattr("tfdp.noise.gaussian.philox_bits", lambda k, c, s: tf.zeros(s, tf.uint64))
    for law, least in ((normal_pair, 11.5), (laplace_pair, 66.0)):
        found = release(tf.zeros([1]), Grid(1.0, 1.0, 1), KEY, COUNTER, law).numpy()
        assert least < found[0] < 67


@pytest.mark.parametrize("jit_compile", [False, True])
def test_the_inverse_is_exact_enough_for_the_claim(jit_compile):
    # The distribution function is wrong by at most φ(z)·(|z| + 1)·2^-50.
    mpmath = pytest.importorskip("mpmath")
    mpmath.mp.prec = 200
    inverse = tf.function(normal_of_tail, autograph=False, jit_compile=jit_compile)
    for tail, z in zip(TAILS, inverse(tf.constant(TAILS)).numpy(), strict=True):
        exact = mpmath.erfc(mpmath.mpf(float(z)) / mpmath.sqrt(2)) / 2
        error = abs(exact - mpmath.mpf(float(tail))) / mpmath.npdf(float(z))
        assert error <= (abs(z) + 1) * 2.0**-50


def test_the_fused_logarithm_is_exact():
    fused = tf.function(log, autograph=False, jit_compile=True)
    x = np.concatenate([TAILS, 2 * TAILS, 1 - 2.0**-20 * TAILS, [1.0, 2.0**-1000, 2.0**1000]])
    # NumPy's longer doubles have 64 bits.
    exact = np.log(x.astype(np.longdouble))
    error = np.abs(fused(tf.constant(x)).numpy() - exact)
    assert np.max(error / (np.abs(exact) + 1)) < 2.0**-52
    # Of other operations: the C library's logarithm takes half of the time of a draw.
    program = fused.experimental_get_compiler_ir(tf.constant(x))("optimized_hlo")
    assert " multiply(" in program and " log(" not in program


def blocks_of(numbers):
    """The blocks of pairs from uint64 (n, 4), the numbers of two blocks each."""
    columns = [tf.constant(numbers[:, i]) for i in range(4)]
    return columns[:2], columns[2:]


def hard_bits():
    """uint64 (n, 4): random ones, and those that make the uniform numbers small or close to 1."""
    generator = np.random.default_rng(1)
    bits = generator.integers(0, 2**64, (500, 4), np.uint64)
    bits[100:300, 0] >>= np.arange(200, dtype=np.uint64) % np.uint64(64)
    bits[100:140, 0], bits[120:140, 1] = 0, 0
    bits[300:364, 0] = ~(bits[300:364, 0] >> np.arange(64, dtype=np.uint64))
    bits[400:450, 2] >>= np.arange(50, dtype=np.uint64)  # and angles where one value is close to 0
    bits[450:, 2] = ~(bits[450:, 2] >> np.arange(50, dtype=np.uint64))
    return bits


@pytest.mark.parametrize("jit_compile", [False, True])
def test_pairs_are_exact_enough_for_the_claim(jit_compile):
    """Against 200-bit arithmetic: within (r + 1)·2^-51, the squared radius r² within 2^-53 more."""
    mpmath = pytest.importorskip("mpmath")
    mpmath.mp.prec = 200
    bits = hard_bits()
    draw = tf.function(normal_pair, autograph=False, jit_compile=jit_compile)
    found = np.stack(draw(*blocks_of(bits)), 1)
    for numbers, pair in zip(bits.tolist(), found, strict=True):
        first, second, angle, other = numbers
        uniform = (mpmath.mpf((first << 31) + (second >> 32) % 2**31) + 0.5) / 2**95
        radius = mpmath.sqrt(-2 * mpmath.log(uniform))
        turned = mpmath.pi / 2 * (mpmath.mpf(angle >> 12) + 0.5) / 2**52
        signs = [1 - 2 * (number >> 63) for number in (second, other)]
        bound = (radius + 1) * 2.0**-51
        bound += radius - mpmath.sqrt(max(radius**2 - 1.01 * 2.0**-53, 0))
        for value, sign, part in zip(pair, signs, (mpmath.cos, mpmath.sin), strict=True):
            assert abs(mpmath.mpf(float(value)) - sign * radius * part(turned)) < bound


@pytest.mark.thorough
def test_no_bit_decides_on_two_things():
    """Radius, angle, two signs and two windows are independent: each has bits of its own."""
    bits = np.random.default_rng(2).integers(0, 2**64, (300, 4), np.uint64)
    draw = tf.function(lambda *blocks: [*normal_pair(*blocks), *map(dither, blocks)])

    def parts(numbers):
        one, two, *windows = (value.numpy() for value in draw(*blocks_of(numbers)))
        return [np.hypot(one, two), np.abs(one / two), one > 0, two > 0, *windows]

    flipped = []
    for column, bit in itertools.product(range(4), range(64)):
        flipped.append(bits.copy())
        flipped[-1][:, column] ^= np.uint64(1 << bit)
    known, decided = parts(bits), np.zeros(6, int)
    every = zip(*[np.split(part, 256) for part in parts(np.concatenate(flipped))], strict=True)
    for found in every:
        moved = [
            not np.allclose(a, b, rtol=1e-12, atol=0.0) for a, b in zip(found, known, strict=True)
        ]
        assert sum(moved) <= 1
        decided += moved
    # Of 95 and 52 bits those below 1e-12 do not show.
    assert decided[2:].tolist() == [1, 1, 32, 32] and min(decided[:2]) > 40


def test_of_a_pair_neither_value_tells_about_the_other():
    grid = Grid(1.0, 1.0, 1 << 20, rounding=0.0)
    (noise,) = NoiseSource().release([tf.zeros([1 << 20])], grid)
    first, second = stats.norm.cdf(noise.numpy()).reshape(-1, 2).T
    counts, _, _ = np.histogram2d(first, second, 32, [[0, 1], [0, 1]])
    assert stats.chisquare(counts.ravel()).pvalue > 1e-7
    # Far from the middle: of 2¹⁹ pairs 1.3 have both beyond 3, and none both beyond 4.5.
    both = np.sum(np.abs(noise.numpy()).reshape(-1, 2).min(1) > 3.0)
    assert stats.poisson.sf(both - 1, (1 << 19) * (2 * stats.norm.sf(3.0)) ** 2) > 1e-7


@pytest.mark.parametrize("zeros", [25, 45, 60])
def test_radii_are_as_large_as_they_should_be(zeros):
    # Pairs whose uniform number starts with `zeros` zeros are those of the largest radii, beyond
    # √(2·ln 2·zeros) = 5.9, 7.9 and 9.1: -r²/2 must follow the tail's law.
    bits = np.random.default_rng().integers(0, 2**64, (20_000, 4), np.uint64)
    bits[:, 0] >>= np.uint64(zeros)
    one, two = (value.numpy() for value in normal_pair(*blocks_of(bits)))
    share = np.exp(-(one**2 + two**2) / 2) * 2.0**zeros
    assert stats.kstest(share, "uniform").pvalue > 1e-7
    turned = np.arctan2(one, two) / (2 * np.pi) + 0.5
    assert stats.kstest(turned, "uniform").pvalue > 1e-7


def test_window_bits_are_not_those_of_the_draw():
    # Window and noise from the same bits would not be independent.
    grid = Grid(1.0, 1.0, 1000)
    noise = release(tf.zeros([1000]), grid, KEY, COUNTER, dtype=tf.float64).numpy()
    narrow = Grid(1.0, 1.0, 1000)
    narrow.window = tf.constant(0.0, tf.float64)
    alone = release(tf.zeros([1000]), narrow, KEY, COUNTER, dtype=tf.float64).numpy()
    step, stddev, width = numbers(grid)
    window = (noise - alone) / (width * step)
    assert stats.kstest(window + 0.5, "uniform").pvalue > 1e-6
    for values in (alone, np.abs(alone), np.roll(alone, 1), alone[::2] * alone[1::2]):
        assert stats.spearmanr(window[: len(values)], values).pvalue > 1e-7


@pytest.mark.parametrize(
    "how", slow.cases(["eager", "tf.function", "jit", "compiled step"], slow=["jit"])
)
def test_parts_of_a_release_share_nothing_and_miss_nothing(how, monkeypatch):
    monkeypatch.setattr("tfdp.noise.training_source._LARGEST_DRAW", 1000)
    monkeypatch.setattr("tfdp.noise.training_source._PART_OF_A_COMPILED_DRAW", 1000)
    source = NoiseSource()
    shapes = [(3, 100), (), (2500,), (17, 59)]
    place, tensors = 0, []
    for shape in shapes:
        size = math.prod(shape)
        places = tf.range(place, place + size, dtype=tf.float32)
        tensors.append(tf.reshape(places, shape))
        place += size

    def run():
        with compiling(how == "compiled step"):
            return source.release(tensors, Grid(0.05, 1.0, place), dtype=tf.float64)

    if how != "eager":
        run = tf.function(run, jit_compile=how in ("jit", "compiled step"), autograph=False)
    noise = []
    for _ in range(2):
        found = run()
        assert [f.shape for f in found] == [t.shape for t in tensors]
        noise.append(np.concatenate([np.ravel(f) for f in found]) - np.arange(place))
    noise = np.concatenate(noise) / 0.05
    assert np.abs(noise).max() < 7  # each place has its own value
    # On this grid 2.4 pairs meet by chance; 20 of them with a probability of 1e-12.
    assert len(np.unique(noise)) > len(noise) - 20
    assert abs(noise.std() - 1) < 5 / np.sqrt(2 * len(noise))


@pytest.mark.thorough_after(1)
@pytest.mark.parametrize("compiled", [False, True])
def test_a_release_of_a_size_that_only_the_step_knows(compiled):
    source = NoiseSource(1)
    run = source.release_any
    if compiled:
        run = tf.function(run, autograph=False, reduce_retracing=True)
    seen = []
    # The last place of a small draw and the first past it, of a block and past it, of many.
    for count in (0, 1, 2_048, 2_048, 2_049, 16_383, 16_384, 40_000):
        values = tf.range(count, dtype=tf.float32) / 256.0
        found = run(values, Grid(3.0, 1.0, 40_000), tf.float64).numpy() - values.numpy()
        assert len(found) == count
        assert np.abs(found).max(initial=0.0) < 3.0 * 7  # each place has its own value
        seen.append(found)
    noise = np.concatenate(seen)
    # False alarm: 5 standard deviations of the estimate.
    assert abs(noise.std() / 3.0 - 1) < 5 / np.sqrt(2 * len(noise))
    assert len(set(noise)) > 0.999 * len(noise)
    assert len(set(seen[2]) & set(seen[3])) <= 2


def test_rounding_of_float32_sums_is_within_what_is_charged():
    # Neighbouring sums of equal vectors, the worst sign pattern of a mean gradient: what one
    # record moves the computed sum by, beyond its norm.
    rng = np.random.default_rng(3)
    worst = 0.0
    for batch in (8, 64, 512):
        for spread in (0.0, 0.1, 1.0):
            for _ in range(5):
                g = np.ones(256) + spread * rng.normal(size=(batch, 256))
                g = (g / np.linalg.norm(g, axis=1, keepdims=True)).astype(np.float32)
                ones = tf.ones([batch])
                full = tf.linalg.matvec(tf.constant(g), ones, transpose_a=True).numpy()
                less = tf.linalg.matvec(tf.constant(g[1:]), ones[1:], transpose_a=True).numpy()
                moved = np.linalg.norm(full.astype(np.float64) - less)
                worst = max(worst, (moved - 1) / sum_rounding(batch))
    assert 0 < worst <= 1


@pytest.mark.parametrize("batch", [2**10, 2**16])
def test_the_last_rounding_of_two_sums_moves_them_by_as_much_as_is_charged(batch):
    """One sum is rounded down by half a unit in the last place, its neighbour up by as much."""
    unit = batch * 2.0**-23
    clip_norm = 1 + 0.01 * unit
    less = batch + 0.495 * unit
    moved = np.diff(np.float32([less, less + clip_norm]).astype(np.float64))[0]
    assert 0.9 * unit < moved / clip_norm - 1 <= sum_rounding(batch)


def test_where_roundings_of_earlier_steps_add_up_the_grid_is_finer():
    step, carried = 2.0**-20, tf.constant(1000.0, tf.float64)
    assert numbers(Grid(1.0, 1.0, 1))[0] == step
    found = numbers(Grid(1.0, 1.0, 1, carried=carried))
    assert found[0] == step / 8  # by the power of two above 1000/2⁷
    assert found[1] == pytest.approx(1 + CLIPPED + 1001 * step / 8, rel=1e-15)
