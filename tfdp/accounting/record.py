"""What a set of weights has cost, kept with the weights however they are saved and restored."""

import json
import secrets
import weakref

from tfdp.accounting.ledger import Ledger
from tfdp.accounting.run_entries import entries_of_run, is_private_training


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
        """List of (settings, steps) of the runs of DPOptimizers that have steps."""
        return [(s, steps) for s, steps in self._all_runs() if is_private_training(s)]

    @property
    def other_runs(self):
        """The same of all other runs: steps that no DPOptimizer took."""
        return [(s, steps) for s, steps in self._all_runs() if not is_private_training(s)]

    def _all_runs(self):
        return [(r["settings"], r["steps"]) for r in self._synced()._runs.values() if r["steps"]]

    @property
    def steps(self):
        """Steps of DPOptimizers, of all runs."""
        return sum(steps for _, steps in self.runs)

    def attach(self, counter):
        """Makes `counter.flush()` be called before the record is read."""
        self._root()._counters.add(counter)

    def charge(self, entry):
        """Charges a release; one that is charged already (equal in everything) is not again."""
        releases = self._root()._releases
        if entry not in releases:
            releases.append(entry)

    def start(self, settings, name=None):
        """Begins a run; returns its name.

        Args:
            settings: JSON-able dict. For a DPOptimizer's steps: "noise_multiplier",
                "sampling_probability", "mechanism" (as for `training_event`, which is its
                default) and "sampling" (a `Sampling` as a dict, or None), and whatever else
                describes it; for others see `entries_of_run`.
            name: a random one, shared by the workers that run it; None makes one.
        """
        name = secrets.token_hex(8) if name is None else name
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
                ledger.merge(Ledger(entries_of_run(run["settings"], run["steps"], name)))
        for settings, steps in further:
            ledger.merge(Ledger(entries_of_run(settings, steps, "ahead")))
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
