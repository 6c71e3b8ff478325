"""Mechanisms that used the data, and their ε. Imports neither TensorFlow nor Keras.

What papers claim is in `tfdp.accounting.literature`.
"""

from typing import TYPE_CHECKING

from tfdp._compat.imports import on_demand

if TYPE_CHECKING:  # for editors and the documentation
    from tfdp.accounting.accountants import epsilon
    from tfdp.accounting.budget import PrivacyBudget
    from tfdp.accounting.calibration import (
        calibrate_noise_multiplier,
        calibrate_random_allocation,
    )
    from tfdp.accounting.charges.ledger import Ledger
    from tfdp.accounting.charges.ledger_entry import LedgerEntry
    from tfdp.accounting.charges.sampling import Sampling
    from tfdp.accounting.events.adjacency import ADJACENCIES
    from tfdp.accounting.events.registry import register_event
    from tfdp.accounting.forward_noise import calibrate_forward_noise
    from tfdp.accounting.losses.gdp import gdp_clt_epsilon
    from tfdp.accounting.reports.statement import Statement, privacy_statement

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
        ".events.adjacency": ["ADJACENCIES"],
        ".budget": ["PrivacyBudget"],
        ".calibration": [
            "calibrate_noise_multiplier",
            "calibrate_random_allocation",
        ],
        ".events.registry": ["register_event"],
        ".forward_noise": ["calibrate_forward_noise"],
        ".losses.gdp": ["gdp_clt_epsilon"],
        ".charges.ledger": ["Ledger"],
        ".charges.ledger_entry": ["LedgerEntry"],
        ".charges.sampling": ["Sampling"],
        ".reports.statement": ["Statement", "privacy_statement"],
    },
)


def __dir__():
    return sorted(__all__)
