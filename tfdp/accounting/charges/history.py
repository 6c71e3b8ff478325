"""What a set of weights has cost, kept with the weights however they are saved and restored."""

import contextlib
import json
import secrets
import threading

from tfdp import _validate
from tfdp.accounting.accountants import has_rule
from tfdp.accounting.charges.ledger import Ledger
from tfdp.accounting.charges.mechanisms import Notes, PrivateTraining, mechanism_from_dict
from tfdp.errors import PrivacyError

_DAMAGED = (
    AttributeError, IndexError, KeyError, OverflowError, TypeError, json.JSONDecodeError,
)  # fmt: skip
_begun = []  # of all threads: a run that begins in another one is begun, too


@contextlib.contextmanager
def runs_begun():
    """Gives a dict of all runs of this process that begin inside of it: name to history."""
    runs = {}
    _begun.append(runs)
    try:
        yield runs
    finally:
        _begun[:] = [one for one in _begun if one is not runs]


class ChargeHistory:
    """Releases and runs of training steps, from which a ledger follows.

    A run is a number of steps of one mechanism, in one process, under a random name. Merging two
    histories takes the larger count of each run, so that copies of one history cost once, and a
    history that was undone by loading older weights still costs. Histories that were joined are
    one from then on, for everybody who holds either.

    A release can pay for runs: its detail "covers" names them, with the number of their steps that
    it accounts for (a tuning, of which only the best run is kept). Steps beyond that cost.
    """

    def __init__(self):
        self._parent = None
        self._releases = []
        self._runs = {}
        self._counters = []
        self._trained_by = []

    @property
    def runs(self):
        """List of (mechanism, steps) of the runs that have steps, oldest first."""
        return [(m, steps) for m, steps in self._synced()._runs.values() if steps]

    @property
    def private_runs(self):
        """The same of the runs of DPOptimizers."""
        return [(m, steps) for m, steps in self.runs if isinstance(m, PrivateTraining)]

    @property
    def notes(self):
        """The `Notes` of all runs that have steps."""
        notes = Notes()
        for mechanism, _ in self.runs:
            notes |= mechanism.notes
        return notes

    def attach(self, counter):
        """Has `counter.flush()` called before the history is read, as long as the history lives.

        `counter.run` is the name of the run that it counts, or None. The counter is held: steps
        that were taken cost, whoever took them and whatever became of it.
        """
        counters = self._root()._counters
        if counter not in counters:
            counters.append(counter)

    def begin_training(self):
        """From here on, this thread takes steps; returns what `end_training` takes."""
        thread = threading.get_ident()
        self._root()._trained_by.append(thread)
        return thread

    def end_training(self, thread):
        """The steps of `begin_training` have ended."""
        self._root()._trained_by.remove(thread)

    def refuse_other_thread(self):
        """Refuses to write a file of weights that another thread trains.

        Raises:
            PrivacyError: if one does: by the time at which the weights are read, it may have taken
                more steps than the file counts.
        """
        if set(self._root()._trained_by) - {threading.get_ident()}:
            raise PrivacyError(
                "Another thread is training these weights. A file that is written meanwhile could "
                "hold the weights of later steps than it counts, and would state too small an ε. "
                "Save in a callback of `fit`, or after a step in the thread of your loop, or when "
                "the training has ended."
            )

    def charge(self, entry):
        """Charges a release; one that is charged already (equal in everything) is not again."""
        releases = self._root()._releases
        if entry not in releases:
            releases.append(entry)

    def refuse_without_rule(self, mechanism):
        """Refuses a run that could be accounted for only without what was charged before.

        Raises:
            PrivacyError: if no accountant has a rule for both, under the adjacency that they share.
        """
        ledger = self.ledger(ahead=(None, mechanism, 1))
        if not has_rule(ledger.event(), ledger.adjacency):
            before = [run.in_words() for run, _ in self.runs] + [e.label for e in self.releases]
            raise PrivacyError(
                "No accountant has a rule for these steps together with the earlier charges of "
                f'these weights, under their common adjacency, "{ledger.adjacency}", so no ε could '
                "be stated. Draw the batches of both in the same way (with "
                "`tfdp.data.poisson_batches`), or train a new model. Received: "
                f"{mechanism.in_words()} after {', '.join(before) or 'nothing'}"
            )

    def start(self, mechanism, name=None):
        """Begins a run; returns its name.

        Args:
            mechanism: one of `tfdp.accounting.charges.mechanisms`.
            name: a random one, shared by the workers that run it; None makes one.
        """
        name = secrets.token_hex(8) if name is None else name
        self._root()._runs[name] = (mechanism, 0)
        for runs in list(_begun):
            runs[name] = self
        return name

    def replace(self, name, mechanism):
        """Gives a run another mechanism, which costs the same and has other notes."""
        runs = self._root()._runs
        runs[name] = (mechanism, runs[name][1])

    def count(self, name, steps):
        """Sets the steps of a run; a count never falls."""
        runs = self._root()._runs
        mechanism, known = runs[name]
        runs[name] = (mechanism, max(known, int(steps)))

    def join(self, other):
        """Makes this history and another one history, with the charges of both."""
        root, other = self._root(), other._root()
        if other is not root:
            root._merge(other)
            for counter in other._counters:
                root.attach(counter)
            root._trained_by += other._trained_by
            other._parent = root

    def lacks(self, other):
        """Whether another history holds charges that are not in this one."""
        own, other = self._synced(), other._synced()
        known = {name: steps for name, (_, steps) in own._runs.items()}
        return own is not other and (
            any(entry not in own._releases for entry in other._releases)
            or any(steps > known.get(name, 0) for name, (_, steps) in other._runs.items())
        )

    def charges_beside(self, name):
        """A number that grows with every charge but those of the run of that name."""
        # Its own counter is left alone: this is asked before every step, and reading takes 0.1 ms.
        root = self._synced(but=name)
        steps = sum(steps for run, (_, steps) in root._runs.items() if run != name)
        return len(root._releases) + steps

    @property
    def releases(self):
        """The entries of the releases, oldest first."""
        return tuple(self._synced()._releases)

    def steps_beside(self, names):
        """Dict of the steps of all other runs that have some."""
        runs = self._synced()._runs
        return {name: steps for name, (_, steps) in runs.items() if steps and name not in names}

    def steps_of(self, names):
        """Dict of the steps of those runs that are in this history and have some."""
        runs = self._synced()._runs
        return {name: runs[name][1] for name in sorted(names) if runs.get(name, (None, 0))[1]}

    def ledger_of(self, name):
        """The ledger of one run by itself, whatever pays for it."""
        mechanism, steps = self._synced()._runs[name]
        return Ledger(mechanism.entries(steps, name))

    def ledger(self, ahead=None):
        """The ledger of it all.

        Args:
            ahead: for looking ahead, (name of a run, mechanism, steps): as if that run, begun or
                not, had so many steps more.
        """
        root = self._synced()
        runs = dict(root._runs)
        if ahead is not None:
            name, mechanism, steps = ahead
            runs[name] = (mechanism, runs.get(name, (mechanism, 0))[1] + steps)
        ledger, paid = Ledger(root._releases), {}
        for entry in root._releases:
            for name, steps in entry.details.get("covers", {}).items():
                paid[name] = max(paid.get(name, 0), steps)
        for name, (mechanism, steps) in runs.items():
            steps = mechanism.unpaid(steps, paid.get(name, 0))
            if steps:
                ledger.merge(Ledger(mechanism.entries(steps, name)))
        return ledger

    def to_json(self):
        """The history as text, without runs that have no steps.

        Raises:
            PrivacyError: as `refuse_other_thread`.
        """
        self.refuse_other_thread()
        root = self._synced()
        runs = {
            name: {"mechanism": mechanism.to_dict(), "steps": steps}
            for name, (mechanism, steps) in root._runs.items()
            if steps
        }
        return json.dumps({"releases": Ledger(root._releases).to_json(), "runs": runs})

    def merge_json(self, text):
        """Merges what `to_json` gave.

        Raises:
            ValueError: if the text is damaged, or of a later version.
        """
        other = ChargeHistory()
        try:
            state = json.loads(text)
            other._releases = list(Ledger.from_json(state["releases"]).entries)
            other._runs = {
                name: (
                    mechanism_from_dict(run["mechanism"]),
                    _validate.count("steps", run["steps"]),
                )
                for name, run in state["runs"].items()
            }
        except _DAMAGED as error:
            raise ValueError(
                "The charges of these weights cannot be read, so no ε could be stated for them: "
                "their file was damaged, or changed by hand. Load another copy of it. Received: "
                f"{type(error).__name__}: {error}"
            ) from error
        self._root()._merge(other)

    def _root(self):
        return self if self._parent is None else self._parent._root()

    def _synced(self, but=None):
        root = self._root()
        for counter in list(root._counters):
            if but is None or counter.run != but:
                counter.flush()
        return root

    def _merge(self, other):
        for entry in other._releases:
            self.charge(entry)
        for name, (mechanism, steps) in other._runs.items():
            _, known = self._runs.get(name, (None, 0))
            self._runs[name] = (mechanism, max(known, steps))
