"""Canaries in released mixtures: records with a direction and a class of their own."""

import numpy as np

import tfdp
from tfdp.audit.one_run import one_run

_MIXTURES = 16
_Q = 0.25  # probability that a record is in a mixture
_NOISE = 2.0
_LABEL_SHARE = 0.3
#: An array of the records has a column for each canary's direction and one for its class.
MOST = 2000


def mixtures(canaries, delta, confidence):
    """Canaries in the data whose `tfdp.data.release_mixtures` are made.

    Formal guarantees: those of `one_run`. Features and labels are attacked together: the score is
    the likelihood ratio of all mixtures' projections on the canary's direction and class, weighted
    as their noise is. The claim is the release's own statement. Source: MATH.md section 5.

    Args:
        canaries: their number; of more than `MOST`, so many are used.
        delta: δ of the claim.
        confidence: of the bound.

    Returns:
        An `AuditResult`.
    """
    canaries = min(canaries, MOST)

    def release(included):
        # Who is out leaves a record of zeros, with a class that no canary has.
        representations = np.diag(10.0 * included)
        labels = np.where(included, np.arange(canaries), canaries)
        return tfdp.data.release_mixtures(
            representations, labels, canaries + 1, 1.0, _Q * canaries, _MIXTURES,
            noise_multiplier=_NOISE, label_share=_LABEL_SHARE,
        )  # fmt: skip

    def score(release):
        features = np.asarray(release.features, np.float64)
        targets = np.asarray(release.targets, np.float64)[:, :canaries]
        # A canary that is drawn counts 1 here, and the noise is of standard deviation σ.
        seen = (1 - _LABEL_SHARE) * features + _LABEL_SHARE * targets
        ratios = np.log(_Q) + (2 * seen - 1) / (2 * _NOISE**2)
        return np.logaddexp(np.log1p(-_Q), ratios).sum(axis=0)

    return one_run(
        release, score, canaries, delta, (max(canaries // 10, 1), 0), confidence,
        "canaries in mixtures",
    )  # fmt: skip
