"""Readers of known files, and generated data. Their output is not private."""
