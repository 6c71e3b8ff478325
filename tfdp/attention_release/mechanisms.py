"""The two mechanisms, applied to clipped matrices; privacy needs nothing beyond these lines."""

import numpy as np
import tensorflow as tf

from tfdp.attention_release.chi_square import WORDS, chi_square_from_bits
from tfdp.noise import Grid, standard_normal_from_bits


def noisy_gram(x, sensitivity, noise_multiplier, source):
    """X X' plus symmetric Gaussian noise.

    Formal guarantees: the Gaussian mechanism with standard deviation noise_multiplier * Delta_F in
    the coordinates (diagonal, sqrt(2) * upper triangle), whose l2 norm is the Frobenius norm; off
    the diagonal the noise is smaller by sqrt(2). On a grid (`tfdp.noise.grid`). Private if the rows
    or columns of `x` are clipped.

    Args:
        x: float64 tensor (..., n, d), clipped, n static.
        sensitivity: Delta_F of form "gram".
        noise_multiplier: relative to it.
        source: object with `release(values, grid, scale)`.

    Returns:
        A symmetric float64 tensor (..., n, n).

    Source: MATH.md section 6.
    """
    n = x.shape[-2]
    grid = Grid(noise_multiplier * sensitivity, sensitivity, n * n)
    scale = np.where(np.eye(n) > 0, 1.0, np.sqrt(0.5))
    # The lower triangle is released; the upper one, which is the same, repeats it.
    noisy = source.release(tf.matmul(x, x, transpose_b=True), grid, scale)
    lower = tf.linalg.band_part(noisy, -1, 0)
    return lower + tf.linalg.matrix_transpose(lower) - tf.linalg.band_part(noisy, 0, 0)


def noisy_product(q, k, sensitivity, noise_multiplier, source):
    """Q K' plus independent Gaussian noise on every entry.

    Formal guarantees: the Gaussian mechanism, on a grid (`tfdp.noise.grid`). Private if the rows,
    or the columns of [Q; K], are clipped.

    Args:
        q: float64 tensor (..., n, d), clipped, n static.
        k: float64 tensor (..., n, d), clipped.
        sensitivity: Delta_F of form "product".
        noise_multiplier: relative to it.
        source: object with `release(values, grid)`.

    Returns:
        A float64 tensor (..., n, n).
    """
    grid = Grid(noise_multiplier * sensitivity, sensitivity, q.shape[-2] ** 2)
    return source.release(tf.matmul(q, k, transpose_b=True), grid)


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
    known = x.shape[:-2]
    whole = known.is_fully_defined()
    batch = tf.constant(known.as_list(), tf.int32) if whole else tf.shape(x)[:-2]
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


def rounded(covariance, ridge):
    """A sampled covariance without its low bits, whose patterns depend on the input.

    No noise is added to it that a grid could be shared with: it is a product of the input's
    Cholesky factor and noise, and which float64 values occur depends on the factor. Multiples of
    2^-20 ridge / n occur for all inputs, each with about the probability of its cell
    (docs/noise.md).

    Args:
        covariance: float64 tensor (..., n, n).
        ridge: eta.
    """
    step = Grid(0.0, ridge, covariance.shape[-1] ** 2).step
    return tf.round(covariance / step) * step
