"""The private optimizer, and optimizers that touch the rows they are given."""

from tfdp.optimizers.dp_optimizer import DPOptimizer
from tfdp.optimizers.rows import LazyAdam, RowAdagrad, RowSGD

__all__ = ["DPOptimizer", "LazyAdam", "RowAdagrad", "RowSGD"]


def __dir__():
    return sorted(__all__)
