"""Standard normal values from random bits, with true tails (MATH.md section 1).

A float64 inverse normal CDF of 63 random bits and a sign, past 9 sigma (`tf.random.normal` never
exceeds 5.678), from stateless operations: eager execution, `tf.function` and XLA give the same.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import tensorflow as tf

from tfdp.runtime.strategies import traces_once
from tfdp.runtime.xla import is_compiling, platform

PHILOX = 1  # tf.random.Algorithm.PHILOX

# Wichura (1988), algorithm AS 241 (PPND16): relative accuracy about 1e-16 in float64.
_A = (
    3.3871328727963666080e0, 1.3314166789178437745e2, 1.9715909503065514427e3,
    1.3731693765509461125e4, 4.5921953931549871457e4, 6.7265770927008700853e4,
    3.3430575583588128105e4, 2.5090809287301226727e3,
)  # fmt: skip
_B = (
    1.0, 4.2313330701600911252e1, 6.8718700749205790830e2, 5.3941960214247511077e3,
    2.1213794301586595867e4, 3.9307895800092710610e4, 2.8729085735721942674e4,
    5.2264952788528545610e3,
)  # fmt: skip
_C = (
    1.42343711074968357734e0, 4.63033784615654529590e0, 5.76949722146069140550e0,
    3.64784832476320460504e0, 1.27045825245236838258e0, 2.41780725177450611770e-1,
    2.27238449892691845833e-2, 7.74545014278341407640e-4,
)  # fmt: skip
_D = (
    1.0, 2.05319162663775882187e0, 1.67638483018380384940e0, 6.89767334985100004550e-1,
    1.48103976427480074590e-1, 1.51986665636164571966e-2, 5.47593808499534494600e-4,
    1.05075007164441684324e-9,
)  # fmt: skip
_E = (
    6.65790464350110377720e0, 5.46378491116411436990e0, 1.78482653991729133580e0,
    2.96560571828504891230e-1, 2.65321895265761230930e-2, 1.24266094738807843860e-3,
    2.71155556874348757815e-5, 2.01033439929228813265e-7,
)  # fmt: skip
_F = (
    1.0, 5.99832206555887937690e-1, 1.36929880922735805310e-1, 1.48753612908506148525e-2,
    7.86869131145613259100e-4, 1.84631831751005468180e-5, 1.42151175831644588870e-7,
    2.04426310338993978564e-15,
)  # fmt: skip

# fdlibm's e_log.c (Sun Microsystems 1993): (log((1+s)/(1-s)) - 2s)/s in powers of s², to 2^-58.45.
_LOG = (
    6.666666666666735130e-01, 3.999999999940941908e-01, 2.857142874366239149e-01,
    2.222219843214978396e-01, 1.818357216161805012e-01, 1.531383769920937332e-01,
    1.479819860511658591e-01,
)  # fmt: skip
_ROOT_HALF = 0x3FE6A09E667F3BCD  # bits of √½ in float64


def philox_bits(key: tf.Tensor, counter: tf.Tensor, shape: Any) -> tf.Tensor:
    return tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=shape, key=key, counter=counter, alg=PHILOX, dtype=tf.uint64
    )


def word_pairs(key, counter, shape):
    """Two uint64 tensors of `shape`: the words of one 128-bit block of Philox for each place."""
    static = isinstance(shape, list)
    words = philox_bits(key, counter, [*shape, 2] if static else tf.concat([shape, [2]], 0))
    return words[..., 0], words[..., 1]


def fused_word_pairs(key, counter, shape):
    """As `word_pairs`, bit for bit, of elementwise operations: inside a loop that XLA fuses.

    XLA writes the words of its own Philox to memory before it reads them, which takes as long as
    all that becomes of them.

    Source: Salmon, Moraes, Dror and Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3",
    Philox-4x32-10.
    """
    low, high = _block_counters(counter, shape)
    x, keys = [*_halves(low), *_halves(high)], _halves(key[0])
    for _ in range(10):
        product_0, product_1 = x[0] * _uint64(0xD2511F53), x[2] * _uint64(0xCD9E8D57)
        (low_0, high_0), (low_1, high_1) = _halves(product_0), _halves(product_1)
        x = [_xor(high_1, x[1], keys[0]), low_1, _xor(high_0, x[3], keys[1]), low_0]
        keys = _low(keys[0] + _uint64(0x9E3779B9)), _low(keys[1] + _uint64(0xBB67AE85))
    return _joined(x[0], x[1]), _joined(x[2], x[3])


def _block_counters(counter, shape):
    """The two words of the counters of as many blocks, from `counter` on."""
    places = tf.reshape(tf.range(math.prod(shape), dtype=tf.int64), shape)
    low = counter[0] + tf.cast(places, tf.uint64)
    return low, counter[1] + tf.cast(low < counter[0], tf.uint64)


def _halves(word):
    """(lower, upper) 32 bits of uint64 words, as uint64."""
    return _low(word), tf.bitwise.right_shift(word, _uint64(32))


def _low(word):
    return tf.bitwise.bitwise_and(word, _uint64(0xFFFFFFFF))


def _xor(a, b, c):
    return tf.bitwise.bitwise_xor(tf.bitwise.bitwise_xor(a, b), c)


def _joined(low, high):
    return tf.bitwise.bitwise_or(tf.bitwise.left_shift(high, _uint64(32)), low)


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


def normal_of_tail(tail: tf.Tensor) -> tf.Tensor:
    """The standard normal value that is exceeded with probability `tail`, float64 in (0, 1/2]."""
    q = 0.5 - tail
    r = tf.sqrt(-log(tail))
    central, near = q <= 0.425, r <= 5.0

    def choose(in_center, in_near_tail, in_far_tail):
        # Never by tf.cast, which reads a Python number as float32.
        values = [
            tf.convert_to_tensor(v, tf.float64) for v in (in_center, in_near_tail, in_far_tail)
        ]
        return tf.where(central, values[0], tf.where(near, *values[1:]))

    # One ratio of polynomials, whose coefficients are chosen for each value: three would be as
    # exact, and three times the work.
    x = choose(0.180625 - q * q, r - 1.6, r - 5.0)
    numerator = denominator = tf.zeros_like(x)
    for k in reversed(range(8)):
        numerator = numerator * x + choose(_A[k], _C[k], _E[k])
        denominator = denominator * x + choose(_B[k], _D[k], _F[k])
    return choose(q, 1.0, 1.0) * numerator / denominator


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
    series = tf.zeros_like(z)
    for coefficient in reversed(_LOG):
        series = (series + coefficient) * z
    # 32 bits: CPUs convert no wider integers quickly.
    return tf.cast(tf.cast(k, tf.int32), tf.float64) * math.log(2.0) + s * (2.0 + series)


def later(counter, count):
    """The 128-bit counter of Philox, two words of uint64, `count` values later."""
    low = counter[0] + count
    carry = tf.cast(low < count, tf.uint64)
    return tf.stack([low, counter[1] + carry])
