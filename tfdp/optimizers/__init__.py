"""DPOptimizer: charges, adds noise, calls the wrapped optimizer. Gradients arrive clipped."""

from tfdp.optimizers.dp_optimizer import DPOptimizer
from tfdp.optimizers.noise_correlation import BandedInverse
from tfdp.optimizers.rows import LazyAdam, RowAdagrad, RowSGD

__all__ = ["BandedInverse", "DPOptimizer", "LazyAdam", "RowAdagrad", "RowSGD"]


def __dir__():
    return sorted(__all__)
