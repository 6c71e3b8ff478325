"""One mechanism in a ledger: what it did to the data, and how often."""

import copy
import dataclasses
import json

import dp_accounting

from tfdp import _validate
from tfdp.accounting.charges.sampling import PERSON
from tfdp.accounting.events.registry import event_from_dict, event_to_dict

#: The kind of entries about an input of inference. Their detail "unit" says what they protect.
ABOUT_INPUT = "attention release"


@dataclasses.dataclass(frozen=True)
class LedgerEntry:
    """One mechanism and how often it ran.

    Args:
        label: a name for people, e.g. "training".
        event: the `dp_accounting.DpEvent` of one run.
        count: number of runs, at least 1.
        details: JSON-able parameters that the mechanism's code writes and that determine ε:
            `period`, `adjacency`, `overflow_probability` and others. Users' descriptions of a
            charge are stored separately ("described").

    Raises:
        ValueError: if an argument has the wrong type or range.
    """

    label: str
    event: dp_accounting.DpEvent
    count: int = 1
    details: dict = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        if not isinstance(self.event, dp_accounting.DpEvent):
            raise ValueError(
                f"Argument `event` must be a dp_accounting.DpEvent. Received: event={self.event!r}"
            )
        object.__setattr__(self, "count", _validate.count("count", self.count))
        try:
            details = json.loads(json.dumps(self.details, allow_nan=False))
        except (TypeError, ValueError) as error:
            raise ValueError(
                "Argument `details` must hold plain finite numbers, strings, lists and dicts, "
                f"which JSON can store ({error}). Received: details={self.details!r}"
            ) from error
        object.__setattr__(self, "details", details)
        overflow = details.get("overflow_probability", 0.0)
        if not 0 <= overflow <= 1:
            raise ValueError(
                "Argument `overflow_probability` must be a probability. "
                f"Received: overflow_probability={overflow!r}"
            )

    @property
    def overflow_probability(self):
        """Probability per run that a Poisson batch was cut off."""
        return self.details.get("overflow_probability", 0.0)

    @property
    def adjacency(self):
        """The adjacency under which the event holds, where not add_or_remove_one; or None."""
        return self.details.get("adjacency")

    @property
    def unit(self):
        """What the mechanism protects where that is not one record; or None."""
        unit = self.details.get("unit")
        return unit if unit == PERSON or self.is_about_input else None

    @property
    def is_about_input(self):
        """Whether the mechanism protects an input of inference, in the words of `unit`."""
        return self.details.get("kind") == ABOUT_INPUT

    @property
    def period(self):
        """(registry, name) of the only period whose persons the mechanism used, or None."""
        return period_of(self.details)

    @property
    def num_examples(self):
        """n of the data that the mechanism ran on, or None."""
        known = self.details.get("num_examples")
        return (self.details.get("sampling") or {}).get("num_examples") if known is None else known

    def to_dict(self):
        """The entry as a JSON-able dict."""
        return {
            "label": self.label,
            "event": event_to_dict(self.event),
            "count": self.count,
            "details": copy.deepcopy(self.details),
        }

    @classmethod
    def from_dict(cls, encoded):
        """The inverse of `to_dict`."""
        return cls(
            encoded["label"],
            event_from_dict(encoded["event"]),
            encoded["count"],
            encoded["details"],
        )


def period_of(details):
    """(registry, name) of the period that the details of an entry name, or None."""
    sampling = details.get("sampling") or {}  # of training; releases say it themselves
    period = details.get("period", sampling.get("period"))
    return None if period is None else tuple(period)
