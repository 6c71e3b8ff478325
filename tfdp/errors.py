"""The two refusals of tfdp: what cannot be private, and what cannot be paid for."""


class PrivacyError(ValueError):
    """A model, an argument or a batch for which no guarantee would hold."""


class BudgetError(ValueError):
    """A privacy budget cannot be met, or has been spent."""
