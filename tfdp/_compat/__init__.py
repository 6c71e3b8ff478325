"""Internal APIs of other packages: one small function for each use. No privacy logic.

tests/contracts/test_compat.py says what each of them relies on.
"""
