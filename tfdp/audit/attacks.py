"""All attacks by name, games and canaries."""

from tfdp import _validate
from tfdp.audit.bounds import epsilon_of_scores
from tfdp.audit.chain_games import canaries_in_a_stream
from tfdp.audit.games import GAMES
from tfdp.audit.mixture_canaries import mixtures
from tfdp.audit.result import AuditResult
from tfdp.audit.row_canaries import rows_under_adafest, rows_under_fest

#: name -> function (canaries, delta, confidence) -> `AuditResult`
CANARIES = {
    "canary rows, AdaFEST": rows_under_adafest,
    "canary rows, FEST": rows_under_fest,
    "canaries in mixtures": mixtures,
    "canaries in a stream": canaries_in_a_stream,
}


def play(
    name: str, trials: int = 2000, delta: float | None = None, confidence: float = 0.95
) -> AuditResult:
    """Plays one of `GAMES` or `CANARIES`; returns an `AuditResult`.

    A game runs a mechanism many times, with one record and without it. Canaries are many records
    of one run, each in or out by a fair coin, that go through the ordinary data path.

    Formal guarantees: those of `epsilon_of_scores`, and of `one_run`: if the claim is true, the
    bound exceeds it with probability 1 - confidence at most.

    Args:
        name: a key of `GAMES` or of `CANARIES`.
        trials: runs of either kind, or canaries.
        delta: δ of the claim. Default: 1e-3 for a game, and 1e-5 for canaries, because their bound
            loses by δ times their number and their claim needs δ ≤ 1/n.
        confidence: of the bound.

    Raises:
        ValueError: if an argument is out of range.
    """
    _validate.one_of("name", name, (*GAMES, *CANARIES))
    trials = _validate.count("trials", trials)
    if name in CANARIES:
        return CANARIES[name](trials, 1e-5 if delta is None else delta, confidence)
    delta = 1e-3 if delta is None else delta
    with_record, claim = GAMES[name](True, trials, delta)
    without_record, _ = GAMES[name](False, trials, delta)
    bound = epsilon_of_scores(with_record, without_record, delta, confidence)
    return AuditResult(name, claim, bound, delta, confidence, trials)
