"""A linear classifier from released mixtures."""

import numpy as np


def mixture_head(release, ridge=0.003):
    """The linear head that best explains the mixtures' labels by their representations.

    Sums over Poisson micro-batches have covariances m·E[h hᵀ] (plus the noise's, which is known
    and subtracted) and m·E[h yᵀ], m the expected size. So

        W = (E[h hᵀ] + ridge·C²·I)⁻¹ E[h yᵀ]

    is the least-squares classifier of single examples. Post-processing: it costs nothing.

    Args:
        release: what `tfdp.data.release_mixtures` returned.
        ridge: regularization, as a share of the squared clip norm.

    Returns:
        float32 (k, num_classes): `representations @ W` are the classes' scores.

    Raises:
        ValueError: for another kind of release, or a ridge that is not positive.
    """
    details = release.details
    if details["mechanism"] != "release_mixtures":
        raise ValueError(
            "Argument `release` must be made by `tfdp.data.release_mixtures`. "
            f"Received: a release by {details['mechanism']!r}"
        )
    if not ridge > 0:
        raise ValueError(f"Argument `ridge` must be positive. Received: ridge={ridge}")
    s = release.features.astype(np.float64)
    y = release.targets.astype(np.float64)
    s, y = s - s.mean(axis=0), y - y.mean(axis=0)
    size = len(s) * details["expected_size"]
    noise = details["feature_stddev"] ** 2 / details["expected_size"]
    values, vectors = np.linalg.eigh(s.T @ s / size)
    # The noise's share is subtracted; what is left of a direction is never below zero.
    values = np.maximum(values - noise, 0.0) + ridge * details["clip_norm"] ** 2
    return ((vectors / values) @ (vectors.T @ (s.T @ y / size))).astype(np.float32)
