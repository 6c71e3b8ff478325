"""A linear classifier straight from a release, with the known noise taken out of its moments."""

import numpy as np

from tfdp.data.releases.representation_release import Release


def release_head(release: Release, ridge: float = 0.01) -> tuple[np.ndarray, np.ndarray]:
    """The linear discriminant of a release: post-processing, without further cost.

    Noise of known variance is subtracted from the second moments, which gradient descent on noisy
    vectors cannot do. With class means m_j, class shares p_j and the second moment M of clean
    representations,

        S = M - Σ_j p_j m_j m_jᵀ + ridge·C²·I,   kernel_j = S⁻¹ m_j,   bias_j = -½ m_jᵀ S⁻¹ m_j

    (no prior: classes count alike). From "release_once", M = E[z zᵀ] - σ²C² I and the means are
    plain. From "release_mixtures", sums over Poisson micro-batches of expected size s have
    covariances s·M (plus the noise's) and s·p_j m_j.

    Args:
        release: a `tfdp.data.Release`; for "release_once" its labels are integers.
        ridge: regularization, as a share of the squared clip norm; use a larger one for more noise.

    Returns:
        float32 kernel (k, num_classes) and bias (num_classes,): `h @ kernel + bias` are scores of
        representations clipped as in the release.

    Raises:
        ValueError: if the ridge is not positive, or labels are not indices of classes.
    """
    if not ridge > 0:
        raise ValueError(f"Argument `ridge` must be positive. Received: ridge={ridge}")
    details = release.details
    z = release.features.astype(np.float64)
    if details["mechanism"] == "release_mixtures":
        second, cross, shares = _of_mixtures(z, release.targets.astype(np.float64), details)
    else:
        one_hot = _one_hot(release.targets)
        second = z.T @ z / len(z)
        second -= (details["noise_multiplier"] * details["clip_norm"]) ** 2 * np.eye(z.shape[1])
        cross, shares = z.T @ one_hot / len(z), one_hot.mean(axis=0)
    means = cross / np.maximum(shares, 1e-3)  # (k, classes)
    values, vectors = np.linalg.eigh(second - (means * shares) @ means.T)
    # What the subtraction leaves of a direction is never below zero.
    values = np.maximum(values, 0.0) + ridge * details["clip_norm"] ** 2
    kernel = (vectors / values) @ (vectors.T @ means)
    bias = -0.5 * np.sum(means * kernel, axis=0)
    return kernel.astype(np.float32), bias.astype(np.float32)


def _one_hot(labels):
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer) or labels.min() < 0:
        raise ValueError(
            "Argument `release` must have integer labels of shape (m,), counted from 0 (the "
            f"indices of their classes). Received: {labels.dtype} of shape {labels.shape}, such "
            f"as {labels[:5]}"
        )
    return np.eye(int(labels.max()) + 1)[labels]


def _of_mixtures(sums, labels, details):
    size = details["expected_size"]
    shares = np.clip(labels.mean(axis=0) / size, 1e-3, 1.0)
    sums, labels = sums - sums.mean(axis=0), labels - labels.mean(axis=0)
    second = sums.T @ sums / (len(sums) * size)
    second -= details["feature_stddev"] ** 2 / size * np.eye(sums.shape[1])
    return second, sums.T @ labels / (len(sums) * size), shares / shares.sum()
