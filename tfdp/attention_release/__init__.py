"""`PrivateAttention`: releases its inputs at inference, not training data."""
