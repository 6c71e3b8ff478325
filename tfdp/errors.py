"""The two errors of tfdp: for something that is not private, and for a spent budget."""


class PrivacyError(ValueError):
    """No guarantee would hold for a model, an argument or a batch."""


class BudgetError(ValueError):
    """A privacy budget cannot be met, or is spent."""
