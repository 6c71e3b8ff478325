"""How the noise of private training spreads through a transformer (MATH.md section 4).

Every function takes and returns one variance for each position: the noise is isotropic, so one
number stands for all features. Nothing here carries a gradient.
"""

import math

import tensorflow as tf


def dense(variance, inputs_square, kernel, error):
    """Variance after x → xW + b, averaged over the outputs (eq. 5.5 summed over the inputs).

    Args:
        variance: (..., T) variance of the inputs.
        inputs_square: (..., T) ‖x‖² of the inputs.
        kernel: (d_in, d_out).
        error: scalar, the effective error (a standard deviation) of the kernel and the bias.

    Returns:
        (..., T): d_in·v·σ² + v·‖W‖²/d_out + σ²·‖x‖² + σ².
    """
    d_in, d_out = kernel.shape
    square = tf.square(error)
    kernel_square = tf.reduce_sum(tf.square(kernel)) / d_out
    return variance * (d_in * square + kernel_square) + square * (inputs_square + 1.0)


def relu(variance, mean):
    """Variance after ReLU of N(mean, variance), averaged over the units.

    Eq. 5.6 subtracts c² where E² is meant; the paper's own table comes from E². GELU is treated
    as ReLU: 35% too high at a standard deviation of 0.1.

    Args:
        variance: (..., T).
        mean: (..., T, units), the pre-activations.
    """
    v = variance[..., tf.newaxis]
    # E2 − E² divided by v, which float32 could not subtract where v is small beside the mean.
    z = tf.clip_by_value(mean / tf.sqrt(tf.maximum(v, 1e-30)), -1e3, 1e3)
    below, above = (0.5 * tf.math.erfc(sign * z / math.sqrt(2.0)) for sign in (1.0, -1.0))
    density = tf.exp(-0.5 * tf.square(z)) / math.sqrt(2.0 * math.pi)
    share = (
        above + tf.square(z) * above * below + z * density * (below - above) - tf.square(density)
    )
    return tf.reduce_mean(v * tf.maximum(share, 0.0), axis=-1)


def layer_norm(variance, inputs, scale, error, epsilon=1e-6):
    """Variance after layer normalisation, to first order, its statistics taken as fixed.

    Args:
        variance: (..., T).
        inputs: (..., T, d).
        scale: (d,).
        error: scalar effective error of scale and shift.
    """
    spread = tf.math.reduce_variance(inputs, axis=-1) + epsilon
    return variance * tf.reduce_mean(tf.square(scale)) / spread + 2.0 * tf.square(error)


def attention(variance, scores):
    """Variance after attention: v'_i = Σ_j S_ij²·v_j.

    Args:
        variance: (B, heads, S) variance of the values.
        scores: (B, heads, T, S).

    Returns:
        (B, heads, T).
    """
    return tf.linalg.matvec(tf.square(scores), variance)


def dropout(variance, rate, training):
    """Variance after dropout in training: v/(1 − rate)."""
    return variance / (1.0 - rate) if training and rate else variance
