"""Noise on a grid: the one place that adds noise to what is released (MATH.md section 8).

A value y = s + z of floating-point numbers tells more than y: where s = 1, no y below 1/2 has a bit
below 2⁻²⁴, where s = 0 a quarter of them has. So sums and noise are rounded to multiples of one γ,
a power of two that does not depend on data, and added without another rounding:

    y = r(s) + r(z + γ·w)

`w` is uniform, the same for all data, and makes up for the draw of z (below). Casting y
to float32 comes after that, and is post-processing.

Formal guarantees:

- With g = r(s) on the grid, g + r(x) = r(g + x): the release is post-processing of the continuous
  mechanism on r(s).
- r(s) has sensitivity at most C·(1 + rounding) + γ·√d, with d coordinates in the whole release. The
  standard deviation is raised by the same factor, so that the noise multiplier that is charged is
  the true one.
- The arithmetic is exact. Both terms and their sum are integers below 2⁵² times γ in float64:
  s is cut to ±2⁵¹·γ, the same for all data and 1-Lipschitz; γ is raised where the noise would not
  fit (to σ = 10⁹; more is no training). Scaling by a power of two is exact.
- z is one of a pair of float64 functions of 149 random bits. At 10⁷ coordinates a cell of the grid
  is so narrow that its probability is wrong by up to (r + 1)·2⁻¹⁷ of itself, r being the radius of
  the pair. With w, each probability of a pair is that of squares as wide as a window of between 2⁻⁶
  and 2⁻⁵ standard deviations: wrong by less than 2⁻³⁸ of itself for r ≤ 10.5 (measured against 200
  bits). For 10⁹ coordinates that all depend on one record this adds less than 10⁻⁵ to ε and 10⁻¹³
  to δ (docs/noise.md).

Where the standard deviation is 0 there is no grid and nothing is added or rounded.
"""

from __future__ import annotations

import functools
import math

import tensorflow as tf

from tfdp.noise.gaussian import (
    dither,
    fused_pairs_of_blocks,
    log,
    normal_pair,
    pairs_of_blocks,
    uniform,
    with_sign,
)
from tfdp.noise.pairs import apart, by_pairs, together
from tfdp.runtime.xla import platform

#: What clipping to C in float32, or with a float32 result, may exceed C by, relative to C.
CLIPPED = 2.0**-19
_FINEST = 2.0**-20  # γ·√d in units of C
_CARRIED = 2.0**-7  # of a chain: what earlier roundings may add up to, in units of 2⁻²⁰·C
_LARGEST_SUM = 2.0**51  # in units of γ
_LARGEST_STDDEV = 2.0**43  # in units of γ; a normal draw is at most 12 of them, a Laplace one 66
#: What a normal draw and its w are together, at most, in standard deviations.
LARGEST_DRAW = 12.0
_WINDOW = 2.0**-5  # W in standard deviations, at most
_LOG_LARGEST_WINDOW = 31
#: Values of Philox' counter for each coordinate.
WORDS = 2


def sum_rounding(num_summed: int) -> float:
    """How far one record may move a float32 sum beyond its own norm, relative to C.

    Each of two neighbouring sums of B vectors of norm C has norm B·C at most; if each is computed
    to within half a unit in the last place, 2⁻²⁴ of it, they differ by 2·B·C·2⁻²⁴ more than the
    exact ones. That holds for sums in float64 (`runtime.wide_sums`), and for those of matrix
    products as far as they are added up in blocks. B additions in float32 one after another may be
    wrong by B/2 times as much (docs/noise.md).

    Args:
        num_summed: B, public: the expected batch size.
    """
    return CLIPPED + num_summed * 2.0**-23


class Grid:
    """The grid to which a release is rounded, and the noise that it needs; all of it is public.

    Args:
        stddev: σ·C, a number or scalar tensor; 0 for no noise.
        sensitivity: C, a number: the clip norm.
        coordinates: d, an integer: all scalars of one release, or more.
        rounding: how far one record may move the release beyond C, relative to C.
        carried: None, or a float64 scalar of a chain of steps: what roundings in all of its steps
            move it by, in units of γ·√d, where the one of the record's own step moves it by 1.
        largest: the most units of γ that a standard deviation σ·C may have; γ is raised beyond.

    Attributes:
        step: γ, a float64 scalar: a power of two, at most 2⁻²⁰·C/√d unless σ·C > `largest`·γ, and
            finer by `carried`/2⁷ where that is more than 1.
        stddev: float64 scalar, σ·(C·(1 + rounding) + γ·√d·(1 + carried)).
        window: float64 scalar, the number of values of w, a power of two.
        public: float64 scalars from which the three follow.
    """

    def __init__(
        self,
        stddev: float | tf.Tensor,
        sensitivity: float,
        coordinates: int,
        rounding: float = CLIPPED,
        carried: tf.Tensor | None = None,
        largest: float | tf.Tensor = _LARGEST_STDDEV,
    ):
        root = math.sqrt(max(coordinates, 1))
        # frexp: x = m·2^e with m in [1/2, 1), so that 2^(e−1) is the power of two below x.
        finest = math.ldexp(1.0, math.frexp(_FINEST * sensitivity / root)[1] - 1)
        stddev = tf.cast(tf.convert_to_tensor(stddev, dtype_hint=tf.float64), tf.float64)
        known = [tf.constant(x, tf.float64) for x in (finest, rounding, root / sensitivity)]
        if carried is not None:
            known[0] /= _power_of_two(carried * _CARRIED, 32)
            known[2] *= 1.0 + carried
        self.public = (stddev, *known, tf.cast(largest, tf.float64))
        # One call instead of thirty small ones, each of which costs as much.
        numbers = _numbers_at_once if tf.executing_eagerly() else numbers_of
        self.step, self.stddev, self.window = numbers(*self.public)

    @property
    def tensors(self):
        """(step, stddev, window), float64 scalars."""
        return self.step, self.stddev, self.window


def grid_of_counts(stddev, moved, largest):
    """The `Grid` of sums of whole numbers, which lie on it and are neither rounded nor clipped.

    Whole numbers are on every grid with a step up to 1. If the finest grid ends below the largest
    sum, this one is as coarse as necessary.

    Args:
        stddev: as for `Grid`.
        moved: number of sums that one record may move.
        largest: upper bound on each sum, for which a fixed number is safe. The step of the grid
            follows from it, and every result shows the step. Derive it from data only where the
            number that it reveals, such as n, is public.

    Raises:
        ValueError: if there is no such grid.
    """
    reaches = 2.0 * largest / _LARGEST_SUM * math.sqrt(moved) / _FINEST
    grid = Grid(stddev, max(1.0, reaches), moved, rounding=0.0)
    if float(grid.step) > 1.0:
        raise ValueError(
            f"Counts of up to {largest:,} with noise of standard deviation {float(stddev):,.3g} "
            "are too large for an exact release. Split the records, or use less noise."
        )
    return grid


def numbers_of(stddev, finest, rounding, root, largest):
    """(step, stddev, window) of a `Grid`; `root` is √d/C."""
    step = finest * _power_of_two(stddev / (finest * largest), 64)
    stddev *= 1.0 + rounding + step * root
    window = _power_of_two(stddev * (_WINDOW / step), _LOG_LARGEST_WINDOW + 1, above=True)
    return step, stddev, tf.maximum(0.5 * window, 1.0)


_numbers_at_once = tf.function(numbers_of, autograph=False)


def _power_of_two(x, most, above=False):
    """The smallest 2^k ≥ x (> x if `above`), k from 0 to `most`; exact on every device."""
    if platform() != "TPU":  # which knows no bits of float64 numbers
        bits = tf.bitcast(tf.minimum(x, 2.0 ** (most - 1 if above else most)), tf.int64)
        # Up to the next exponent, but for powers of two themselves unless `above`.
        bits += (1 << 52) - (0 if above else 1)
        bits = tf.bitwise.bitwise_and(bits, tf.constant(-1 << 52, tf.int64))
        return tf.bitcast(tf.maximum(bits, tf.constant(1023 << 52, tf.int64)), tf.float64)
    powers = tf.constant([2.0**k for k in range(most)], tf.float64)
    smaller = powers <= x if above else powers < x
    # 1 + 1 + 2 + 4 + ...
    return 1.0 + tf.reduce_sum(tf.where(smaller, powers, tf.zeros_like(powers)))


def laplace_pair(first, second):
    """Two Laplace values of scale 1 from two blocks of random bits, float64, up to 66."""
    return [with_sign(-log(uniform(block)), block) for block in (first, second)]


def release(values, grid, key, counter, law=normal_pair, dtype=tf.float32, scale=None):
    """Values with noise, both on the grid.

    Args:
        values: float tensor, clipped sums.
        grid: a `Grid`.
        key, counter: of Philox; up to `WORDS` values of the counter for each coordinate are used.
        law: `normal_pair`, or `laplace_pair`, whose scale then is the grid's `stddev`.
        dtype: of the result. float64 is the grid itself.
        scale: None, or a constant array that broadcasts to the values: factors of the noise, from
            1/2 to 1.

    Returns:
        A tensor of the shape of `values`.
    """
    flat = tf.reshape(values, [-1])
    number = flat.shape[0] if flat.shape.is_fully_defined() else tf.size(flat)
    blocks = pairs_of_blocks(key, counter, (number + 1) // 2)
    scales = None
    if scale is not None:
        scales = apart(tf.reshape(tf.broadcast_to(scale, tf.shape(values)), [-1]))
    noisy = together(*released(apart(flat), *grid.tensors, blocks, law, dtype, scales), flat)
    return tf.ensure_shape(tf.reshape(noisy, tf.shape(values)), values.shape)


def released(pairs, step, stddev, window, blocks, law, dtype, scales=None):
    """As `release`, of the first and the second values of pairs, from a block for each."""
    drawn = drawn_units(step, stddev, window, blocks, law, scales)
    return [on_grid(v, d, step, stddev, dtype) for v, d in zip(pairs, drawn, strict=True)]


def drawn_units(step, stddev, window, blocks, law=normal_pair, scales=None):
    """r(z + γ·w)/γ: the noise of pairs of values in units of the grid, whole numbers in float64."""
    values = [value * (stddev / step) for value in law(*blocks)]
    if scales is not None:
        values = [value * scale for value, scale in zip(values, scales, strict=True)]
    return [
        tf.round(value + dither(block) * window)
        for value, block in zip(values, blocks, strict=True)
    ]


def on_grid(values, drawn, step, stddev, dtype):
    """Values with the noise `drawn`, whole numbers of the grid's units, added on the grid."""
    values = tf.cast(values, tf.float64)
    units = tf.round(tf.clip_by_value(values * (1.0 / step), -_LARGEST_SUM, _LARGEST_SUM))
    units += drawn  # ADDS NOISE
    # Not `stddev > 0`: one that nobody has set yet is NaN, and must give NaN.
    return tf.cast(tf.where(tf.equal(stddev, 0.0), values, units * step), dtype)


@functools.cache
def _compiled(law, dtype):
    # Compiled by itself, all of the draw is one loop that touches memory for values and results.
    @tf.function(jit_compile=True, autograph=False)
    def run(values, public, key, counter, divisor):
        pairs = apart(values)
        blocks = fused_pairs_of_blocks(key, counter, pairs[0].shape[0])
        noisy = released(pairs, *numbers_of(*public), blocks, law, dtype)
        return together(*[n / divisor for n in noisy], values)

    return run


def compiled_release(values, public, key, counter, law=normal_pair, dtype=tf.float32, divisor=1.0):
    """As `release`, of values of a static shape, as one compiled loop; `public` is a grid's.

    What is released is divided by `divisor`, a number, as it is written.
    """
    divisor, flat = tf.constant(divisor, dtype), tf.reshape(values, [-1])
    if platform() == "TPU":  # compiled already, with the whole step; and 64-bit products are slow
        pairs = apart(flat)
        blocks = pairs_of_blocks(key, counter, pairs[0].shape[0])
        noisy = together(*released(pairs, *numbers_of(*public), blocks, law, dtype), flat) / divisor
    else:
        noisy = by_pairs(_compiled(law, dtype), flat, dtype, public, key, counter, divisor)
    return tf.reshape(noisy, values.shape)
