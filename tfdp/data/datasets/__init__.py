"""Data sets: readers of known files, and generated data."""
