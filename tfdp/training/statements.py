"""The privacy statement of a model, from its ledger and from what trained it."""

from tfdp import accounting
from tfdp.accounting.charges.notes import Notes
from tfdp.optimizers import DPOptimizer
from tfdp.training.checks import caveats


def statement_of(model, delta, accountant):
    """What `DPModel.privacy_statement` returns.

    Raises:
        ValueError: for a model that was trained with neither a DPOptimizer, nor forward noise, nor
            released data: there is no privacy to state.
        PrivacyError: if nothing was charged, and n is still to come from the data.
    """
    optimizer = getattr(model, "optimizer", None)
    ledger = model.ledger
    notes = model.charge_history.notes | caveats.of_model(model)
    notes |= Notes(assumptions=model.weight_origin.assumption())
    budget = getattr(model, "budget", None)
    num_examples, unit = None, model.privacy_unit
    if isinstance(optimizer, DPOptimizer):
        if ledger.num_examples is None:  # else weights that were charged came from a file
            optimizer.from_data.require()
        notes |= caveats.of_optimizer(optimizer)
        budget, num_examples = optimizer.budget, optimizer.num_examples
        unit = optimizer.charging.unit
        delta = optimizer.default_delta if delta is None else delta
    elif ledger.num_examples is None:
        raise ValueError(
            f"Model {model.name!r} has no privacy to state: it is not compiled with a "
            "DPOptimizer, and was trained with neither DPForwardNoise nor released data. Compile "
            "it with a tfdp.optimizers.DPOptimizer; past charges remain. Received: "
            f"optimizer={type(optimizer).__name__}"
        )
    elif delta is None:
        delta = 0.1 / ledger.num_examples if budget is None else budget.delta
    return accounting.privacy_statement(
        ledger,
        delta=delta,
        accountant=accountant,
        unit=unit,
        num_examples=num_examples,
        budget=budget,
        notes=notes,
    )


def is_protected(model):
    """Whether forward noise or a release protected some of what the model was trained on."""
    ledger = getattr(model, "ledger", None)
    return ledger is not None and ledger.num_examples is not None
