"""An audit of one training run, by canaries (Steinke, Nasr and Jagielski 2023)."""

from __future__ import annotations

import secrets
from collections.abc import Callable

import numpy as np

from tfdp import _validate
from tfdp.audit.bounds import epsilon_of_guesses
from tfdp.audit.result import AuditResult


def one_run(
    train: Callable,
    score: Callable,
    canaries: int,
    delta: float,
    guesses: int | None = None,
    confidence: float = 0.95,
    name: str = "one training run",
) -> AuditResult:
    """Trains once with half of the canaries, and guesses which half it was.

    Formal guarantees: those of `epsilon_of_guesses`; nothing is asked of `train` and `score` but
    that `score` sees the model alone. The canaries that are in are drawn from the operating
    system's entropy.

    Args:
        train: function from a boolean array (canaries,) to a trained model: put the canaries that
            are True beside the other records, through the data path that you want to audit.
        score: function from the model to a number for each canary, (canaries,), higher where it
            seems to have been in: the negative loss, or a product with the update.
        canaries: their number; hundreds, for a bound near the claim.
        delta: δ of the claim.
        guesses: how many guesses to make, half of them "in" (the highest scores), half "out".
            Default: a tenth of the canaries each.
        confidence: of the bound.
        name: for the table.

    Returns:
        An `AuditResult`, whose claim is what `model.privacy_statement(delta)` says.

    Raises:
        ValueError: if an argument is out of range, or the scores have another shape.
    """
    canaries = _validate.count("canaries", canaries)
    _validate.open_unit("delta", delta)
    half = max(canaries // 10, 1) if guesses is None else _validate.count("guesses", guesses) // 2
    if not 1 <= half <= canaries // 2:
        raise ValueError(
            f"Argument `guesses` must be between 2 and canaries={canaries}. "
            f"Received: guesses={guesses!r}"
        )
    bits = np.frombuffer(secrets.token_bytes(canaries), np.uint8)
    included = (bits & 1).astype(bool)
    model = train(included.copy())
    scores = np.asarray(score(model), np.float64)
    if scores.shape != (canaries,):
        raise ValueError(
            f"Argument `score` must give one number for each of {canaries} canaries. "
            f"Received: an array of shape {scores.shape}"
        )
    order = np.argsort(scores)
    correct = int(included[order[-half:]].sum() + (~included[order[:half]]).sum())
    claim = model.privacy_statement(delta).epsilon
    bound = epsilon_of_guesses(correct, 2 * half, canaries, delta, confidence)
    return AuditResult(name, claim, bound, delta, confidence, canaries)
