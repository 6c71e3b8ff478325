"""Hyper-parameters chosen by results, and the cost of the choice. No other charges."""

from tfdp.tuning.hyper_parameters import HyperParameters
from tfdp.tuning.number_of_runs import NumberOfRuns
from tfdp.tuning.private_mean import PrivateMean
from tfdp.tuning.tune import TuningResult, tune

__all__ = ["HyperParameters", "NumberOfRuns", "PrivateMean", "TuningResult", "tune"]


def __dir__():
    return sorted(__all__)
