"""What is private in other packages: one small function for each use, and nothing of privacy.

tests/contracts/test_compat.py says what each of them relies on.
"""
