"""The private optimizer."""

from tfdp.optimizers.dp_optimizer import DPOptimizer

__all__ = ["DPOptimizer"]
