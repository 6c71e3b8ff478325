"""What a set of weights has cost, kept with the weights however they are saved and restored."""

import json
import secrets
import weakref

from tfdp.accounting.composition import training_event
from tfdp.accounting.ledger import Ledger, LedgerEntry
from tfdp.accounting.sampling import Sampling


class Record:
    """Releases and runs of training steps, from which a ledger follows.

    A run is a number of steps under the same settings, in one process, under a random name.
    Merging two records takes the larger count of each run, so that copies of one history cost
    once, and a history that was undone by loading older weights still costs. United records are
    one from then on, for everybody who holds either.
    """

    def __init__(self):
        self._parent = None
        self._releases = []
        self._runs = {}
        self._counters = weakref.WeakSet()

    @property
    def runs(self):
        """List of (settings, steps) of the runs that have steps."""
        return [(r["settings"], r["steps"]) for r in self._synced()._runs.values() if r["steps"]]

    @property
    def steps(self):
        """Training steps of all runs."""
        return sum(steps for _, steps in self.runs)

    def attach(self, counter):
        """Makes `counter.flush()` be called before the record is read."""
        self._root()._counters.add(counter)

    def charge(self, entry):
        """Charges a release; one that is charged already (equal in everything) is not again."""
        releases = self._root()._releases
        if entry not in releases:
            releases.append(entry)

    def start(self, settings):
        """Begins a run; returns its name.

        Args:
            settings: JSON-able dict with "noise_multiplier", "sampling_probability",
                "mechanism" (as for `training_event`, which is its default) and "sampling" (a
                `Sampling` as a dict, or None), and whatever else describes it.
        """
        name = secrets.token_hex(8)
        self._root()._runs[name] = {"settings": json.loads(json.dumps(settings)), "steps": 0}
        return name

    def count(self, name, steps):
        """Sets the steps of a run; a count never falls."""
        run = self._root()._runs[name]
        run["steps"] = max(run["steps"], int(steps))

    def unite(self, other):
        """Makes this record and another one record, with the charges of both."""
        root, other = self._root(), other._root()
        if other is not root:
            root._merge(other)
            root._counters |= other._counters
            other._parent = root

    def ledger(self, further=()):
        """The ledger of it all.

        Args:
            further: pairs of settings and steps to add, for looking ahead.
        """
        root = self._synced()
        ledger = Ledger(root._releases)
        for name, run in root._runs.items():
            if run["steps"]:
                ledger.merge(Ledger([_entry(run["settings"], run["steps"], name)]))
        for settings, steps in further:
            ledger.merge(Ledger([_entry(settings, steps, "ahead")]))
        return ledger

    def to_json(self):
        """The record as text, without runs that have no steps."""
        root = self._synced()
        return json.dumps(
            {
                "releases": Ledger(root._releases).to_json(),
                "runs": {name: run for name, run in root._runs.items() if run["steps"]},
            }
        )

    def merge_json(self, text):
        """Merges what `to_json` gave."""
        other = Record()
        state = json.loads(text)
        other._releases = list(Ledger.from_json(state["releases"]).entries)
        other._runs = state["runs"]
        self._root()._merge(other)

    def _root(self):
        return self if self._parent is None else self._parent._root()

    def _synced(self):
        root = self._root()
        for counter in list(root._counters):
            counter.flush()
        return root

    def _merge(self, other):
        for entry in other._releases:
            self.charge(entry)
        for name, run in other._runs.items():
            known = self._runs.setdefault(name, {"settings": run["settings"], "steps": 0})
            known["steps"] = max(known["steps"], run["steps"])


def _entry(settings, steps, name):
    details = {"kind": "training", **{k: v for k, v in settings.items() if v is not None}}
    details.pop("sampling_probability")
    mechanism = details.pop("mechanism", "gaussian")
    if settings["sampling"] is not None:
        sampling = Sampling.from_dict(settings["sampling"])
        details["overflow_probability"] = sampling.overflow_probability
        if not sampling.is_poisson:
            # Every pass shuffles anew: one that was cut short still counts as begun.
            details["pass"] = name
    return LedgerEntry(
        "private training",
        training_event(settings["noise_multiplier"], settings["sampling_probability"], mechanism),
        steps,
        details,
    )
