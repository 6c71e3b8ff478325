"""Lower bounds on ε from attacks that trust no claim of the library."""

from tfdp.audit.attacks import CANARIES, play
from tfdp.audit.bounds import epsilon_of_guesses, epsilon_of_rates, epsilon_of_scores
from tfdp.audit.games import GAMES
from tfdp.audit.one_run import one_run
from tfdp.audit.result import AuditResult

__all__ = [
    "CANARIES",
    "GAMES",
    "AuditResult",
    "epsilon_of_guesses",
    "epsilon_of_rates",
    "epsilon_of_scores",
    "one_run",
    "play",
]


def __dir__():
    return sorted(__all__)
