"""`PrivateAttention`: it releases its inputs at inference, not training data."""
