"""Replicas, strategies and XLA; it knows nothing of privacy."""
