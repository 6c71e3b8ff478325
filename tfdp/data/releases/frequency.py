"""How many sequences contain each item, released once with differential privacy."""

import dataclasses
import math
import secrets
from typing import Any

import dp_accounting
import numpy as np
import tensorflow as tf
from numpy.typing import ArrayLike

from tfdp._validate import one_of, positive
from tfdp.data.releases.base import ChargedRelease
from tfdp.data.releases.gaussian_cost import gaussian_cost
from tfdp.data.sampling.arguments import check_sequences, known_num_items
from tfdp.data.sampling.periods import Period, entered
from tfdp.data.sampling.persons import Persons
from tfdp.noise import NoiseSource, grid_of_counts, laplace_pair, normal_pair


@dataclasses.dataclass(frozen=True, eq=False)
class FrequencyRelease(ChargedRelease):
    """Private item frequencies: you may keep, show and use them in a model.

    The user of a release must charge `privacy_releases`: its dp_accounting `event`, with `label`,
    `details` and `num_examples`, and the charges in its `origin`, which the records already
    carried. A model that receives the release does so.

    Attributes:
        probabilities: float32 (num_items + 1,): the noisy share of sequences that contain each
            item, within [1/n, 1]. Index 0, the padding item, is 1.
        details: dict of public parameters: mechanism, epsilon, delta, sensitivity, noise_stddev.
    """

    probabilities: np.ndarray = dataclasses.field(repr=False)


def private_frequency(
    train: Any,
    epsilon: float,
    delta: float | None = None,
    mechanism: str = "gaussian",
    num_items: int | None = None,
    *,
    privacy_ids: ArrayLike | None = None,
    max_records_per_unit: int | None = None,
    period: Period | None = None,
) -> FrequencyRelease:
    """Releases the probability p_j that a sequence contains item j (MATH.md section 4).

    Counts the records that contain each item, adds noise once, divides by n, and clips to [1/n, 1].
    The items of a record are its L inputs and its last label; in a record of `SequenceData` these
    are all of its items.

    Formal guarantees: a record changes at most L + 1 counts by 1, whatever it contains. Under
    add-or-remove-one, the ℓ2 sensitivity is √(L+1) and the ℓ1 sensitivity is L + 1. The release is
    (ε, δ)-DP for `"gaussian"` and (ε, 0)-DP for `"laplace"`. n is public. The noise is fresh on
    every call: two calls are two releases, and both cost. With `privacy_ids` the guarantee is for a
    person with at most k records, and k·(L + 1) replaces L + 1.

    Args:
        train: `SequenceData.train`, or a pair `(x, y)` of integer arrays (n, L); 0 is padding.
        epsilon: ε of this release, positive.
        delta: δ of this release, for `"gaussian"` only. Default: 1/(10·n).
        mechanism: `"gaussian"` or `"laplace"`. Gaussian needs less noise unless L is very small.
        num_items: size of the vocabulary. Default: that of `train`. It is public, and never read
            from the ids that occur.
        privacy_ids, max_records_per_unit: as for `poisson_batches`. The release is then the share
            of persons who have an item, and private for persons.
        period: a `Period` of `DisjointPeriods` that contains all of these persons. Among releases
            and training runs of disjoint periods, only the costliest counts.

    Returns:
        A `FrequencyRelease`. With `privacy_ids` its `num_examples` is the number of persons.

    Raises:
        ValueError: an argument is out of its range, `num_items` is not known, or an id is outside
            0 … num_items.
    """
    (x, y), origin = check_sequences(train, privacy_ids)
    num_items = known_num_items(train, num_items)
    positive("epsilon", epsilon)
    # Of y only the last column: L + 1 ids bound what a record changes, whatever it holds.
    items = np.concatenate([x, y[:, -1:]], axis=1).astype(np.int64)
    with entered(period, privacy_ids) as key:
        persons = Persons.of(privacy_ids, len(items), max_records_per_unit, key)
        if persons is not None:
            (items,) = persons.matrices([items])
        details = {} if persons is None else persons.details
        counts = _count_records(items, num_items)
        return release_counts(counts, *items.shape, epsilon, delta, mechanism, details, origin)


def release_counts(counts, n, items_per_record, epsilon, delta, mechanism, details, origin):
    """The release of counts; the same for wherever they were made.

    Args:
        counts: float64 (num_items,), whole numbers: of records, or persons, that have each item.
        n: number of records, or persons; public.
        items_per_record: how many counts one of them changes by 1, at most.
        epsilon, delta, mechanism: as for `private_frequency`.
        details: of the persons, for the ledger.
        origin: `Origin` of the records.
    """
    one_of("mechanism", mechanism, ("gaussian", "laplace"))
    if mechanism == "gaussian":
        sensitivity = math.sqrt(items_per_record)
        noise_multiplier, cost = gaussian_cost(epsilon, delta, None, n)
        delta = cost["delta"]
        event = dp_accounting.GaussianDpEvent(noise_multiplier)
        law = normal_pair
        scale = stddev = noise_multiplier * sensitivity
    else:
        if delta is not None:
            raise ValueError(
                "Argument `delta` must be None with mechanism='laplace', whose δ is 0. "
                f"Received: delta={delta!r}"
            )
        delta = 0.0
        sensitivity = items_per_record
        event = dp_accounting.LaplaceDpEvent(1 / epsilon)
        law, scale = laplace_pair, sensitivity / epsilon
        stddev = math.sqrt(2) * scale
    noisy = _noisy(counts, scale, law, items_per_record, n)
    probabilities = np.clip(noisy / n, 1 / n, 1.0)
    return FrequencyRelease(
        probabilities=np.concatenate([[1.0], probabilities]).astype(np.float32),
        event=event,
        label="item frequencies",
        num_examples=n,
        event_count=1,
        details={
            "mechanism": mechanism,
            "epsilon": float(epsilon),
            "delta": float(delta),
            "sensitivity": float(sensitivity),
            "noise_stddev": float(stddev),
            "release": secrets.token_hex(8),
            **details,
        },
        origin=origin,
    )


def _count_records(items, num_items):
    """float64 (num_items,): rows that contain each item; each row counts an item once."""
    counts = np.bincount(distinct_items(items, num_items), minlength=num_items + 1)
    return counts[1:].astype(np.float64)


def distinct_items(items, num_items):
    """Items of the rows of an int array (n, length), each once for each row; 0 is padding."""
    items = np.sort(items, axis=1)
    if items[:, 0].min() < 0 or items[:, -1].max() > num_items:
        raise ValueError(
            f"Argument `train` must hold ids from 0 (padding) to num_items={num_items}. "
            f"Received: ids from {items[:, 0].min()} to {items[:, -1].max()}"
        )
    first = np.ones(items.shape, bool)
    first[:, 1:] = items[:, 1:] != items[:, :-1]
    return items[first]


def _noisy(counts, scale, law, moved, n):
    """float64 counts with noise, on a grid of which whole numbers are a part."""
    grid = grid_of_counts(scale, moved, n)
    (noisy,) = NoiseSource().release([tf.constant(counts)], grid, law, tf.float64)
    return noisy.numpy()
