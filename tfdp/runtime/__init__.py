"""Replicas, strategies and XLA. No privacy logic."""
