"""How batches were drawn: a description that travels with the data."""

import dataclasses
import math

from tfdp import _validate
from tfdp.accounting.charges.sampling_rules import RULES
from tfdp.accounting.losses import truncation

_COUNTS = ("num_examples", "microbatches", "workers")
_COUNTS_OR_NONE = (
    "max_batch_size", "steps_per_epoch", "passes", "max_records_per_unit", "num_records",
    "max_participations", "min_separation", "bands",
)  # fmt: skip
#: The unit of privacy where batches are drawn by whose records they are.
PERSON = "one person with all of its records"


@dataclasses.dataclass(frozen=True)
class Sampling:
    """How batches were drawn. All fields are public information.

    With `max_records_per_unit`, persons are sampled, each with at most that many records. n, B and
    the capacity then count persons, and a batch has that many rows for each person. With
    `num_records` as well, single records are sampled, and no person has more than k of them. B and
    the capacity then count records; n still counts persons, the unit of privacy.

    Args:
        kind: "poisson" (each record joins each batch independently with probability q), "shuffled"
            (each record appears at most once per epoch), "allocated" (each record in one of n/B
            batches of an epoch, independently and uniformly), "full_batch" (every record in every
            batch), "microbatches" (M independent Poisson samples make one batch, in which a record
            may appear several times), "stream" (each record once a pass, in an order that stays),
            "cyclic_poisson" (each record in one of b parts, which are sampled in turn, each record
            of a part independently with probability b·q), or "declared_poisson" /
            "declared_shuffled", if the user declares it and tfdp did not draw the batches itself.
        num_examples: n, the number of records.
        expected_batch_size: q n; a float is allowed.
        max_batch_size: capacity at which a Poisson or allocated batch is cut off, or `None` if it
            never is.
        seeded: whether a fixed seed chose the batches; for tests only.
        steps_per_epoch: batches in one pass over the data, or `None` if that is not known.
        passes: the largest number of passes over shuffled or allocated data that a run begins, if
            the number of batches of a pass is unknown; of a stream and of cyclic Poisson samples,
            the largest number that a run may begin.
        microbatches: M, for kind "microbatches".
        workers: number of workers that draw a Poisson batch together, each from its own share of
            the records and with its own share of the capacity.
        max_records_per_unit: k, for persons; None if each record is a unit of privacy.
        num_records: N, if single records are sampled and persons are the unit of privacy: a public
            upper bound on the number of records that can be sampled. q is B/N.
        max_participations: for a stream of persons, the largest number of steps of the pass that
            one person takes part in, with one record in each; None for one.
        min_separation: g, with `max_participations`: the smallest number of steps from one such
            step of a person to the next.
        bands: b, for cyclic Poisson samples: the number of parts, and the steps of a round.
        period: (name of a registry, name of a period in it), if no person has records in another of
            its periods; None for data that may overlap with any other data.
        draw: name of a draw that was made ahead and trains once; None if every pass draws again.

    Raises:
        ValueError: if a field is out of range or the fields contradict each other.
    """

    kind: str
    num_examples: int
    expected_batch_size: float
    max_batch_size: int | None = None
    seeded: bool = False
    steps_per_epoch: int | None = None
    microbatches: int = 1
    workers: int = 1
    passes: int | None = None
    max_records_per_unit: int | None = None
    period: tuple | None = None
    draw: str | None = None
    num_records: int | None = None
    max_participations: int | None = None
    min_separation: int | None = None
    bands: int | None = None

    def __post_init__(self):
        _validate.one_of("kind", self.kind, tuple(RULES))
        for name in (*_COUNTS, *_COUNTS_OR_NONE):
            if name in _COUNTS or getattr(self, name) is not None:
                object.__setattr__(self, name, _validate.count(name, getattr(self, name)))
        _validate.positive("expected_batch_size", self.expected_batch_size)
        object.__setattr__(self, "expected_batch_size", _validate.plain(self.expected_batch_size))
        if self.kind != "microbatches" and self.microbatches != 1:
            raise ValueError(
                'Argument `microbatches` needs kind="microbatches". Received: '
                f"microbatches={self.microbatches}, kind={self.kind!r}"
            )
        if self.period is not None:
            object.__setattr__(self, "period", checked_period(self.period))
            if self.max_records_per_unit is None:
                raise ValueError(
                    "Argument `period` needs batches of persons (`max_records_per_unit`): tfdp "
                    "can check that periods are disjoint only if records have ids of persons. "
                    "Received: max_records_per_unit=None"
                )
        if self.num_records is not None:
            self._check_records()
        elif self.expected_batch_size > self.num_examples:
            raise ValueError(
                "Argument `expected_batch_size` must be at most `num_examples`. Received: "
                f"expected_batch_size={self.expected_batch_size}, num_examples={self.num_examples}"
            )
        if (self.max_participations, self.min_separation) != (None, None):
            self._check_participations()
        if self.rule.event == "allocation":
            self._check_allocation()
        if (self.bands is None) == (self.rule.event == "cyclic") or self._is_beyond_parts():
            raise ValueError(
                'Argument `bands` belongs to kind="cyclic_poisson", and is the number of parts of '
                "the records. Each step samples one part, and draws each of its records with "
                "probability bands·expected_batch_size/num_examples, so that `bands` must be at "
                "most num_examples/expected_batch_size. Received: "
                f"bands={self.bands}, kind={self.kind!r}, expected_batch_size="
                f"{self.expected_batch_size}, num_examples={self.num_examples}"
            )
        if self.kind == "full_batch" and self.expected_batch_size != self.num_examples:
            raise ValueError(
                'Argument `expected_batch_size` must equal `num_examples` for kind="full_batch". '
                f"Received: expected_batch_size={self.expected_batch_size}, "
                f"num_examples={self.num_examples}"
            )

    def _is_beyond_parts(self):
        return self.bands is not None and self.bands * self.expected_batch_size > self.num_examples

    def _check_records(self):
        drawn = (self.kind, self.workers, self.draw)
        if drawn != ("poisson", 1, None) or self.max_records_per_unit is None:
            raise ValueError(
                "Argument `num_records` needs Poisson samples of single records, drawn by one "
                "worker, with `max_records_per_unit` as the bound for each person. Nothing else "
                f"can be accounted for. Received: kind={self.kind!r}, workers={self.workers}, "
                f"draw={self.draw!r}, max_records_per_unit={self.max_records_per_unit}"
            )
        most = self.num_examples * self.max_records_per_unit
        if not self.expected_batch_size <= self.num_records <= most:
            raise ValueError(
                "Argument `num_records` must be at least `expected_batch_size` and at most "
                f"num_examples · max_records_per_unit. Received: num_records={self.num_records}, "
                f"expected_batch_size={self.expected_batch_size}, "
                f"num_examples={self.num_examples}, "
                f"max_records_per_unit={self.max_records_per_unit}"
            )

    def _check_participations(self):
        both = None not in (self.max_participations, self.min_separation)
        one = self.max_records_per_unit == 1 and (self.passes or 1) == 1
        if not (self.rule.keeps_order and self.bands is None and both and one):
            raise ValueError(
                "Arguments `max_participations` and `min_separation` must be given together, for "
                "one pass over a stream with one record of each person in a step. Received: "
                f"max_participations={self.max_participations}, min_separation="
                f"{self.min_separation}, kind={self.kind!r}, passes={self.passes}, "
                f"max_records_per_unit={self.max_records_per_unit}"
            )

    def _check_allocation(self):
        steps = self.num_examples / self.expected_batch_size
        if abs(steps - round(steps)) > 1e-9 * steps:
            raise ValueError(
                "Argument `expected_batch_size` must be `num_examples` divided by the number of "
                'steps of an epoch for kind="allocated", because records are allocated to a '
                "whole number of steps. Received: "
                f"expected_batch_size={self.expected_batch_size}, num_examples={self.num_examples}"
            )
        if self.steps_per_epoch is not None and self.steps_per_epoch > round(steps):
            raise ValueError(
                "Argument `steps_per_epoch` must be at most num_examples / expected_batch_size = "
                f'{round(steps)} for kind="allocated": an epoch has no more steps. '
                f"Received: steps_per_epoch={self.steps_per_epoch}"
            )

    @property
    def rule(self):
        """The `SamplingRule` of the kind."""
        return RULES[self.kind]

    @property
    def sampling_probability(self):
        """q, the expected share of what may be drawn in one batch."""
        drawn_from = self.num_examples if self.num_records is None else self.num_records
        return self.expected_batch_size / drawn_from

    @property
    def draw_probability(self):
        """The probability of a record in one draw: q, or q/M in one of M micro-batches."""
        return self.sampling_probability / self.microbatches

    @property
    def part_probability(self):
        """b·q, the probability of a record of the part that a step samples."""
        # In this order: b·q of a part that is drawn whole is 1 and not more.
        return self.bands * self.expected_batch_size / self.num_examples

    @property
    def chain_steps(self):
        """The steps of all passes, whose order stays; None if the number is unknown."""
        if not self.rule.keeps_order or self.steps_per_epoch is None:
            return None
        return self.steps_per_epoch * (self.passes or 1)

    @property
    def participations(self):
        """(k, g): the most steps of a run that a unit may be in, g or more apart."""
        if self.bands is not None:
            steps = self.chain_steps
            return math.inf if steps is None else self.appearances(steps), self.bands
        if self.max_participations is not None:
            return self.max_participations, self.min_separation
        passes = self.passes or 1
        return passes, 1 if passes == 1 else self.steps_per_epoch

    @property
    def allocation_steps(self):
        """T, the steps to which records are allocated; `steps_per_epoch` may be less (`take`)."""
        return round(self.num_examples / self.expected_batch_size)

    @property
    def rows_per_unit(self):
        """The number of consecutive rows of one person; None if rows are sampled."""
        return None if self.num_records is not None else self.max_records_per_unit

    @property
    def draws_per_unit(self):
        """The largest number of draws of one step that can be about the same unit of privacy."""
        return 1 if self.num_records is None else self.max_records_per_unit

    @property
    def rows(self):
        """Rows of every batch, padding included; None if that is not fixed."""
        if self.max_batch_size is None:
            return None
        return self.max_batch_size * (self.rows_per_unit or 1)

    @property
    def overflow_probability(self):
        """P[a draw exceeds `max_batch_size`]; 0 if sizes do not vary, and without a maximum.

        It is a bound for both neighbours; the larger one has one more unit of privacy. For several
        workers it is the sum over their shares, an upper bound. For batches that are charged by
        passes or rounds it is the probability for one: the sum over its steps, whose sizes are
        binomial and not independent.
        """
        if not self.rule.sizes_vary or self.max_batch_size is None:
            return 0.0
        steps = {"allocation": self.allocation_steps, "cyclic": self.bands}
        parts = steps.get(self.rule.event, self.workers)
        of_one = truncation.overflow_probability(
            -(-self.most_drawn_from // self.workers) * self.microbatches,
            self.draw_probability,
            self.max_batch_size // self.workers,
        )
        return min(1.0, parts * of_one)

    @property
    def most_drawn_from(self):
        """How many records or persons can be sampled, in the larger of two neighbours."""
        if self.num_records is not None:
            return self.num_records + self.max_records_per_unit
        return self.num_examples + 1

    def appearances(self, steps):
        """The largest number of times that one record can be used in `steps` steps of one run.

        For batches that are charged by passes, this is once in each pass that was begun, or
        `max_participations` times. If the number of batches of a pass is unknown, each step may
        begin a pass, up to `passes`. For batches that are charged by rounds, it is once in each
        round that was begun; a pass begins with a round.
        """
        if self.rule.charged_by == "step":
            return steps * self.microbatches
        if self.rule.charged_by == "round":
            of_pass = self.steps_per_epoch or 1
            whole, rest = divmod(steps, of_pass)
            return whole * -(-of_pass // self.bands) + -(-rest // self.bands)
        of_pass = self.max_participations or 1
        if self.steps_per_epoch is None:
            return steps if self.passes is None else min(steps, self.passes * of_pass)
        return min(steps, -(-steps // self.steps_per_epoch) * of_pass)

    def to_dict(self):
        """The fields as a JSON-able dict."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, fields):
        """The inverse of `to_dict`."""
        return cls(**fields)


def checked_period(period):
    """(name of a registry, name of a period) as a tuple of two strings.

    Args:
        period: such a tuple, or list, or a `tfdp.data.Period`, whose `key` it is.
    """
    key = getattr(period, "key", period)
    pair = isinstance(key, (tuple, list)) and len(key) == 2
    if not pair or not all(isinstance(part, str) and part for part in key):
        raise ValueError(
            "Argument `period` must be a period of a `tfdp.data.DisjointPeriods`, or None. "
            f"Received: period={period!r}"
        )
    return tuple(key)
