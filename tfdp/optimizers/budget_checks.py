"""What is refused before a run: a spent budget, steps beyond it, and another unit of privacy."""

from tfdp.accounting.charges.sampling import PERSON
from tfdp.errors import BudgetError, PrivacyError


def refuse_other_units(history, unit):
    """What is private for a record does not add up with what is private for a person."""
    for mechanism, _ in history.private_runs:
        if (mechanism.unit == PERSON) != (unit == PERSON):
            raise PrivacyError(
                f"These weights were trained with {mechanism.unit} as the unit of privacy, but "
                f"this training run has {unit}: ε would be infinite. Use the same unit in the "
                "DPOptimizer and sampler of every training run of a model "
                "(`max_records_per_unit`, `privacy_ids`)."
            )


def refuse_spent(budget, remaining, steps):
    """Refuses a run of which no step is left."""
    if remaining <= 0:
        raise BudgetError(
            f"The budget (epsilon={budget.epsilon}, delta={budget.delta}) is spent: all {steps} "
            "steps have run. To continue training, compile the model with a larger budget; past "
            "charges remain. To train in several calls of `fit`, give the DPOptimizer `steps=`, "
            "the total over all calls."
        )


def refuse_beyond(budget, remaining, ledger):
    """Refuses steps whose end, as `ledger` has it, lies beyond the budget."""
    epsilon = ledger.epsilon(budget.delta)
    if epsilon > budget.epsilon * (1 + 1e-9):
        raise BudgetError(
            f"The remaining {remaining} steps would end at epsilon={epsilon:.6g}, beyond the "
            f"budget's {budget.epsilon} at delta={budget.delta}. Either these weights were "
            "charged again after the noise was calibrated (every `fit` begins a new pass of "
            "shuffled or allocated batches), or draws exceed `max_batch_size` too often. Compile "
            "again with a new DPOptimizer, which calibrates to the rest of the budget, or raise "
            "`max_batch_size` of `poisson_batches` (num_examples always suffices)."
        )
