"""The two mechanisms, applied to clipped matrices; privacy needs nothing beyond these lines."""

import numpy as np
import tensorflow as tf

from tfdp.attention_release.chi_square import WORDS, chi_square_from_bits
from tfdp.noise import standard_normal_from_bits


def noisy_gram(x, stddev, source):
    """X X' plus symmetric Gaussian noise.

    Formal guarantees: the Gaussian mechanism with standard deviation `stddev` in the coordinates
    (diagonal, sqrt(2) * upper triangle), whose l2 norm is the Frobenius norm; off the diagonal
    the noise has standard deviation stddev / sqrt(2). Private if `stddev` is noise_multiplier
    times the Delta_F of form "gram" and the rows or columns of `x` are clipped.

    Args:
        x: float64 tensor (..., n, d), clipped.
        stddev: noise_multiplier * Delta_F.
        source: object with `bits(shape)`.

    Returns:
        A symmetric float64 tensor (..., n, n).

    Source: MATH.md section 6.
    """
    noise = _square_normal(x, source)
    # Adding the transpose to the strict lower triangle uses each of its variates once.
    lower = tf.linalg.band_part(noise, -1, 0)
    diagonal = tf.linalg.band_part(noise, 0, 0)
    strict = (lower - diagonal) / np.sqrt(2.0)
    noise = strict + tf.linalg.matrix_transpose(strict) + diagonal
    return tf.matmul(x, x, transpose_b=True) + stddev * noise


def noisy_product(q, k, stddev, source):
    """Q K' plus independent Gaussian noise on every entry.

    Formal guarantees: the Gaussian mechanism. Private if `stddev` is noise_multiplier times the
    Delta_F of form "product" and the rows, or the columns of [Q; K], are clipped.

    Args:
        q: float64 tensor (..., n, d), clipped.
        k: float64 tensor (..., n, d), clipped.
        stddev: noise_multiplier * Delta_F.
        source: object with `bits(shape)`.

    Returns:
        A float64 tensor (..., n, n).
    """
    return tf.matmul(q, k, transpose_b=True) + stddev * _square_normal(q, source)


def sampled_covariance(x, ridge, num_samples, source):
    """The sample covariance of `num_samples` draws from N(0, X X' + ridge I).

    num_samples times it is Wishart(num_samples, Sigma), drawn by Bartlett's decomposition: with
    Sigma = L L', it is L A A' L', A lower triangular with independent standard normals below the
    diagonal and A_ii^2 chi-square of num_samples - i degrees of freedom (i from 0); trapezoidal,
    (n, num_samples), if num_samples < n. O(n^2) random numbers and O(n^3) work, whatever
    num_samples.

    Formal guarantees: as for `WishartDpEvent(num_samples, Delta_F / ridge)`, with the Delta_F of
    form "gram" (or "stacked", if x is [Q; K]) and the rows or columns of `x` clipped.

    Args:
        x: float64 tensor (..., n, d), clipped, n static.
        ridge: eta, positive.
        num_samples: k, a count.
        source: object with `bits(shape)`.

    Returns:
        A float64 tensor (..., n, n), positive semidefinite; its expectation is X X' + ridge I.

    Source: Bartlett (1933); MATH.md section 6.
    """
    n = x.shape[-2]
    columns = min(n, num_samples)
    covariance = tf.matmul(x, x, transpose_b=True) + ridge * tf.eye(n, dtype=tf.float64)
    batch = tf.shape(x)[:-2]
    bits = source.bits(tf.concat([batch, [n * columns + columns * WORDS]], 0))
    normal_bits, rest = bits[..., : n * columns], bits[..., n * columns :]
    normal = standard_normal_from_bits(tf.reshape(normal_bits, tf.concat([batch, [n, columns]], 0)))
    chi_square = chi_square_from_bits(
        tf.reshape(rest, tf.concat([batch, [columns, WORDS]], 0)),
        [num_samples - i for i in range(columns)],
    )
    strict = np.tril(np.ones([n, columns]), -1)
    factor = normal * strict + tf.sqrt(chi_square)[..., None, :] * np.eye(n, columns)
    root = tf.matmul(tf.linalg.cholesky(covariance), factor)
    return tf.matmul(root, root, transpose_b=True) / num_samples


def _square_normal(x, source):
    shape = tf.concat([tf.shape(x)[:-1], [x.shape[-2]]], 0)
    return standard_normal_from_bits(source.bits(shape))
