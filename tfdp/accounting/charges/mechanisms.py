"""What the steps of one run do to the data, as one frozen value.

Calibration, charge, meter, budget and statement all read it, and nothing else: what a step costs
is written here and nowhere else.
"""

import dataclasses
import json

import dp_accounting

from tfdp.accounting.banded_noise import BandedCorrelation
from tfdp.accounting.charges.ledger_entry import LedgerEntry
from tfdp.accounting.charges.notes import Notes
from tfdp.accounting.charges.sampled_events import sampled_event
from tfdp.accounting.charges.sampling import PERSON, Sampling
from tfdp.accounting.correlated_noise import Correlation
from tfdp.accounting.events.visible_sampling import VisiblySampledGaussianDpEvent

UNKNOWN_BATCHES = (
    "tfdp does not know how the batches of some training steps were drawn. Train with `fit` on "
    "data from tfdp.data, take batches from `model.training_batches(...)`, or declare the "
    "sampling with `tfdp.data.declare_sampling`."
)
UNPROTECTED = (
    "The variables listed below were trained on raw data that did not pass through forward "
    "noise. No epsilon holds for the whole model."
)
ENCODER_ASSUMED = (
    "the layers below the forward noise learned nothing from these examples before, except "
    "through the mechanisms listed here"
)
_DEFAULT = "add_or_remove_one"  # of entries that state no adjacency
LABELS_NOT_COVERED = (
    "the labels and sample weights of the training examples: forward noise protects features only"
)


class _Mechanism:
    """Base of the mechanisms: equal values, equal charges; stored as JSON."""

    kind = None
    notes = Notes()

    def entries(self, steps, run):
        """The ledger entries of `steps` steps (at least 1) of the run named `run`."""
        raise NotImplementedError

    def unpaid(self, steps, paid):
        """Steps that still cost if a release paid for the first `paid`; never too few.

        Steps that depend on one another, as those of one pass over shuffled records, cost anew as
        soon as there are more of them.
        """
        return steps if steps > paid else 0

    def in_words(self):
        """The kind, the batches and the adjacency, for messages."""
        sampling, adjacency = getattr(self, "sampling", None), getattr(self, "adjacency", None)
        batches = "" if sampling is None else f" on {sampling.kind} batches"
        return f"{self.kind}{batches}{'' if adjacency is None else f' ({adjacency})'}"

    def to_dict(self):
        """The fields as a JSON-able dict, with the kind."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        for name, value in fields.items():
            if dataclasses.is_dataclass(value):
                fields[name] = dataclasses.asdict(value)
        return json.loads(json.dumps({"kind": self.kind, **fields}))

    @classmethod
    def _from_fields(cls, fields):
        fields = dict(fields)
        if fields.get("sampling") is not None:
            fields["sampling"] = Sampling.from_dict(fields["sampling"])
        if fields.get("correlation") is not None:
            fields["correlation"] = correlation_from_dict(fields["correlation"])
        fields["notes"] = Notes(**{k: tuple(v) for k, v in fields.get("notes", {}).items()})
        return cls(**{k: _frozen(v) for k, v in fields.items()})


def correlation_from_dict(fields):
    """The `Correlation` or `BandedCorrelation` of which these are the fields."""
    return (BandedCorrelation if "strategy" in fields else Correlation)(**fields)


def _frozen(value):
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


@dataclasses.dataclass(frozen=True)
class PrivateTraining(_Mechanism):
    """Steps of a `DPOptimizer`: a clipped sum with noise, handed to any Keras optimizer.

    Formal guarantees: a step is the Gaussian mechanism of `noise_multiplier` on a sum in which
    one record has norm at most `clip_norm` (MATH.md section 1), or has the Rényi curve of it
    ("concentrated"). Its cost follows from how the batches were drawn:

    - Poisson: each step is amplified by sampling; batches that were cut off cost δ.
    - Poisson, of single records of which a person has at most k: each step is a mixture of
      Gaussians, with the sensitivity of as many records of the person as were drawn.
    - allocated: each epoch that was begun is amplified as a whole, also where it ended early.
    - the full batch: each step is one Gaussian.
    - shuffled: one Gaussian for each time a record was used, without amplification, under
      zero-out adjacency, since who is in a batch may be seen.
    - a stream, with noise that is correlated over steps: one Gaussian for the whole chain, from
      its first step on, under zero-out adjacency (MATH.md section 13).
    - cyclic Poisson samples: each round of b steps that was begun is one Gaussian, amplified by the
      sampling of a part, with noise of a matrix of b bands or without.
    - unknown: nothing can be said, and ε is infinite.

    Args:
        noise_multiplier: σ, the noise's standard deviation over `clip_norm`; of a chain, over
            `clip_norm` times the chain's sensitivity.
        clip_norm: C.
        sampling: how the batches were drawn; `None` if nobody knows.
        num_examples: n.
        unit: what one record is.
        mechanism: "gaussian" or "concentrated", as for `training_event`.
        clipping: how clip factors follow from norms.
        selection: description of the selection of rows, or None.
        correlation: the `Correlation` or `BandedCorrelation` of a chain; None for independent
            noise.
        budget: (ε, δ, steps) that the run was begun for, or None.
        notes: the `Notes` of the run.
    """

    noise_multiplier: float
    clip_norm: float
    sampling: Sampling | None
    num_examples: int
    unit: str = "one example"
    mechanism: str = "gaussian"
    clipping: str = "flat"
    selection: dict | None = None
    correlation: Correlation | BandedCorrelation | None = None
    budget: tuple | None = None
    notes: Notes = Notes()

    kind = "training"

    def __post_init__(self):
        drawn = self.sampling
        if drawn is not None and (drawn.max_records_per_unit is None) == (self.unit == PERSON):
            raise ValueError(
                "Arguments `unit` and `sampling` contradict each other: persons must be the unit "
                f"if, and only if, batches are sampled by person. Received: unit={self.unit!r}, "
                f"max_records_per_unit={drawn.max_records_per_unit}"
            )
        if self.correlation is not None:
            self.correlation.check(drawn, self.mechanism)
        self.event()  # refuses what cannot be accounted for, before there is a step

    @property
    def draws_per_unit(self):
        """The most draws of a step that are about one and the same unit of privacy."""
        return 1 if self.sampling is None else self.sampling.draws_per_unit

    @property
    def adjacency(self):
        """The adjacency under which the cost holds."""
        return _DEFAULT if self.sampling is None else self.sampling.rule.adjacency

    @property
    def charged_by(self):
        """By "step" or by "pass"; None if nobody knows how the batches were drawn."""
        return None if self.sampling is None else self.sampling.rule.charged_by

    def unpaid(self, steps, paid):
        by_step = self.charged_by == "step"
        return max(steps - paid, 0) if by_step else super().unpaid(steps, paid)

    def event(self, noise_multiplier=None):
        """What `count` counts: a step, a round, or an epoch; for calibration at another σ."""
        sigma = self.noise_multiplier if noise_multiplier is None else noise_multiplier
        return sampled_event(sigma, self.sampling, self.mechanism)

    def count(self, steps):
        """How many such events `steps` steps are."""
        if self.sampling is None or getattr(self.correlation, "is_one_event", False):
            return 1  # a chain, however far it went
        return self.sampling.appearances(steps)

    def same_setting(self, other):
        """Whether another run differs in its noise, batches and notes at most."""
        varying = ("noise_multiplier", "sampling", "correlation", "notes")
        alike = {n: getattr(self, n) for n in varying}
        return dataclasses.replace(other, **alike) == self

    def entries(self, steps, run):
        details = {
            "kind": self.kind,
            "clip_norm": self.clip_norm,
            "noise_multiplier": self.noise_multiplier,
            "num_examples": self.num_examples,
            "mechanism": self.mechanism,
            "unit": self.unit,
            "clipping": self.clipping,
        }
        if self.selection is not None:
            details["selection"] = self.selection
        if self.correlation is not None:
            details["correlation"] = dataclasses.asdict(self.correlation)
        if self.sampling is None:
            details |= {"steps": steps, "run": run, "unstated": [UNKNOWN_BATCHES]}
        else:
            details["sampling"] = self.sampling.to_dict()
            details["overflow_probability"] = self.sampling.overflow_probability
            # Every pass is drawn anew: one that was cut short still counts as begun. And two runs
            # on one draw must not look like one run of twice as many steps.
            if self.charged_by != "step" or self.sampling.draw is not None:
                details |= {"steps": steps, "run": run}
            if self.adjacency != _DEFAULT:
                details["adjacency"] = self.adjacency
        return [LedgerEntry("private training", self.event(), self.count(steps), details)]


@dataclasses.dataclass(frozen=True)
class ForwardNoise(_Mechanism):
    """Steps that release noisy copies of the records of their batches (MATH.md section 5).

    Args:
        noise_multiplier: σ/C of one copy, of all layers together; 0 if a layer has none.
        adjacency: the adjacency under which the cost holds.
        sampling: how the batches were drawn; `None` if nobody knows.
        num_examples: n, or None if nobody knows.
        layers: descriptions of the layers.
        unprotected: paths of variables that raw data reach.
        bypasses: what else raw data reach.
        notes: the `Notes` of the run.
    """

    noise_multiplier: float
    adjacency: str
    sampling: Sampling | None
    num_examples: int | None = None
    unit: str = "one example"
    layers: tuple = ()
    unprotected: tuple = ()
    bypasses: tuple = ()
    notes: Notes = Notes()

    kind = "forward noise"

    def __post_init__(self):
        if self.sampling is not None and self.sampling.draw is not None:
            raise ValueError(
                "Batches that were drawn ahead (`tfdp.data.load_batches`) can be accounted for "
                "only with a DPOptimizer. For forward noise use `tfdp.data.shuffled_epochs` or "
                f"`tfdp.data.poisson_batches`. Received: draw={self.sampling.draw!r}"
            )

    def entries(self, steps, run):
        unstated = [UNKNOWN_BATCHES] if self.sampling is None else []
        if self.unprotected:
            unstated.append(UNPROTECTED)
        details = {
            "kind": self.kind,
            "noise_multiplier": self.noise_multiplier,
            "adjacency": self.adjacency,
            "unit": self.unit,
            "layers": self.layers,
            "unprotected": self.unprotected,
            "not_covered": [
                LABELS_NOT_COVERED,
                *(
                    f"variable {path}: trained on raw data, without protection"
                    for path in self.unprotected
                ),
                *self.bypasses,
            ],
            "assumptions": [ENCODER_ASSUMED],
        }
        if self.num_examples is not None:
            details["num_examples"] = self.num_examples
        if self.sampling is not None:
            details["sampling"] = self.sampling.to_dict()
            details["overflow_probability"] = self.sampling.overflow_probability
        if unstated:
            details |= {"unstated": unstated, "steps": steps, "run": run}
        if unstated or self.noise_multiplier == 0:
            event, count = dp_accounting.NonPrivateDpEvent(), 1
        else:
            event, count = self._copies(steps)
        return [LedgerEntry(self.kind, event, count, details)]

    def _copies(self, steps):
        """Noisy copies of a record: one in each pass begun, or one in each visible draw."""
        q = self.sampling.draw_probability
        if self.sampling.rule.event == "poisson" and q < 1:
            event = VisiblySampledGaussianDpEvent(q, self.noise_multiplier)
        else:
            event = dp_accounting.GaussianDpEvent(self.noise_multiplier)
        # Nobody checks of these steps that they take the parts of the records in turn.
        in_turn = self.sampling.bands is None
        return event, self.sampling.appearances(steps) if in_turn else steps


@dataclasses.dataclass(frozen=True)
class ReleasedData(_Mechanism):
    """Steps on data of a release, which was charged when it was made."""

    notes: Notes = Notes()

    kind = "released data"

    def entries(self, steps, run):
        return []


@dataclasses.dataclass(frozen=True)
class NoPrivacy(_Mechanism):
    """Steps that nothing protects."""

    notes: Notes = Notes()

    kind = "no privacy"

    def entries(self, steps, run):
        return [not_private()]


def not_private():
    """The charge for training with a plain optimizer."""
    return LedgerEntry("training without privacy", dp_accounting.NonPrivateDpEvent())


_KINDS = {c.kind: c for c in (PrivateTraining, ForwardNoise, ReleasedData, NoPrivacy)}


def mechanism_from_dict(fields):
    """The inverse of `to_dict` of a mechanism.

    Raises:
        ValueError: for a kind that this version does not know.
    """
    fields = dict(fields)
    kind = fields.pop("kind", None)
    if kind not in _KINDS:
        raise ValueError(
            "The history holds steps of a kind that this version of tfdp cannot account for. Use "
            f"the version that trained the weights, or a later one. Received: kind={kind!r}"
        )
    return _KINDS[kind]._from_fields(fields)
