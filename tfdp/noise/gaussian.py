"""Standard normal values from random bits, with true tails (MATH.md section 1).

`tf.random.normal` never exceeds 5.678. What is released gets pairs of values up to 11.5 from two
blocks of Philox (`normal_pair`); choices get a float64 inverse normal CDF of 63 bits and a sign,
past 9. All is made of stateless operations: eager execution, `tf.function` and XLA give the same.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import tensorflow as tf

from tfdp.runtime.strategies import traces_once
from tfdp.runtime.xla import is_compiling, platform

PHILOX = 1  # tf.random.Algorithm.PHILOX

# z = x·P(x)/Q(x) with x = √(-log tail) - √(log 2), for tails from 1/2 down to 2^-1083: within 2^-54
# of (z + 1), fitted in 200 bits. All are positive, so that no sum cancels.
_P = (
    2.086904928502299, 8.460792031519777, 14.173450678303594, 12.897948995970536,
    7.070596224074362, 2.4392148756304195, 0.5304059959114518, 0.06994544231782532,
    0.005201319567495581, 0.0001962073009760347, 3.179341777392179e-06, 1.553397625757562e-08,
)  # fmt: skip
_Q = (
    1.0, 4.286223149559418, 7.598028377459576, 7.3027459249427,
    4.208261931292523, 1.5174051102779427, 0.3432915197096789, 0.04681842975235113,
    0.003570464145678465, 0.0001369163030203182, 2.2390036631027954e-06, 1.0984164593043044e-08,
)  # fmt: skip
_AT_HALF = math.sqrt(math.log(2.0))

# fdlibm's e_log.c (Sun Microsystems 1993): (log((1+s)/(1-s)) - 2s)/s in powers of s², to 2^-58.45.
_LOG = (
    6.666666666666735130e-01, 3.999999999940941908e-01, 2.857142874366239149e-01,
    2.222219843214978396e-01, 1.818357216161805012e-01, 1.531383769920937332e-01,
    1.479819860511658591e-01,
)  # fmt: skip
_ROOT_HALF = 0x3FE6A09E667F3BCD  # bits of √½ in float64

# fdlibm's k_sin.c and k_cos.c: (sin x - x)/x³ and (cos x - 1 + x²/2)/x⁴ in powers of x².
_SINE = (
    -1.66666666666666324348e-01, 8.33333333332248946124e-03, -1.98412698298579493134e-04,
    2.75573137070700676789e-06, -2.50507602534068634195e-08, 1.58969099521155010221e-10,
)  # fmt: skip
_COSINE = (
    4.16666666666666019037e-02, -1.38888888888741095749e-03, 2.48015872894767294178e-05,
    -2.75573143513906633035e-07, 2.08757232129817482790e-09, -1.13596475577881948265e-11,
)  # fmt: skip


def philox_bits(key: tf.Tensor, counter: tf.Tensor, shape: Any) -> tf.Tensor:
    return tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=shape, key=key, counter=counter, alg=PHILOX, dtype=tf.uint64
    )


def pairs_of_blocks(key, counter, number):
    """Two blocks of Philox for each of `number` pairs of values, one after another.

    Args:
        number: an integer or a scalar integer tensor.

    Returns:
        Two blocks, each of two uint64 tensors (number,). Words 0 and 1 of a block make its first
        number, words 2 and 3 its second one; the lower word is the upper half.
    """
    # TensorFlow has the lower word in the lower half.
    words = [_turned(word) for word in tf.unstack(philox_bits(key, counter, [number, 4]), axis=1)]
    return words[:2], words[2:]


def fused_pairs_of_blocks(key, counter, number):
    """As `pairs_of_blocks`, bit for bit, of elementwise operations: inside a loop that XLA fuses.

    XLA writes the words of its own Philox to memory before it reads them, which takes as long as
    all that becomes of them.
    """
    keys = keys_of_rounds(key)
    return [block_of(keys, words_of(*one)) for one in counters_of_pairs(counter, number)]


def counters_of_pairs(counter, number):
    """For the first and the second block of each pair the two words of the counter (number,)."""
    places = 2 * tf.range(number, dtype=tf.int64)
    return [counter_of(counter, tf.cast(places + one, tf.uint64)) for one in (0, 1)]


def keys_of_rounds(key):
    """The two keys of each of Philox' ten rounds, twenty uint64 scalars below 2^32."""
    first, keys = [_low(key[0]), _high(key[0])], []
    for round_ in range(10):
        steps = [round_ * weyl % 2**32 for weyl in (0x9E3779B9, 0xBB67AE85)]
        keys += [_low(one + _uint64(step)) for one, step in zip(first, steps, strict=True)]
    return keys


def words_of(low, high):
    """Philox' four words of each counter, uint64 below 2^32, from the two that TensorFlow has."""
    return [_low(low), _high(low), _low(high), _high(high)]


def block_of(keys, counter):
    """The two numbers of each block, as of `pairs_of_blocks`.

    Source: Salmon, Moraes, Dror and Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3",
    Philox-4x32-10.

    Args:
        keys: of `keys_of_rounds`. Blocks that are compiled together share them: what is compiled
            stays in memory.
        counter: four words as of `words_of`, of shapes that broadcast. What scalars alone decide is
            computed once, not for each block: a twentieth of all products if the upper two are.
    """
    x = counter
    first, second, half = _uint64(0xD2511F53), _uint64(0xCD9E8D57), _uint64(32)
    right, left = tf.bitwise.right_shift, tf.bitwise.left_shift
    for round_ in range(10):
        # Only here upper halves are taken off, next to the product: XLA then makes it of one
        # instruction, and of five where it does not see that they are zero.
        products = _low(x[0]) * first, _low(x[2]) * second
        mixed = _xor(x[1], keys[2 * round_]), _xor(x[3], keys[2 * round_ + 1])
        if round_ == 9:
            # The two words of a number, each where it belongs, without taking them apart.
            return [
                _xor(products[1], left(mixed[0], half)),
                _xor(products[0], left(mixed[1], half)),
            ]
        x = [_xor(right(products[1], half), mixed[0]), products[1],
             _xor(right(products[0], half), mixed[1]), products[0]]  # fmt: skip


def counter_of(counter, place):
    """The two words of Philox' counter `place` values, a uint64 tensor, after `counter`."""
    low = counter[0] + place
    return low, counter[1] + tf.cast(low < counter[0], tf.uint64)


def _turned(word):
    """uint64 words, upper and lower halves exchanged."""
    return tf.bitwise.bitwise_or(_left(word, 32), _high(word))


def _low(word):
    # Not by a mask: XLA would read it from memory, and not know that what is left has 32 bits.
    return tf.cast(tf.cast(word, tf.uint32), tf.uint64)


def _high(word):
    return _right(word, 32)


def _right(word, places):
    return tf.bitwise.right_shift(word, _uint64(places))


def _left(word, places):
    return tf.bitwise.left_shift(word, _uint64(places))


def _xor(a, b):
    return tf.bitwise.bitwise_xor(a, b)


def _uint64(value):
    return tf.constant(value, tf.uint64)


@functools.cache
def _compiled_normal(shape):
    # Compiled by itself, the chain of elementwise float64 work is one loop, several times faster.
    @tf.function(jit_compile=True, autograph=False)
    def draw(key, counter):
        return standard_normal_from_bits(philox_bits(key, counter, list(shape)))

    return draw


def standard_normal(key, counter, shape):
    if traces_once(tf.distribute.get_strategy()):  # compiled already, with the whole step
        return standard_normal_from_bits(philox_bits(key, counter, list(shape)))
    return _compiled_normal(shape)(key, counter)


def standard_normal_from_bits(bits: tf.Tensor) -> tf.Tensor:
    """Turns uniform 64-bit integers into standard normal float64 values.

    Args:
        bits: uint64 tensor of independent uniform bits.

    Returns:
        float64 tensor of the same shape: the inverse CDF of (63 bits + 1/2) / 2^64, signed by
        the remaining bit. Largest magnitude 9.1.
    """
    negative = tf.equal(tf.bitwise.bitwise_and(bits, tf.constant(1, tf.uint64)), 1)
    magnitude = tf.cast(tf.bitwise.right_shift(bits, tf.constant(1, tf.uint64)), tf.int64)
    value = normal_of_tail((tf.cast(magnitude, tf.float64) + 0.5) * 2.0**-64)
    return tf.where(negative, -value, value)


def normal_pair(first, second):
    """Two independent standard normal values from two blocks of random bits, float64.

    Box and Muller 1958: of a point in the plane, radius and angle. The radius is a function of 95
    bits, so that values reach 11.5. Each value is within (r + 1)·2⁻⁵¹ of the exact function of its
    bits, r being the radius, once r² has been rounded by up to 2⁻⁵³.

    Args:
        first, second: blocks of `pairs_of_blocks`.
    """
    radius = tf.sqrt(-log(uniform(first)))  # over √2
    # An angle from -π/4 to π/4, of 52 bits. Turned by π/4, and with two signs, it goes all round.
    angle = _integer(_right(second[0], 12)) - (2.0**51 - 0.5)
    sine, cosine = _sine_and_cosine(angle * (math.pi * 2.0**-53))
    return (
        with_sign(radius * (cosine - sine), first),
        with_sign(radius * (cosine + sine), second),
    )


def _sine_and_cosine(x):
    """Of float64 angles from -π/4 to π/4, each within 2^-52."""
    square = x * x
    sine = x + x * square * _polynomial(_SINE, square)
    return sine, (1.0 - 0.5 * square) + square * square * _polynomial(_COSINE, square)


def uniform(block):
    """A float64 number in (0, 1], of 95 bits of a block: of all but 33 of its second number."""
    first, second = block
    number = _integer(_high(first)) * 2.0**32 + _integer(_low(first))
    # The uppermost bit is `with_sign`'s, the 32 lowest are `dither`'s.
    number += (_integer(_right(_left(second, 1), 33)) + 0.5) * 2.0**-31
    return number * 2.0**-64


def dither(block):
    """A float64 number in (-1/2, 1/2), of 32 bits of a block that nothing else uses."""
    return _integer(_low(block[1])) * 2.0**-32 - (0.5 - 2.0**-33)


def with_sign(value, block):
    """Values, negative where a bit of a block is set that nothing else uses."""
    return tf.where(tf.bitcast(block[1], tf.int64) < 0, -value, value)


def _integer(number):
    """uint64 numbers below 2^52 as float64."""
    if platform() == "TPU":  # which knows neither bits of float64 numbers nor wide integers
        upper, lower = _right(number, 31), tf.bitwise.bitwise_and(number, _uint64(2**31 - 1))
        upper, lower = (tf.cast(tf.cast(n, tf.int32), tf.float64) for n in (upper, lower))
        return upper * 2.0**31 + lower
    if not is_compiling():
        # TensorFlow's optimizer of graphs may add up constants, as that below with those of other
        # numbers, and then loses low bits: a radius would have 32 of them and no tails.
        return tf.cast(tf.bitcast(number, tf.int64), tf.float64)
    # CPUs convert no such integers quickly: 2^52 + n has the bits of n.
    return tf.bitcast(tf.bitwise.bitwise_or(number, _uint64(0x433 << 52)), tf.float64) - 2.0**52


def normal_of_tail(tail: tf.Tensor) -> tf.Tensor:
    """The standard normal value that is exceeded with probability `tail`, float64 in (0, 1/2]."""
    # One quotient for all tails: to choose the coefficients of a part for each value takes longer
    # than all products.
    x = tf.sqrt(-log(tail)) - _AT_HALF
    return x * _polynomial(_P, x) / _polynomial(_Q, x)


def _polynomial(coefficients, x):
    """Σ coefficients[k]·x^k by pairs (Estrin): few products wait for each other."""
    terms = list(coefficients)
    while len(terms) > 1:
        pairs = [low + high * x for low, high in zip(terms[::2], terms[1::2], strict=False)]
        terms = pairs + terms[2 * len(pairs) :]
        x = x * x
    return terms[0]


def log(x: tf.Tensor) -> tf.Tensor:
    """The logarithm of normal positive float64 values, wrong by 2^-52·(|log x| + 1) at most."""
    # XLA knows bits of float64 numbers on no TPU.
    return _fused_log(x) if is_compiling() and platform() != "TPU" else tf.math.log(x)


def _fused_log(x):
    """Of elementwise operations: XLA calls the C library for each value, for half of a draw's time.

    Source: fdlibm, e_log.c. x = 2^k·m with m in [√½, √2), and log m from s = (m-1)/(m+1).
    """
    bits = tf.bitcast(x, tf.int64)
    k = tf.bitwise.right_shift(bits - _ROOT_HALF, tf.constant(52, tf.int64))
    m = tf.bitcast(bits - tf.bitwise.left_shift(k, tf.constant(52, tf.int64)), tf.float64)
    # Not a quotient: XLA would write one that is used twice to memory, after all that led to it.
    s = (m - 1.0) * (1.0 / (m + 1.0))
    z = s * s
    series = _polynomial(_LOG, z) * z
    # 32 bits: CPUs convert no wider integers quickly.
    return tf.cast(tf.cast(k, tf.int32), tf.float64) * math.log(2.0) + s * (2.0 + series)


def later(counter, count):
    """The 128-bit counter of Philox, two words of uint64, `count` values later."""
    low = counter[0] + count
    carry = tf.cast(low < count, tf.uint64)
    return tf.stack([low, counter[1] + carry])
