"""How often each value of each feature was shown and clicked, released once with privacy."""

import dataclasses
import math
import secrets
from typing import Any

import dp_accounting
import numpy as np
import tensorflow as tf
from numpy.typing import ArrayLike

from tfdp._validate import count
from tfdp.data.provenance.origins import Origin
from tfdp.data.releases.base import ChargedRelease
from tfdp.data.releases.click_odds import shrunken_log_odds
from tfdp.data.releases.count_values import INTEGER_VALUES, INTEGERS, value_of_count
from tfdp.data.releases.gaussian_cost import gaussian_cost
from tfdp.data.sampling.periods import Period, entered
from tfdp.data.sampling.persons import Persons
from tfdp.noise import NoiseSource, grid_of_counts


@dataclasses.dataclass(frozen=True, eq=False)
class ClickStatistics(ChargedRelease):
    """Private click counts by value of each feature: you may keep, show and use them in a model.

    The user of a release must charge `privacy_releases`: its dp_accounting `event`, with `label`,
    `details` and `num_examples`, and the charges in its `origin`, which the records already
    carried. A `tfdp.layers.ClickOdds` does so for its model.

    Attributes:
        shows: dict of feature name to float64 (V,): noisy numbers of records with each value. The
            j-th count of "integers" is the feature "integers_j".
        clicks: the same for records with label 1.
        log_odds: dict of feature name to float32 (V,): the contribution of each value to the log
            odds of a click, shrunk according to noise and chance; 0 if nothing is known.
        rate: estimated share of records with label 1, in (0, 1); an array without axes.
        details: dict of public parameters, and the standard deviation of the noise.
    """

    shows: dict[str, np.ndarray] = dataclasses.field(repr=False)
    clicks: dict[str, np.ndarray] = dataclasses.field(repr=False)
    log_odds: dict[str, np.ndarray] = dataclasses.field(repr=False)
    rate: np.ndarray


def private_click_statistics(
    train: Any,
    vocabulary_sizes: dict[str, int],
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    noise_multiplier: float | None = None,
    privacy_ids: ArrayLike | None = None,
    max_records_per_unit: int | None = None,
    period: Period | None = None,
) -> ClickStatistics:
    """For each value of each feature, releases the numbers of records and of clicks.

    For each of K features, a record adds 1 to the count of its value, and 1 (click) or −1 (no
    click) to the balance of its value. Both tables get Gaussian noise once, in all entries.
    `tfdp.data.releases.click_odds` computes log odds from them, which is post-processing.

    Formal guarantees: under add-or-remove-one, a record moves 2·K sums by exactly 1, whatever it
    contains: ℓ2 sensitivity √(2·K). For a person with at most k records, which may all be alike, it
    is k·√(2·K). Sums are whole numbers, exact in float64. n and the vocabulary sizes are public.

    Args:
        train: pair (x, y) as in `ClickData.train`. x is a dict of feature name to integer ids (n,)
            in [0, V), and may have "integers", (n, m) numbers, each of which is mapped to one of 40
            values by its logarithm (`value_of_count`). y has n labels, 0 or 1.
        vocabulary_sizes: dict of feature name to V, for the features of x that are released.
        epsilon, delta: the guarantee of the release; δ defaults to 1/(10·n).
        noise_multiplier: σ in units of the sensitivity, in place of ε.
        privacy_ids, max_records_per_unit: as for `poisson_batches`; the release is then private for
            persons.
        period: a `Period` of `DisjointPeriods` that contains all of these persons.

    Returns:
        `ClickStatistics`.

    Raises:
        ValueError: for data of a wrong form, ids outside [0, V), labels that are not 0 or 1, or
            arguments out of range.
    """
    names, sizes, ids, labels = _checked(train, vocabulary_sizes)
    n, k = len(labels), 1
    with entered(period, privacy_ids) as key:
        persons = Persons.of(privacy_ids, n, max_records_per_unit, key)
        details = {}
        if persons is not None:
            n, k, details = persons.num_persons, max_records_per_unit, persons.details
            ids, labels = persons.matrices([ids, labels[:, np.newaxis]], fill=-1)
            ids, labels = ids.reshape(-1, len(names)), labels.reshape(-1)
            ids, labels = ids[labels >= 0], labels[labels >= 0]
        sensitivity = k * math.sqrt(2 * len(names))
        sigma, cost = gaussian_cost(epsilon, delta, noise_multiplier, n)
        starts = np.concatenate([[0], np.cumsum(sizes)])
        stddev = sigma * sensitivity
        moved = 2 * k * len(names)
        noisy = _noisy(_sums(ids + starts[:-1], labels, starts[-1]), stddev, moved, n * k)
        shows, balances = (
            {name: part[a:b] for name, a, b in zip(names, starts, starts[1:], strict=False)}
            for part in noisy
        )
        log_odds, rate = shrunken_log_odds(shows, balances, stddev, len(labels) if k == 1 else None)
        return ClickStatistics(
            shows=shows,
            clicks={name: (shows[name] + balances[name]) / 2 for name in names},
            log_odds=log_odds,
            rate=np.float64(rate),
            event=dp_accounting.GaussianDpEvent(sigma),
            label="click statistics",
            num_examples=n,
            event_count=1,
            details={
                **cost,
                "num_features": len(names),
                "sensitivity": float(sensitivity),
                "noise_stddev": float(stddev),
                "release": secrets.token_hex(8),
                **details,
            },
            origin=Origin.of((train, privacy_ids)),
        )


def _checked(train, vocabulary_sizes):
    """Names, sizes, ids int64 (n, K) and labels int64 (n,)."""
    pair = isinstance(train, tuple) and len(train) == 2 and isinstance(train[0], dict)
    if not pair or not isinstance(vocabulary_sizes, dict):
        raise ValueError(
            "Argument `train` must be a pair (x, y) whose x is a dict of features, and "
            "`vocabulary_sizes` a dict from feature name to vocabulary size. Received: "
            f"{type(train).__name__} and {type(vocabulary_sizes).__name__}"
        )
    x, labels = train[0], np.asarray(train[1])
    one_each = labels.ndim == 1 or labels.shape[1:] == (1,)
    if not one_each or not labels.size or labels.dtype.kind not in "biuf":
        raise ValueError(
            "Argument `train` must have one label, 0 or 1, for each record. Received: labels of "
            f"shape {labels.shape}, dtype {labels.dtype}"
        )
    labels = labels.reshape(-1)
    if not np.isin(labels, (0, 1)).all():
        raise ValueError(
            "Argument `train` must have labels that are 0 or 1. Received: "
            f"{np.unique(labels)[:5].tolist()}"
        )
    sizes, columns = {}, []
    for name, size in vocabulary_sizes.items():
        if not isinstance(name, str) or name.startswith(f"{INTEGERS}_"):
            raise ValueError(
                "Argument `vocabulary_sizes` must name features by strings that do not begin "
                f'with "{INTEGERS}_", because the names of counts do. Received: {name!r}'
            )
        sizes[name] = count(f"vocabulary_sizes[{name!r}]", size)
        columns.append(_ids_of(name, size, x, len(labels)))
    if INTEGERS in x:
        counts = np.asarray(x[INTEGERS])
        if counts.ndim != 2 or len(counts) != len(labels) or counts.dtype.kind not in "biuf":
            raise ValueError(
                f'Argument `train` must have "{INTEGERS}", numbers of shape ({len(labels)}, m). '
                f"Received: shape {counts.shape}, dtype {counts.dtype}"
            )
        values = value_of_count(counts).numpy()
        for j, column in enumerate(values.T):
            sizes[f"{INTEGERS}_{j}"] = INTEGER_VALUES
            columns.append(column)
    if not columns:
        raise ValueError(
            "Argument `vocabulary_sizes` must name at least one feature. "
            f"Received: {list(vocabulary_sizes)}"
        )
    return list(sizes), list(sizes.values()), np.stack(columns, axis=1), labels.astype(np.int64)


def _ids_of(name, size, x, n):
    ids = np.asarray(x[name]) if name in x else None
    if ids is None or ids.shape != (n,) or ids.dtype.kind not in "iu":
        received = "no such feature" if ids is None else f"shape {ids.shape}, dtype {ids.dtype}"
        raise ValueError(
            f"Argument `train` must have feature {name!r} as integer ids of shape ({n},), one for "
            f"each record. Received: {received}"
        )
    if ids.min() < 0 or ids.max() >= size:
        raise ValueError(
            f"Argument `train` must have ids of feature {name!r} from 0 to {size - 1}. "
            f"Received: from {ids.min()} to {ids.max()}"
        )
    return ids.astype(np.int64)


def _sums(ids, labels, total):
    """float64 (2, total), whole numbers: shows, and clicks less what was not clicked."""
    signs = np.repeat(2.0 * labels - 1.0, ids.shape[1])
    flat = ids.reshape(-1)
    return np.stack(
        [np.bincount(flat, minlength=total), np.bincount(flat, signs, minlength=total)]
    ).astype(np.float64)


def _noisy(sums, stddev, moved, largest):
    """The sums with noise, on a grid of which whole numbers are a part."""
    grid = grid_of_counts(stddev, moved, largest)
    noisy = NoiseSource().release_any(tf.constant(sums.reshape(-1)), grid, tf.float64)
    return noisy.numpy().reshape(sums.shape)
