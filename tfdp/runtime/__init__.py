"""Replicas, strategies and compilation; it knows nothing of privacy."""
