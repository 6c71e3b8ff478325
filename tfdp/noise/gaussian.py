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


def philox_bits(key: tf.Tensor, counter: tf.Tensor, shape: Any) -> tf.Tensor:
    return tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=shape, key=key, counter=counter, alg=PHILOX, dtype=tf.uint64
    )


def block_words(key, counter, shape):
    """Four uint64 tensors of `shape`: the 32-bit words of one block of Philox for each place."""
    static = isinstance(shape, list)
    words = philox_bits(key, counter, [*shape, 2] if static else tf.concat([shape, [2]], 0))
    return [*halves(words[..., 0]), *halves(words[..., 1])]


def fused_block_words(key, counter, shape):
    """As `block_words`, bit for bit, of elementwise operations: inside a loop that XLA fuses.

    XLA writes the words of its own Philox to memory before it reads them, which takes as long as
    all that becomes of them.

    Source: Salmon, Moraes, Dror and Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3",
    Philox-4x32-10.
    """
    return words_of_blocks(key, *block_counters(counter, shape))


def words_of_blocks(key, low, high):
    """The four words of each block, as `fused_block_words`.

    Args:
        key: of Philox.
        low, high: uint64 tensors of one shape, the two words of the counter of each block.
    """
    x, keys = [*halves(low), *halves(high)], halves(key[0])
    for _ in range(10):
        # Only here upper halves are taken off, next to the product: XLA then makes it of one
        # instruction, and of five where it does not see that they are zero.
        product_0 = _low(x[0]) * _uint64(0xD2511F53)
        product_1 = _low(x[2]) * _uint64(0xCD9E8D57)
        x = [_xor(_high(product_1), x[1], keys[0]), product_1,
             _xor(_high(product_0), x[3], keys[1]), product_0]  # fmt: skip
        keys = _low(keys[0] + _uint64(0x9E3779B9)), _low(keys[1] + _uint64(0xBB67AE85))
    return [_low(word) for word in x]


def block_counters(counter, shape):
    """The two words of the counters of as many blocks, from `counter` on."""
    places = tf.reshape(tf.range(math.prod(shape), dtype=tf.int64), shape)
    low = counter[0] + tf.cast(places, tf.uint64)
    return low, counter[1] + tf.cast(low < counter[0], tf.uint64)


def halves(word):
    """(lower, upper) 32 bits of uint64 words, as uint64."""
    return _low(word), _high(word)


def _low(word):
    # Not by a mask: XLA would read it from memory, and not know that what is left has 32 bits.
    return tf.cast(tf.cast(word, tf.uint32), tf.uint64)


def _high(word):
    return tf.bitwise.right_shift(word, _uint64(32))


def _xor(a, b, c):
    return tf.bitwise.bitwise_xor(tf.bitwise.bitwise_xor(a, b), c)


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
