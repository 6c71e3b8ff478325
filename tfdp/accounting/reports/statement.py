"""The privacy statement: what is guaranteed, for whom, and what is not."""

import dataclasses
import json
import math
from typing import Any

from tfdp import _validate
from tfdp.accounting.accountants import ACCOUNTANTS, best_accountant
from tfdp.accounting.budget import PrivacyBudget, check_delta
from tfdp.accounting.charges.ledger import Ledger
from tfdp.accounting.charges.ledger_entry import LedgerEntry
from tfdp.accounting.charges.mechanisms import PrivateTraining
from tfdp.accounting.charges.notes import Notes, doubts
from tfdp.accounting.charges.sampling import PERSON, Sampling
from tfdp.accounting.events.adjacency import ADJACENCIES, strongest
from tfdp.accounting.events.composition import training_event
from tfdp.accounting.losses.truncation import truncation_delta
from tfdp.accounting.reports import statement_text
from tfdp.accounting.rounding import round_up

MIXED_UNITS = (
    "Some of the mechanisms below protect one person with all their records, others protect one "
    "record: together they protect neither. Sample by person everywhere (`privacy_ids`), or "
    "nowhere."
)

DIFFERENT_UNITS = (
    "The mechanisms below protect different units ({}), so their costs have no total. Keep one "
    "ledger for each unit."
)

REPEATED_DRAW = (
    "Several of the runs below trained on the same draw made ahead. Their samples are the same, "
    "so no epsilon for independent samples holds. Make a new draw for every training run "
    "(`tfdp.beam.draw_batches`)."
)

CUT_OFF = (
    "A batch holds fewer records than a draw can have. The cost of cutting larger draws, their "
    "probability times e^epsilon, exceeds delta at this epsilon (it would be {epsilon} without "
    "cutting). Give the sampler a larger `max_batch_size` (the number of records never cuts), or "
    "give the optimizer more noise."
)

DISJOINT = (
    "The records of every person lie in one period only; ids were checked when the batches were "
    "made. The epsilon is that of the costliest of the {count} disjoint periods, not their sum."
)


_ROUNDING = 1e-6  # relative, between versions of the accountants


@dataclasses.dataclass(frozen=True)
class Statement:
    """A privacy statement; `str()` is for people, `to_json()` for programs.

    Args:
        epsilon: the composed epsilon of the ledger; infinite if nothing is private, or if none can
            be stated (`unstated` lists the reasons).
        delta: the delta of this epsilon.
        adjacency: the adjacency under which it holds.
        unit: the unit of privacy, e.g. "one user".
        accountant: "pld" or "rdp".
        num_examples: n, of the largest data in the ledger.
        steps: steps of private training.
        entries: the ledger's entries as dicts.
        sampling: how the batches of the last private training were drawn, if known.
        assumed_epsilon: for shuffled batches, the epsilon that Poisson sampling would have given;
            it is not a guarantee for what ran.
        appearances: for shuffled batches, the largest number of uses of one record.
        overflow_delta: the part of delta spent on truncated batches.
        budget: the requested budget, if any.
        unstated: reasons why no epsilon can be stated.
        not_covered: everything that the guarantee does not cover.
        assumptions: facts that the user vouched for.
        remarks: anything else a reader must know.
    """

    epsilon: float
    delta: float
    adjacency: str
    unit: str
    accountant: str
    num_examples: int | None
    steps: int
    entries: tuple
    sampling: Sampling | None = None
    assumed_epsilon: float | None = None
    appearances: int | None = None
    overflow_delta: float = 0.0
    budget: PrivacyBudget | None = None
    unstated: tuple = ()
    not_covered: tuple = ()
    assumptions: tuple = ()
    remarks: tuple = ()

    @property
    def kept(self):
        """Whether the budget was kept, at its own δ; True if there was none."""
        budget, epsilon = self.budget, self.epsilon
        if budget is None:
            return True
        if self.delta != budget.delta and math.isfinite(epsilon):
            ledger = Ledger(LedgerEntry.from_dict(entry) for entry in self.entries)
            epsilon = ledger.epsilon(budget.delta, self.accountant, self.adjacency)
        return epsilon <= budget.epsilon

    def to_dict(self):
        """All fields as a dict of plain values; an infinite epsilon is the string "infinity"."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        for name, value in fields.items():
            if isinstance(value, tuple):
                fields[name] = list(value)
            elif isinstance(value, (Sampling, PrivacyBudget)):
                fields[name] = dataclasses.asdict(value)
            elif isinstance(value, float) and math.isinf(value):
                fields[name] = "infinity"
        return fields

    def to_json(self):
        """`to_dict` as JSON text."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False)

    @classmethod
    def from_dict(cls, fields):
        """The inverse of `to_dict`.

        Raises:
            ValueError: if the dict is no statement, or its ε is below what its entries compose
                to: it was damaged, or changed by hand.
        """
        known = {f.name for f in dataclasses.fields(cls)}
        if not isinstance(fields, dict) or not {"epsilon", "delta", "entries"} <= set(fields):
            raise ValueError(
                "Argument `fields` must be a privacy statement as a dict, with epsilon, delta and "
                f"entries. Received: {str(fields)[:80]}"
            )
        read = {k: tuple(v) if isinstance(v, list) else v for k, v in fields.items() if k in known}
        read["epsilon"] = float(read["epsilon"])  # "infinity", too
        for name, make in (("sampling", Sampling.from_dict), ("budget", _budget_of)):
            if read.get(name) is not None:
                read[name] = make(read[name])
        statement = cls(**read)
        statement._check_entries()
        return statement

    def _check_entries(self):
        if math.isinf(self.epsilon):
            return
        ledger = Ledger(LedgerEntry.from_dict(entry) for entry in self.entries)
        composed = ledger.epsilon(self.delta, self.accountant, self.adjacency)
        if composed > self.epsilon * (1 + _ROUNDING):
            raise ValueError(
                f"The statement states epsilon = {self.epsilon:.6g}, but the mechanisms that it "
                f"lists compose to {composed:.6g} at delta = {self.delta:.3g}. It was damaged, or "
                "changed by hand. Export the model again."
            )

    def __str__(self):
        return statement_text.render(self)


def _budget_of(fields):
    return PrivacyBudget(**fields)


def privacy_statement(
    ledger: Ledger,
    *,
    delta: float,
    accountant: str | None = None,
    adjacency: str = "add_or_remove_one",
    unit: str = "one example",
    num_examples: int | None = None,
    budget: PrivacyBudget | None = None,
    notes: Any = None,
) -> Statement:
    """States what a ledger guarantees.

    Formal guarantees: `.epsilon` is `ledger.epsilon(delta)` under the stated adjacency, so it holds
        for everything that was charged.

    Args:
        ledger: a `Ledger`.
        delta: a probability, at most 1/n of the largest data in the ledger.
        accountant: "pld", "rdp", or None: PLD, or RDP where PLD has no rule.
        adjacency: as for `tfdp.accounting.epsilon`; stronger if a mechanism requires it.
        unit: the unit of privacy, such as "one user". If the ledger is about persons, or about an
            input of inference, it states its own unit.
        num_examples: n, if the ledger does not state it, or states a smaller one.
        budget: the requested `PrivacyBudget`.
        notes: the `Notes` of what ran, beside those of the ledger's entries.

    Returns:
        A `Statement`.

    Raises:
        ValueError: if delta exceeds 1/n, or an event has no rule under the accountant.
    """
    _validate.one_of("accountant", accountant, (None, *ACCOUNTANTS))
    _validate.one_of("adjacency", adjacency, ADJACENCIES)
    known = [n for n in (num_examples, ledger.num_examples) if n is not None]
    num_examples = max(known, default=None)
    remark = check_delta(delta, num_examples) if known else ""
    notes = Notes(remarks=(remark,) if remark else ()) | (notes or Notes())
    unstated, trainings = [], []
    if ledger.mixes_units:
        units = "; ".join(named or unit for named in ledger.units)
        of_persons = set(ledger.units) == {PERSON, None}
        unstated.append(MIXED_UNITS if of_persons else DIFFERENT_UNITS.format(units))
    if ledger.repeats_draws:
        unstated.append(REPEATED_DRAW)
    for entry in ledger.entries:
        notes |= Notes.from_details(entry.details)
        unstated += [why for why in entry.details.get("unstated", ()) if why not in unstated]
        sampling = entry.details.get("sampling")
        if sampling is not None:
            notes |= doubts(Sampling.from_dict(sampling))
        if entry.details.get("kind") == "training":
            trainings.append(entry)
    adjacency = strongest([adjacency, ledger.adjacency])
    if len(ledger.parallel(adjacency)) > 1:
        notes |= Notes(remarks=(DISJOINT.format(count=len(ledger.periods)),))
    if accountant is None:
        accountant = best_accountant(ledger.event(), adjacency, delta)
    epsilon = ledger.epsilon(delta, accountant, adjacency)
    if math.isinf(epsilon) and not unstated:
        uncut = _without_cuts(ledger).epsilon(delta, accountant, adjacency)
        if math.isfinite(uncut):
            unstated.append(CUT_OFF.format(epsilon=round_up(uncut)))
    shuffled = [e for e in trainings if _saves_as_poisson(e)]
    return Statement(
        epsilon=epsilon,
        delta=delta,
        adjacency=adjacency,
        unit=ledger.unit or unit,
        accountant=accountant,
        num_examples=num_examples,
        steps=sum(e.details.get("steps", e.count) for e in trainings),
        entries=tuple(entry.to_dict() for entry in ledger.entries),
        sampling=_last_sampling(trainings),
        assumed_epsilon=_if_poisson(ledger, delta) if shuffled and not unstated else None,
        appearances=sum(e.count for e in shuffled) if shuffled else None,
        overflow_delta=_overflow_delta(ledger, epsilon),
        budget=budget,
        unstated=tuple(unstated),
        not_covered=notes.not_covered,
        assumptions=notes.assumptions,
        remarks=notes.remarks,
    )


def _saves_as_poisson(entry):
    """Whether an entry is of a training that a reader is told to compare with Poisson samples."""
    sampling = entry.details.get("sampling")
    training = entry.details.get("kind") == PrivateTraining.kind and sampling is not None
    return training and Sampling.from_dict(sampling).rule.saves_as_poisson


def _last_sampling(trainings):
    known = [e.details["sampling"] for e in trainings if e.details.get("sampling")]
    return Sampling.from_dict(known[-1]) if known else None


def _if_poisson(ledger, delta):
    """The epsilon that the same steps would have had on Poisson samples."""
    poisson = Ledger()
    for entry in ledger.entries:
        poisson.merge(Ledger([_entry_if_poisson(entry)]))
    return poisson.epsilon(delta)


def _entry_if_poisson(entry):
    """A ledger entry of private training as it would be on Poisson samples; for comparison."""
    if not _saves_as_poisson(entry):
        return entry
    details = entry.details
    sampling = Sampling.from_dict(details["sampling"])
    event = training_event(
        details["noise_multiplier"], sampling.sampling_probability, details["mechanism"]
    )
    return LedgerEntry(entry.label, event, details["steps"])


def _without_cuts(ledger):
    """The same mechanisms, as if every draw fitted into its batch."""
    uncut = {"overflow_probability": 0.0}
    return Ledger(
        dataclasses.replace(entry, details={**entry.details, **uncut}) for entry in ledger.entries
    )


def _overflow_delta(ledger, epsilon):
    if math.isinf(epsilon):
        return 0.0
    return math.fsum(
        truncation_delta(epsilon, entry.count, entry.overflow_probability)
        for entry in ledger.entries
    )
