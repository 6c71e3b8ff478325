"""The ledger: every mechanism that touched the data, in order."""

import dataclasses
import itertools
import json
import math
from collections.abc import Iterable

from tfdp import _validate
from tfdp.accounting import accountants
from tfdp.accounting.budget import check_delta
from tfdp.accounting.charges.described import described
from tfdp.accounting.charges.ledger_entry import LedgerEntry
from tfdp.accounting.charges.sampling import PERSON
from tfdp.accounting.events.adjacency import FEATURES as _FEATURES
from tfdp.accounting.events.adjacency import strongest
from tfdp.accounting.events.composition import compose
from tfdp.accounting.losses.truncation import truncation_delta


class Ledger:
    """An ordered record of mechanisms. Its epsilon is computed from the record alone.

    Entries that differ only in their count are merged.

    Args:
        entries: `LedgerEntry` objects to start with.

    Example:

    >>> ledger = Ledger()
    >>> ledger.add("frequencies", dp_accounting.LaplaceDpEvent(2.0), num_examples=1000)
    >>> ledger.add("counts", dp_accounting.GaussianDpEvent(4.0), count=3, table="clicks")
    >>> len(ledger)
    2
    """

    def __init__(self, entries: Iterable[LedgerEntry] = ()):
        self._entries, self._is_closed = [], False
        for entry in entries:
            self._append(entry)

    def closed(self):
        """Closes the ledger and returns it: `add` then fails, as for the ledger of a model."""
        self._is_closed = True
        return self

    def add(self, label, event, count=1, *, num_examples=None, **details):
        """Charges `count` runs of an event, for records, under add-or-remove-one adjacency.

        Args:
            label: its name in statements.
            event: `dp_accounting.DpEvent` of one run.
            count: how many runs.
            num_examples: n of the data that the mechanism used; δ must not exceed 1/n.
            details: plain values that describe the entry; accounting does not read them. For other
                adjacencies or units use a `LedgerEntry`, in `Ledger([entry])`.

        Raises:
            ValueError: for the ledger of a model, or a detail whose name accounting reads.
        """
        self._refuse_if_closed()
        self._append(LedgerEntry(label, event, count, described(details, num_examples)))

    def merge(self, other):
        """Charges everything in another ledger, too.

        Raises:
            ValueError: for the ledger of a model.
        """
        self._refuse_if_closed()
        for entry in tuple(other.entries):
            self._append(entry)

    def _refuse_if_closed(self):
        if self._is_closed:
            raise ValueError(
                "This ledger is a copy of a model's charges: an entry added here would appear in "
                "no statement. Charge the model, `model.charge(label, event)`, or make your own "
                "ledger, `Ledger(model.ledger.entries)`."
            )

    @property
    def entries(self):
        """The entries, oldest first, as a tuple."""
        return tuple(self._entries)

    def event(self):
        """Everything in the ledger as one `dp_accounting.DpEvent`, in its smallest form."""
        return compose((entry.event, entry.count) for entry in self._entries)

    def parallel(self, adjacency):
        """The mechanisms that can have used the same person, for each possible case.

        If the records of a person lie in one of several disjoint periods, only the mechanisms of
        that period and those without a period used them (parallel composition, McSherry 2009). What
        happened in the other periods has the same distribution with that person and without. Under
        replace-one, a person may be replaced by one of another period, which changes two periods,
        so nothing is left out.

        Args:
            adjacency: one of `tfdp.accounting.ADJACENCIES`.

        Returns:
            List of `Ledger`s, one for each case; ε is the largest of their epsilons.
        """
        periods = {}
        for entry in self._entries:
            if entry.period is not None:
                registry, name = entry.period
                periods.setdefault(registry, {})[name] = entry.period
        if not periods or adjacency == "replace_one":
            return [self]
        choices = itertools.product(*(of_one.values() for of_one in periods.values()))
        return [
            Ledger(e for e in self._entries if e.period is None or e.period in chosen)
            for chosen in choices
        ]

    def beside(self, period, adjacency):
        """The mechanisms that may have used a person of this period; for None, all mechanisms."""
        if period is None or adjacency == "replace_one":
            return self
        # Of other registries' periods a person may be in any.
        return Ledger(
            e for e in self._entries
            if e.period is None or e.period[0] != period[0] or e.period == period
        )  # fmt: skip

    @property
    def periods(self):
        """(registry, name) of the disjoint periods of its mechanisms, in order."""
        return tuple(dict.fromkeys(e.period for e in self._entries if e.period is not None))

    @property
    def adjacency(self):
        """The weakest adjacency under which everything in the ledger holds."""
        return strongest(e.adjacency for e in self._entries)

    @property
    def units(self):
        """What the entries protect, each once, in order; None stands for a record."""
        return tuple(dict.fromkeys(e.unit for e in self._entries))

    @property
    def unit(self):
        """A person, if any entry is about persons; a part of an input; None if it is a record."""
        named = [unit for unit in self.units if unit is not None]
        return PERSON if PERSON in named else next(iter(named), None)

    @property
    def mixes_units(self):
        """Whether entries protect different units (records, persons): no ε holds for all then."""
        return len(self.units) > 1

    @property
    def repeats_draws(self):
        """Whether a draw made ahead trained in several runs, which then have the same samples."""
        draws = [(e.details.get("sampling") or {}).get("draw") for e in self._entries]
        draws = [draw for draw in draws if draw is not None]
        return len(set(draws)) < len(draws)

    @property
    def num_examples(self):
        """n of the largest data set that a mechanism in the ledger used, or None if unknown."""
        known = (entry.num_examples for entry in self._entries)
        return max((n for n in known if n is not None), default=None)

    def epsilon(self, delta, accountant=None, adjacency=None):
        """The epsilon at which everything in the ledger is (epsilon, delta)-private.

        For disjoint periods it is the epsilon of the costliest one (`parallel`).

        Formal guarantees: with delta_M(.) the privacy curve of the composed events, and P_i the
        probability that a batch of entry i was cut off,
        delta_M(epsilon) + sum_i (1 + e^epsilon) count_i P_i <= delta (MATH.md section 7).

        Args:
            delta: a probability in (0, 1).
            accountant: "pld", "rdp", or None: PLD, or RDP where PLD has no rule.
            adjacency: as for `tfdp.accounting.epsilon`; None is that of the ledger.

        Returns:
            A float; 0 for an empty ledger, infinite if delta does not even cover truncation, or
            if the ledger mixes units or repeats a draw.

        Raises:
            ValueError: as for `tfdp.accounting.epsilon`; if an entry does not hold under the
                adjacency; or for a delta above 1/n of the largest data in the ledger.
        """
        delta = _validate.open_unit("delta", delta)
        if self.num_examples is not None:
            check_delta(delta, self.num_examples)
        adjacency = self.adjacency if adjacency is None else adjacency
        if strongest([adjacency, self.adjacency]) != adjacency and adjacency not in _FEATURES:
            raise ValueError(
                f'Argument `adjacency` must be "{self.adjacency}" or stronger: a mechanism in '
                "this ledger (forward noise) reveals the number of records. Received: "
                f"adjacency={adjacency!r}"
            )
        if self.mixes_units or self.repeats_draws:
            return math.inf
        if accountant is None:
            accountant = accountants.best_accountant(self.event(), adjacency, delta)
        seen = {}
        for ledger in self.parallel(adjacency):
            key = tuple((repr(e.event), e.count, e.overflow_probability) for e in ledger.entries)
            if key not in seen:
                seen[key] = ledger._epsilon_of_all(delta, accountant, adjacency)
        return max(seen.values(), default=0.0)

    def _epsilon_of_all(self, delta, accountant, adjacency):
        event = self.event()
        epsilon = accountants.epsilon(event, delta, accountant, adjacency)
        overflow = math.fsum(e.count * e.overflow_probability for e in self._entries)
        # Reserve delta for truncation until the reserve covers what it costs at the epsilon
        # that the rest of delta gives. Each reserve is a little too large, so that this ends.
        reserve = 0.0
        while math.isfinite(epsilon):
            needed = truncation_delta(epsilon, 1, overflow) if overflow < 1 else math.inf
            if needed <= reserve:
                return epsilon
            reserve = needed * 1.001
            if reserve >= delta:
                return math.inf
            epsilon = accountants.epsilon(event, delta - reserve, accountant, adjacency)
        return epsilon

    def to_json(self):
        """The ledger as JSON text; `from_json` restores it exactly."""
        return json.dumps({"version": 1, "entries": [e.to_dict() for e in self._entries]})

    @classmethod
    def from_json(cls, text):
        """The inverse of `to_json`.

        Raises:
            ValueError: if the text is no ledger of a known version.
        """
        encoded = json.loads(text)
        if not isinstance(encoded, dict) or encoded.get("version") != 1:
            raise ValueError(
                f"Argument `text` must be a ledger of version 1. Received: text={text[:80]!r}"
            )
        return cls(LedgerEntry.from_dict(entry) for entry in encoded["entries"])

    def _append(self, entry):
        for i, known in enumerate(self._entries):
            if dataclasses.replace(known, count=entry.count) == entry:
                total = known.count + entry.count
                self._entries[i] = dataclasses.replace(known, count=total)
                return
        self._entries.append(entry)

    def __len__(self):
        return len(self._entries)

    def __eq__(self, other):
        return isinstance(other, Ledger) and self._entries == other._entries

    __hash__ = None

    def __repr__(self):
        return f"Ledger({self._entries!r})"
