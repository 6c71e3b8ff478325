"""Chi-square variates with true tails, from uniform bits."""

import numpy as np
import tensorflow as tf

from tfdp.noise import standard_normal_from_bits

_ROUNDS = 16
WORDS = 2 * _ROUNDS + 1  # uniform 64-bit integers consumed by one variate


def chi_square_from_bits(bits, degrees_of_freedom):
    """Draws chi-square variates of one or more degrees of freedom each.

    Marsaglia and Tsang's (2000) rejection sampler for Gamma(m/2), on normals from the inverse
    CDF, in a fixed number of rounds: no loop for XLA to compile and none whose length depends on
    anything. `tf.random.stateless_gamma` proposes from the clamped normals of TensorFlow, has no
    XLA kernel and cannot be used.

    Formal guarantees: a round accepts with probability above 0.95 for every m >= 2, so that the
    distribution differs from chi-square by at most 0.05^16 = 2e-21 in total variation, beyond
    the rounding of float64. For m = 1 the variate is the square of a normal.

    Args:
        bits: uint64 tensor (..., n, WORDS) of independent uniform bits.
        degrees_of_freedom: n integers of at least 1, up to 2^53.

    Returns:
        A float64 tensor (..., n).
    """
    degrees = np.asarray(degrees_of_freedom, np.float64)
    shape = np.maximum(degrees, 2.0)[:, None] / 2
    d = tf.constant(shape - 1 / 3, tf.float64)
    c = tf.constant(1 / (3 * np.sqrt(shape - 1 / 3)), tf.float64)

    z = standard_normal_from_bits(bits[..., : _ROUNDS + 1])
    own, z = z[..., 0], z[..., 1:]
    words = tf.bitwise.right_shift(bits[..., _ROUNDS + 1 :], tf.constant(1, tf.uint64))
    uniform = (tf.cast(tf.cast(words, tf.int64), tf.float64) + 0.5) * 2.0**-63
    y = c * z
    positive = y > -1
    y = tf.where(positive, y, tf.zeros_like(y))
    # ln of the acceptance probability, z^2/2 + d (1 - v + ln v) with v = (1+y)^3. Where d is large
    # y is small: in powers of y nothing of size 1 cancels.
    powers = 3 * (tf.math.log1p(y) - y) - (3 + y) * tf.square(y)
    log_ratio = tf.square(z) / 2 + d * powers
    accepted = positive & (tf.math.log(uniform) < log_ratio)
    first = tf.argmax(tf.cast(accepted, tf.int32), axis=-1)
    v = tf.pow(1 + y, 3)
    chosen = tf.gather(2 * d * v, first, batch_dims=first.shape.rank)
    return tf.where(tf.constant(degrees == 1), tf.square(own), chosen)
