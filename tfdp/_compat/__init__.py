"""What tfdp uses of other packages beyond their public interfaces, one small function each.

tests/contracts/test_compat.py says what each of them relies on.
"""
