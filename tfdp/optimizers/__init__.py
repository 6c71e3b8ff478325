"""DPOptimizer: charges, adds noise, calls the wrapped optimizer. Gradients arrive clipped."""

from tfdp.optimizers.bands import BandedInverse, BandedMatrix
from tfdp.optimizers.dp_optimizer import DPOptimizer
from tfdp.optimizers.rows import LazyAdam, RowAdagrad, RowSGD

__all__ = ["BandedInverse", "BandedMatrix", "DPOptimizer", "LazyAdam", "RowAdagrad", "RowSGD"]


def __dir__():
    return sorted(__all__)
