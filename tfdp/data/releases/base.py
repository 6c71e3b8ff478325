"""What whoever uses a private release charges and says."""

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from tfdp import accounting
from tfdp.data.provenance.origins import Origin, OriginArray

if TYPE_CHECKING:
    import dp_accounting


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class ChargedRelease:
    """Base of releases: what they cost, and arrays that carry it into whatever is made of them.

    Attributes:
        event: `dp_accounting` event of the release, under add-or-remove-one adjacency.
        label: the event's name in a ledger.
        event_count: how many such events there were.
        num_examples: number of records n, or of persons; None where this number is private itself.
        details: public parameters, and a random name, by which one release costs once and two
            cost twice.
        origin: `Origin` of the records: what they were made with costs, too.
    """

    event: "dp_accounting.DpEvent"
    label: str
    num_examples: int | None
    details: dict[str, Any]
    event_count: int
    origin: Origin = dataclasses.field(default_factory=Origin)

    def __post_init__(self):
        # Features and weights that are made of these numbers bring the charge into a training.
        origin = self.carried
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, np.ndarray | np.generic):
                value = OriginArray.of(value, origin)
            elif field.name != "details" and isinstance(value, dict):
                value = {name: OriginArray.of(array, origin) for name, array in value.items()}
            object.__setattr__(self, field.name, value)

    @property
    def carried(self):
        """The `Origin` of what is made of the release."""
        return Origin(tuple(self.privacy_releases), tuple(self.privacy_assumptions))

    @property
    def entry(self):
        """The `LedgerEntry` of the release."""
        details = {**self.details, "num_examples": self.num_examples}
        return accounting.LedgerEntry(self.label, self.event, self.event_count, details)

    @property
    def privacy_releases(self):
        """`LedgerEntry` list: the release, and those that its records were made with."""
        return [*self.origin.releases, self.entry]

    @property
    def privacy_assumptions(self):
        """Sentences about what was taken to be public in the making of the records."""
        found = list(self.origin.assumptions)
        if self.details.get("seed") is not None:
            found.append(
                f"nobody knows the fixed seed {self.details['seed']} from which the noise of the "
                "release was drawn: this release is a test, not a private one"
            )
        return found
