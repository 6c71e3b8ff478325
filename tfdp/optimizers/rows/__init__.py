"""Optimizers that update only a few rows of a table. No privacy logic."""

from tfdp.optimizers.rows.lazy_adam import LazyAdam
from tfdp.optimizers.rows.row_adagrad import RowAdagrad
from tfdp.optimizers.rows.row_optimizer import RowOptimizer
from tfdp.optimizers.rows.row_sgd import RowSGD

__all__ = ["LazyAdam", "RowAdagrad", "RowOptimizer", "RowSGD"]
