"""Readers of known files, and generated data; what they give is not private."""
