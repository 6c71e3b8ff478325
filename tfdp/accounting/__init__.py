"""Privacy accounting: budgets, the ledger, calibration and statements.

Nothing here imports TensorFlow or Keras. What papers claim is in `tfdp.accounting.literature`.
"""

from typing import TYPE_CHECKING

from tfdp._compat.imports import on_demand

if TYPE_CHECKING:  # for editors and the documentation
    from tfdp.accounting.accountants import epsilon
    from tfdp.accounting.adjacency import ADJACENCIES
    from tfdp.accounting.budget import PrivacyBudget
    from tfdp.accounting.calibration import (
        calibrate_noise_multiplier,
        calibrate_random_allocation,
    )
    from tfdp.accounting.events import register_event
    from tfdp.accounting.forward_noise import calibrate_forward_noise
    from tfdp.accounting.gdp import gdp_clt_epsilon
    from tfdp.accounting.ledger import Ledger
    from tfdp.accounting.ledger_entry import LedgerEntry
    from tfdp.accounting.sampling import Sampling
    from tfdp.accounting.statement import Statement, privacy_statement

__all__ = [
    "ADJACENCIES",
    "Ledger",
    "LedgerEntry",
    "PrivacyBudget",
    "Sampling",
    "Statement",
    "calibrate_forward_noise",
    "calibrate_noise_multiplier",
    "calibrate_random_allocation",
    "epsilon",
    "gdp_clt_epsilon",
    "privacy_statement",
    "register_event",
]

__getattr__ = on_demand(
    __name__,
    {
        ".accountants": ["epsilon"],
        ".adjacency": ["ADJACENCIES"],
        ".budget": ["PrivacyBudget"],
        ".calibration": [
            "calibrate_noise_multiplier",
            "calibrate_random_allocation",
        ],
        ".events": ["register_event"],
        ".forward_noise": ["calibrate_forward_noise"],
        ".gdp": ["gdp_clt_epsilon"],
        ".ledger": ["Ledger"],
        ".ledger_entry": ["LedgerEntry"],
        ".sampling": ["Sampling"],
        ".statement": ["Statement", "privacy_statement"],
    },
)


def __dir__():
    return sorted(__all__)
