"""The privacy statement: what is guaranteed, for whom, and what is not."""

import dataclasses
import json
import math

import dp_accounting

from tfdp import _validate
from tfdp.accounting import statement_text
from tfdp.accounting.accountants import ACCOUNTANTS, best_accountant
from tfdp.accounting.adjacency import ADJACENCIES, strongest
from tfdp.accounting.budget import PrivacyBudget, check_delta
from tfdp.accounting.ledger import Ledger
from tfdp.accounting.sampling import Sampling
from tfdp.accounting.truncation import truncation_delta


@dataclasses.dataclass(frozen=True)
class Statement:
    """A privacy statement; `str()` is for people, `to_json()` for programs.

    Args:
        epsilon: the epsilon that is true of what ran; infinite if nothing is private, `None` if
            none can be stated (`unstated` says why).
        delta: the delta it goes with.
        adjacency: the adjacency under which it holds.
        unit: what one record is, e.g. "one user".
        accountant: "pld" or "rdp".
        num_examples: n.
        steps: training steps taken.
        entries: the ledger's entries as dicts.
        sampling: how batches were drawn, if known.
        assumed_epsilon: for shuffled batches, the epsilon that Poisson sampling would have had;
            not true of what ran.
        appearances: for shuffled batches, how often one record was used at most.
        overflow_delta: the part of delta spent on truncated batches.
        budget: the budget that was asked for, if any.
        unstated: reasons why no epsilon can be stated.
        uncovered: what the guarantee does not cover.
        asserted: what the user vouched for.
        remarks: anything else a reader must know.
    """

    epsilon: float | None
    delta: float
    adjacency: str
    unit: str
    accountant: str
    num_examples: int
    steps: int
    entries: tuple
    sampling: Sampling | None = None
    assumed_epsilon: float | None = None
    appearances: int | None = None
    overflow_delta: float = 0.0
    budget: PrivacyBudget | None = None
    unstated: tuple = ()
    uncovered: tuple = ()
    asserted: tuple = ()
    remarks: tuple = ()

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

    def __str__(self):
        return statement_text.render(self)


def privacy_statement(
    ledger,
    *,
    delta,
    accountant=None,
    adjacency="add_or_remove_one",
    unit="one example",
    num_examples,
    sampling,
    steps,
    epochs_of_unamplified=None,
    budget=None,
    uncovered=(),
    asserted=(),
    remarks=(),
):
    """States what a ledger guarantees, given how batches were really drawn.

    Formal guarantees: `.epsilon` is true of what ran. Poisson-sampled entries count as such only
    if the batches were Poisson samples at their probability. With shuffled batches a record is
    in at most one batch per epoch, so that one *unsampled* event per epoch is charged instead,
    under zero-out adjacency (replace-one if that was asked for); the epsilon that assumes Poisson
    sampling is kept apart, as `.assumed_epsilon`. An entry that has its own
    `details["sampling"]` is judged by that, the others by `sampling`.

    Args:
        ledger: a `Ledger`.
        delta: a probability, at most 1/num_examples.
        accountant: "pld", "rdp", or None: PLD, or RDP where PLD has no rule.
        adjacency: as for `tfdp.accounting.epsilon`.
        unit: the unit of privacy: what one record is.
        num_examples: n, the number of records.
        sampling: a `Sampling`, or `None` if unknown: no epsilon can be stated then, once steps
            were taken.
        steps: number of private training steps (of a DPOptimizer) taken; 0 without one.
        epochs_of_unamplified: the most often a record appears in shuffled batches, where that is
            not the number of epochs begun.
        budget: the `PrivacyBudget` that was asked for.
        uncovered: strings naming what the guarantee does not cover.
        asserted: strings naming what the user vouched for.
        remarks: further strings for the reader.

    Returns:
        A `Statement`.

    Raises:
        ValueError: if delta exceeds 1/n, or an event has no rule under the accountant.
    """
    _validate.one_of("accountant", accountant, (None, *ACCOUNTANTS))
    _validate.one_of("adjacency", adjacency, ADJACENCIES)
    remark = check_delta(delta, num_examples)
    reality = _Reality(sampling, epochs_of_unamplified)
    for entry in ledger.entries:
        reality.judge(entry)
    charged = sum(entry.count for entry in ledger.entries if entry.is_training)
    unstated = list(reality.unstated)
    if steps > charged:
        unstated.append(
            f"{steps} training steps were taken, but the ledger holds {charged}: the others were "
            "charged to nothing."
        )
    if steps > 0 and sampling is None and not reality.unstated:
        if not all("sampling" in e.details for e in ledger.entries if e.is_training):
            unstated.append(_UNKNOWN_SAMPLING)

    adjacency = strongest([adjacency, ledger.adjacency])
    adjacency_of_claim = strongest([adjacency, "zero_out" if reality.shuffled else None])
    if accountant is None:
        accountant = best_accountant(reality.true.event(), adjacency_of_claim)
    stated = assumed = None
    if not unstated:
        stated = reality.true.epsilon(delta, accountant, adjacency_of_claim)
        if reality.shuffled:
            assumed = ledger.epsilon(delta, adjacency=adjacency)
    return Statement(
        epsilon=stated,
        delta=delta,
        adjacency=adjacency_of_claim,
        unit=unit,
        accountant=accountant,
        num_examples=num_examples,
        steps=steps,
        entries=tuple(entry.to_dict() for entry in ledger.entries),
        sampling=sampling,
        assumed_epsilon=assumed,
        appearances=reality.appearances if reality.shuffled else None,
        overflow_delta=_overflow_delta(reality.true, stated),
        budget=budget,
        unstated=tuple(unstated),
        uncovered=(*uncovered, *reality.uncovered),
        asserted=(*asserted, *reality.asserted),
        remarks=(*([remark] if remark else []), *remarks, *reality.remarks),
    )


_UNKNOWN_SAMPLING = (
    "It is not known how the training batches were drawn. Draw them with tfdp.data, or assert how "
    "they were drawn."
)


class _Reality:
    """Rewrites a ledger, entry by entry, into one that is true of the batches that were drawn."""

    def __init__(self, sampling, epochs_of_unamplified):
        self.sampling = sampling
        self.epochs = epochs_of_unamplified
        self.true = Ledger()
        self.shuffled = False
        self.appearances = 0
        self.unstated, self.asserted, self.remarks, self.uncovered = [], [], [], []

    def judge(self, entry):
        for kind in ("unstated", "asserted", "remarks", "uncovered"):
            for text in entry.details.get(kind, ()):
                self._note(getattr(self, kind), text)
        sampling = self.sampling if entry.is_training else None
        if entry.details.get("sampling") is not None:
            sampling = Sampling.from_dict(entry.details["sampling"])
            self._note_doubts(sampling)
        if not entry.is_training:
            self.true.merge(Ledger([entry]))
            return
        if sampling is None:
            self._note(self.unstated, _UNKNOWN_SAMPLING)
            return
        self._note_doubts(sampling)
        if sampling.is_poisson:
            self._charge_poisson(entry, sampling)
        else:
            self._charge_shuffled(entry, sampling)

    def _note_doubts(self, sampling):
        if sampling.is_asserted:
            kind = sampling.kind.removeprefix("asserted_")
            self._note(self.asserted, f"batches were drawn as declared ({kind}); tfdp drew none")
        if sampling.seeded:
            self._note(
                self.remarks,
                "A fixed seed drew the batches: whoever knows it knows them, and the amplification "
                "by sampling does not hold against them. Seeds are for tests.",
            )

    def _charge_poisson(self, entry, sampling):
        charged = getattr(entry.event, "sampling_probability", 1.0)
        if charged < sampling.sampling_probability * (1 - 1e-9):
            self._note(
                self.unstated,
                f'"{entry.label}" was charged at sampling probability {charged:.6g}, but batches '
                f"were drawn at {sampling.sampling_probability:.6g}.",
            )
            return
        overflow = max(entry.overflow_probability, sampling.overflow_probability)
        details = {**entry.details, "overflow_probability": overflow}
        self.true.add(entry.label, entry.event, entry.count, **details)

    def _charge_shuffled(self, entry, sampling):
        self.shuffled = True
        event = entry.event
        if isinstance(event, dp_accounting.PoissonSampledDpEvent):
            event = event.event
        elif hasattr(event, "without_sampling"):
            event = event.without_sampling()
        elif getattr(event, "sampling_probability", 1.0) < 1:
            self._note(
                self.unstated,
                f'"{entry.label}" assumes Poisson sampling, which the pipeline did not do, and '
                "has no known cost without it.",
            )
            return
        appearances = self.epochs
        if appearances is None:
            appearances = sampling.appearances(entry.count)
        self.appearances += appearances
        self.true.add(entry.label, event, appearances)

    @staticmethod
    def _note(notes, text):
        if text not in notes:
            notes.append(text)


def _overflow_delta(ledger, epsilon):
    if epsilon is None or math.isinf(epsilon):
        return 0.0
    return math.fsum(
        truncation_delta(epsilon, entry.count, entry.overflow_probability)
        for entry in ledger.entries
    )
