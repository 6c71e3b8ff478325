"""Privacy accounting: events, the ledger, calibration and statements.

Nothing here imports TensorFlow or Keras.
"""

from tfdp.accounting.accountants import epsilon
from tfdp.accounting.adjacency import ADJACENCIES
from tfdp.accounting.budget import PrivacyBudget, check_delta
from tfdp.accounting.calibration import calibrate_noise_multiplier
from tfdp.accounting.composition import compose, training_event
from tfdp.accounting.events import event_from_dict, event_to_dict, register_event
from tfdp.accounting.forward_noise import (
    FORWARD_ADJACENCIES,
    PaperForwardNoiseClaim,
    calibrate_forward_noise,
    paper_forward_noise_claim,
    paper_forward_noise_multiplier,
    visible_sampling_epsilon,
)
from tfdp.accounting.gdp import gdp_clt_epsilon
from tfdp.accounting.history import ChargeHistory
from tfdp.accounting.ledger import Ledger, LedgerEntry
from tfdp.accounting.mechanisms import (
    ForwardNoise,
    NoPrivacy,
    Notes,
    PrivateTraining,
    ReleasedData,
)
from tfdp.accounting.sampling import Sampling
from tfdp.accounting.statement import Statement, privacy_statement
from tfdp.accounting.truncation import overflow_probability, smallest_capacity, truncation_delta
from tfdp.accounting.visible_sampling import VisiblySampledGaussianDpEvent
from tfdp.errors import BudgetError

__all__ = [
    "ADJACENCIES",
    "BudgetError",
    "ChargeHistory",
    "FORWARD_ADJACENCIES",
    "ForwardNoise",
    "Ledger",
    "LedgerEntry",
    "NoPrivacy",
    "Notes",
    "PaperForwardNoiseClaim",
    "PrivacyBudget",
    "PrivateTraining",
    "ReleasedData",
    "Sampling",
    "Statement",
    "VisiblySampledGaussianDpEvent",
    "calibrate_forward_noise",
    "calibrate_noise_multiplier",
    "check_delta",
    "compose",
    "epsilon",
    "event_from_dict",
    "event_to_dict",
    "gdp_clt_epsilon",
    "overflow_probability",
    "paper_forward_noise_claim",
    "paper_forward_noise_multiplier",
    "privacy_statement",
    "register_event",
    "smallest_capacity",
    "training_event",
    "truncation_delta",
    "visible_sampling_epsilon",
]
