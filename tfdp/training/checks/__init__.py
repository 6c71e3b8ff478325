"""Checks before and during a run, and their sentences for the statement. Trains nothing."""
