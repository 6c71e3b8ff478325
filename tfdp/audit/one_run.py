"""An audit of one training run, by canaries (Steinke, Nasr and Jagielski 2023)."""

import numbers
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
    guesses: int | tuple[int, int] | None = None,
    confidence: float = 0.95,
    name: str = "one training run",
) -> AuditResult:
    """Trains once with half of the canaries, and guesses which half.

    Formal guarantees: those of `epsilon_of_guesses`. The only condition on `train` and `score` is
    that `score` sees only the model. A fair coin for each canary, from the operating system's
    entropy, decides whether it is in. The numbers of guesses of both kinds are fixed before the
    training run. The scores determine which canaries the guesses are about, before anything reads
    the coins.

    Args:
        train: function from a boolean array (canaries,) to a trained model, or to a release. It
            must add the canaries that are True to the other records, through the data path that you
            audit. It must replace each canary that is False by a record that contributes nothing,
            because the number of records is public.
        score: function from the model to one number for each canary, (canaries,), higher for
            canaries that seem to have been in: the negative loss, or a product with the update.
        canaries: number of canaries; use hundreds for a bound near the claim.
        delta: δ of the claim.
        guesses: a pair, the numbers of guesses of "in" (for the highest scores) and of "out" (for
            the lowest), or their sum, which is halved. Default: a tenth of the canaries each.
        confidence: of the bound.
        name: for the table.

    Returns:
        An `AuditResult`; its claim is the ε of `model.privacy_statement(delta)`.

    Raises:
        ValueError: if an argument is out of range, or the scores have another shape, or are not
            numbers.
    """
    canaries = _validate.count("canaries", canaries)
    _validate.open_unit("delta", delta)
    guessed_in, guessed_out = _guesses(guesses, canaries)
    bits = np.frombuffer(secrets.token_bytes(canaries), np.uint8)
    included = (bits & 1).astype(bool)
    model = train(included.copy())
    scores = np.asarray(score(model), np.float64)
    wrong = np.isnan(scores).sum()
    if scores.shape != (canaries,) or wrong:
        raise ValueError(
            f"Argument `score` must give one number for each of {canaries} canaries. "
            f"Received: an array of shape {scores.shape}, of which {wrong} are not a number"
        )
    order = np.argsort(scores, kind="stable")
    says_in, says_out = order[canaries - guessed_in :], order[:guessed_out]
    correct = int(included[says_in].sum() + (~included[says_out]).sum())
    claim = model.privacy_statement(delta).epsilon
    bound = epsilon_of_guesses(correct, guessed_in + guessed_out, canaries, delta, confidence)
    return AuditResult(name, claim, bound, delta, confidence, canaries)


def _guesses(guesses, canaries):
    """(guesses of "in", guesses of "out")."""
    if guesses is None:
        pair = (max(canaries // 10, 1),) * 2
    elif isinstance(guesses, (tuple, list)):
        pair = tuple(guesses)
    else:
        pair = (_validate.count("guesses", guesses) // 2,) * 2
    counts = all(isinstance(g, numbers.Integral) and g >= 0 for g in pair)
    if not (len(pair) == 2 and counts and 1 <= sum(pair) <= canaries):
        raise ValueError(
            'Argument `guesses` must be a pair of counts (guesses of "in", guesses of "out") '
            f"with a sum between 1 and canaries={canaries}, or one number of at least 2, which is "
            f"halved. Received: guesses={guesses!r}"
        )
    return pair
