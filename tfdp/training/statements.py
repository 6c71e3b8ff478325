"""The privacy statement of a model, from its ledger and from what trained it."""

from tfdp import accounting
from tfdp.optimizers import DPOptimizer
from tfdp.training import caveats as coverage


def statement_of(model, delta, accountant):
    """What `DPModel.privacy_statement` returns.

    Raises:
        ValueError: for a model that was trained with neither a DPOptimizer, nor forward noise, nor
            released data: there is no privacy to state.
    """
    optimizer = getattr(model, "optimizer", None)
    common = {"accountant": accountant, "unit": model.privacy_unit}
    if isinstance(optimizer, DPOptimizer):
        return accounting.privacy_statement(
            model.ledger,
            delta=optimizer.default_delta if delta is None else delta,
            num_examples=optimizer.num_examples,
            sampling=optimizer.charging.sampling,
            steps=optimizer.charging.steps,
            budget=optimizer.budget,
            uncovered=coverage.uncovered(model),
            asserted=[*model.privacy_assertions(), *coverage.asserted(model)],
            remarks=coverage.remarks(model),
            **common,
        )
    ledger = model.ledger
    num_examples = number_of_examples(ledger)
    if num_examples is None:
        raise ValueError(
            f"Model {model.name!r} is not compiled with a DPOptimizer, and was trained with "
            "neither DPForwardNoise nor released data, so there is no privacy to state. "
            f"Received: optimizer={optimizer}"
        )
    budget = getattr(model, "budget", None)
    if delta is None:
        delta = budget.delta if budget is not None else 0.1 / num_examples
    return accounting.privacy_statement(
        ledger,
        delta=delta,
        budget=budget,
        num_examples=num_examples,
        sampling=None,
        steps=0,
        uncovered=coverage.uncovered_of_plain_training(model),
        asserted=[*model.privacy_assertions(), *coverage.asserted_of_plain_training(model)],
        **common,
    )


def is_protected(model):
    """Whether forward noise or a release protected some of what the model was trained on."""
    ledger = getattr(model, "ledger", None)
    return ledger is not None and number_of_examples(ledger) is not None


def number_of_examples(ledger):
    """n of the data behind forward noise and releases, the largest if they differ; or None."""
    known = [_num_examples(e.details) for e in ledger.entries if e.details.get("kind") in _KINDS]
    return max((n for n in known if n is not None), default=None)


_KINDS = ("forward noise", "release")


def _num_examples(details):
    return (details.get("sampling") or details).get("num_examples")
