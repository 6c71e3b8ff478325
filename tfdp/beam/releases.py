"""Private releases of logs that outgrow one machine, by the mechanisms of `tfdp.data`.

Beam makes exact sums over persons, each bounded; noise, charge and release are made here, by the
same functions as for arrays in memory.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

import apache_beam as beam
import numpy as np

from tfdp._validate import count, positive
from tfdp.accounting.charges.sampling import PERSON
from tfdp.beam.made_with import refuse_any_origin
from tfdp.beam.sums import PersonSums
from tfdp.data.provenance.origins import Origin
from tfdp.data.releases import frequency, transitions
from tfdp.data.releases.transition_counts import UNIT, Histories, item_units, transition_sums
from tfdp.selection import top_k

if TYPE_CHECKING:
    from apache_beam.options.pipeline_options import PipelineOptions

    from tfdp.noise import NoiseSource

_ORIGIN = Origin(
    assumptions=("the pipeline computes each person's records from that person's data alone",)
)


@dataclasses.dataclass(frozen=True)
class Log:
    """Records of persons that Beam reads, for the releases of this module.

    ```python
    def sessions():  # lines "user,item item item"
        return beam.io.ReadFromText("gs://bucket/sessions-*.csv") | beam.Map(parse_line)

    log = tfdp.beam.Log(sessions, "gs://bucket/scratch", max_records_per_unit=10)
    release = tfdp.beam.private_transitions(log, num_items=10_000, length=50, epsilon=1.0)
    ```

    Args:
        records: a function without arguments that returns a `PTransform`, which returns (key of the
            person, record); a release may read the log several times. Keys are integers, strings or
            bytes, written in the same way in all records of a person, and not random.
        scratch: a directory that all workers can reach. It contains sums without noise while a
            pipeline runs: keep it as secret as the data.
        max_records_per_unit: k; if a person has more records, k of them are chosen at random.
        options: `apache_beam` `PipelineOptions`; None for the direct runner.
    """

    records: Callable[[], beam.PTransform]
    scratch: str | os.PathLike
    max_records_per_unit: int = 1
    options: PipelineOptions | None = None

    def __post_init__(self):
        count("max_records_per_unit", self.max_records_per_unit)
        if isinstance(self.records, beam.PTransform) or not callable(self.records):
            raise ValueError(
                "Argument `records` must be a function that returns a PTransform, because each "
                "pipeline needs a new one: `lambda: beam.io.ReadFromText(...) | ...`. Received: "
                f"records={self.records!r}"
            )

    @property
    def details(self):
        """What the ledger entry of a release says of the persons."""
        return {"unit": PERSON, "max_records_per_unit": self.max_records_per_unit}

    def sums(self, rows_of, width):
        """The `PersonSums` of rows that `rows_of` makes of the records."""
        k = self.max_records_per_unit
        return PersonSums(self.records, rows_of, width, k, self.scratch, self.options)


def private_frequency(
    log: Log,
    epsilon: float,
    delta: float | None = None,
    mechanism: str = "gaussian",
    *,
    num_items: int,
    length: int,
) -> frequency.FrequencyRelease:
    """As `tfdp.data.private_frequency`, of a log: the share of persons that have each item.

    Args:
        log: a `Log` whose records are item ids, a list or array, oldest first; 0 is padding. If
            there are more than `length`, the last ones count.
        epsilon, delta, mechanism, num_items: as for `tfdp.data.private_frequency`.
        length: public, the largest number of items of a record that count.

    Returns:
        A `FrequencyRelease`; its `num_examples` is the number of persons.

    Raises:
        ValueError: an argument is out of its range.
    """
    positive("epsilon", epsilon)
    count("num_items", num_items), count("length", length)
    sums = log.sums(functools.partial(_last, length), length)
    n, places, counts = sums.run(functools.partial(_items, num_items))
    dense = np.zeros(num_items)
    dense[places] = counts
    width = length * log.max_records_per_unit
    return frequency.release_counts(
        dense, n, width, epsilon, delta, mechanism, log.details, _ORIGIN
    )


def private_top_k(
    log: Log,
    vocabulary_sizes: dict[str, int],
    k: int | dict[str, int],
    epsilon: float,
    mechanism: str = "laplace",
    *,
    widths: dict[str, int],
    max_values: int | dict[str, int] | None = None,
    source: NoiseSource | None = None,
) -> top_k.TopKRelease:
    """As `tfdp.selection.private_top_k`, of a log.

    Args:
        log: a `Log` whose records are dicts of feature name to ids, an integer or a list of at
            most `widths[name]`; negative ids count as absent.
        vocabulary_sizes, k, epsilon, mechanism, max_values, source: as for
            `tfdp.selection.private_top_k`.
        widths: dict of feature name to T, the largest number of values that one record has of it;
            public.

    Returns:
        A `TopKRelease`.

    Raises:
        ValueError: an argument is out of its range.
    """
    names = list(vocabulary_sizes)
    top_k.check(dict.fromkeys(widths), vocabulary_sizes, epsilon, mechanism)
    widths = {name: count("widths", widths[name]) for name in names}
    units = log.max_records_per_unit
    limits = top_k.limits_of(max_values, {name: units * widths[name] for name in names})
    sizes = [int(vocabulary_sizes[name]) for name in names]
    starts = dict(zip(names, np.cumsum([0, *sizes[:-1]]).tolist(), strict=True))
    sums = log.sums(functools.partial(_features, widths), sum(widths.values()))
    values = functools.partial(_values, widths, dict(vocabulary_sizes), limits, starts)
    n, places, counts = sums.run(values)

    def counts_of(name):
        own = (places >= starts[name]) & (places < starts[name] + vocabulary_sizes[name])
        dense = np.zeros(vocabulary_sizes[name])
        dense[places[own] - starts[name]] = counts[own]
        return dense

    return top_k.release_largest(
        counts_of, vocabulary_sizes, limits, k, epsilon, mechanism, n, log.details, _ORIGIN, source
    )


def private_transitions(
    log: Log,
    *,
    num_items: int,
    length: int,
    epsilon: float | None = None,
    delta: float | None = None,
    noise_multiplier: float | None = None,
    window: int = 8,
    gap_power: float = 0.7,
    popularity_share: float = 0.1,
    rounds: int = 3,
    threshold: float = 1.0,
    symmetric: bool = False,
    most_survivors: int = 2**23,
    source: NoiseSource | None = None,
) -> transitions.TransitionRelease:
    """As `tfdp.data.private_transitions`, of a log. The pipeline runs once more than `rounds`.

    Args:
        log, length: as for `private_frequency`.
        num_items, epsilon, delta, noise_multiplier, window, gap_power, popularity_share, rounds,
            threshold, symmetric, most_survivors, source: as for `tfdp.data.private_transitions`.

    Returns:
        A `TransitionRelease`; its `num_examples` is the number of persons.

    Raises:
        ValueError: an argument is out of its range.
    """
    count("num_items", num_items), count("length", length)
    settings = transitions.checked_settings(
        window, gap_power, popularity_share, rounds, threshold, symmetric
    )
    count("most_survivors", most_survivors)
    return transitions.release_transitions(
        _Sums(log, num_items, length),
        settings,
        (epsilon, delta, noise_multiplier),
        (popularity_share, rounds, most_survivors),
        log.details,
        _ORIGIN,
        source,
    )


class _Sums:
    """What `tfdp.data.releases.transition_counts.Histories` knows, of a log."""

    def __init__(self, log, num_items, length):
        self.num_items, self.longest = num_items, length * log.max_records_per_unit
        self._parts = log.max_records_per_unit
        self._sums = log.sums(functools.partial(_last, length), length)

    @functools.cached_property
    def _items(self):
        return self._sums.run(functools.partial(_item_units, self.num_items, self._parts))

    @property
    def num_users(self):
        n = self._items[0]
        if n * UNIT >= 2**53:
            raise ValueError(
                f"Argument `log` must hold fewer than {2**53 // UNIT} persons, so that their sum "
                f"is exact. Received: {n}"
            )
        return n

    def item_sums(self):
        _, places, units = self._items
        sums = np.zeros(self.num_items)
        sums[places] = units / float(UNIT)
        return sums

    def transition_sums(self, *settings):
        *settings, within = settings
        units_of = functools.partial(_pair_units, self.num_items, self._parts, settings)
        _, places, units = self._sums.run(units_of, within)
        # The last two places are those of what pairs that count add up to.
        size, kept = self.num_items**2, np.zeros(2)
        kept[places[places >= size] - size] = units[places >= size]
        pairs = places < size
        return places[pairs], units[pairs] / float(UNIT), kept / float(UNIT)


def _last(length, record):
    """The last `length` ids of a record, behind zeros; zeros for no record."""
    row = np.zeros(length, np.int64)
    if record is not None:
        refuse_any_origin(record)
        ids = np.asarray(record)
        if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
            raise ValueError(
                "Records of a log must be lists or arrays of integer ids. "
                f"Received: an array of shape {ids.shape}, {ids.dtype}"
            )
        ids = ids[-length:]
        row[length - len(ids) :] = ids
    return row


def _features(widths, record):
    """The values of all features of a record, one after another, −1 for none."""
    rows = []
    for name, width in widths.items():
        row = np.full(width, -1, np.int64)
        if record is not None:
            refuse_any_origin(record[name])
            ids = np.atleast_1d(np.asarray(record[name]))
            if ids.ndim != 1 or len(ids) > width or (ids.size and ids.dtype.kind not in "iu"):
                raise ValueError(
                    f"Records of a log must have at most widths[{name!r}] = {width} integer ids. "
                    f"Received: an array of shape {ids.shape}, {ids.dtype}"
                )
            row[: len(ids)] = ids
        rows.append(row)
    return np.concatenate(rows)


def _items(num_items, matrix, _):
    items = frequency.distinct_items(matrix, num_items)
    items = items[items > 0] - 1
    return items, np.ones(len(items), np.int64)


def _values(widths, sizes, limits, starts, matrix, _):
    width, start, places = sum(widths.values()), 0, []
    records = matrix.reshape(len(matrix), -1, width)
    for name, own in widths.items():
        ids = records[:, :, start : start + own].reshape(len(matrix), -1)
        found = top_k.distinct_values(name, ids, sizes[name], limits[name], None)
        places.append(found + starts[name])
        start += own
    places = np.concatenate(places)
    return places, np.ones(len(places), np.int64)


def _item_units(num_items, parts, matrix, _):
    return item_units(Histories(matrix, num_items, parts))


def _pair_units(num_items, parts, settings, matrix, within):
    places, sums, kept = transition_sums(Histories(matrix, num_items, parts), *settings, within)
    # Whole multiples of 1/UNIT, far below 2⁵³ of them: the products are exact.
    units, size = (np.concatenate([sums, kept]) * UNIT).astype(np.int64), num_items**2
    return np.concatenate([places, [size, size + 1]]), units
