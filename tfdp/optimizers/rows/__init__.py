"""Optimizers for tables of which a step touches a few rows; they know nothing of privacy."""

from tfdp.optimizers.rows.lazy_adam import LazyAdam
from tfdp.optimizers.rows.row_adagrad import RowAdagrad
from tfdp.optimizers.rows.row_optimizer import RowOptimizer
from tfdp.optimizers.rows.row_sgd import RowSGD

__all__ = ["LazyAdam", "RowAdagrad", "RowOptimizer", "RowSGD"]
