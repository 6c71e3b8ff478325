"""The most frequent values of each feature, released once with differential privacy."""

import dataclasses
import secrets

import numpy as np
import tensorflow as tf
from numpy.typing import ArrayLike

from tfdp._validate import count, one_of, positive
from tfdp.data.provenance.origins import Origin
from tfdp.data.releases.base import ChargedRelease
from tfdp.data.sampling.periods import Period, entered
from tfdp.data.sampling.persons import Persons
from tfdp.noise import NoiseSource, draws, grid_of_counts, laplace_pair

MECHANISMS = ("laplace", "gumbel")
_CHUNK = 1 << 22


@dataclasses.dataclass(frozen=True, eq=False)
class TopKRelease(ChargedRelease):
    """The privately chosen rows, which may be shown, and the cost of the choice.

    Attributes:
        rows: dict of feature name to a sorted int64 array of ids.
        details: dict of public parameters: mechanism, epsilon, k, max_values.
    """

    rows: dict[str, np.ndarray]


def private_top_k(
    features: dict[str, ArrayLike],
    vocabulary_sizes: dict[str, int],
    k: int | dict[str, int],
    epsilon: float,
    mechanism: str = "laplace",
    *,
    max_values: int | dict[str, int] | None = None,
    padding_id: int | None = None,
    source: NoiseSource | None = None,
    privacy_ids: ArrayLike | None = None,
    max_records_per_unit: int | None = None,
    period: Period | None = None,
) -> TopKRelease:
    """Releases the k most frequent values of each feature (MATH.md section 3, "DP-FEST").

    Formal guarantees: (ε, 0)-DP for adding or removing one example, all features together.

    - "laplace": noise of scale Σ_f L_f/ε on every count, where an example adds 1 to at most L_f
      counts of feature f: the ℓ1 sensitivity of all histograms is Σ_f L_f. The choice of the
      largest is post-processing, so k does not matter. With single-valued features this is ε/p
      for each of p features.
    - "gumbel": noise of scale K/ε on every count, K = Σ_f k_f. Choosing the k largest is k
      rounds of the exponential mechanism of parameter ε/K (Durfee & Rogers 2021); each round is
      (ε/K)-DP, however many values an example has, and is charged as `LaplaceDpEvent(K/ε)`, whose
      privacy curve lies above it: max over bounded-range mechanisms is
      (e^{ε'/2} − e^{t/2})²/(e^{ε'} − 1) ≤ 1 − e^{(t−ε')/2} at ε' = ε/K. (Appendix B.1 of the
      paper claims ε for Gumbel(1/ε) and any k; that is only true for k = 1.)

    Args:
        features: dict of feature name to integer ids of the n training examples: (n,), or (n, T)
            for a multi-valued feature. A repeated value of an example counts once; negative ids
            count as absent.
        vocabulary_sizes: dict of feature name to V. Public: never read it from the data.
        k: integer, or dict of feature name to integer; at most V of each feature are chosen.
        epsilon: ε, positive.
        mechanism: "laplace" or "gumbel".
        max_values: largest number L_f of distinct values of an example that count: an integer, a
            dict, or None for T. If there are more, the smallest ids are kept.
        padding_id: an id that stands for "no value", or None.
        source: a `tfdp.noise.NoiseSource` for tests; default: fresh entropy.
        privacy_ids, max_records_per_unit: as for `tfdp.data.poisson_batches`: a person, with at
            most `max_records_per_unit` examples, takes the place of an example. Its values are
            those of all its examples: L_f is at most k·T, unless `max_values` is smaller.
        period: as for `tfdp.data.private_frequency`.

    Returns:
        A `TopKRelease`.

    Raises:
        ValueError: if an argument is out of range, or an id is not below its vocabulary size.
    """
    check(features, vocabulary_sizes, epsilon, mechanism)
    values = {name: _as_matrix(name, ids) for name, ids in features.items()}
    sizes = {len(ids) for ids in values.values()}
    with entered(period, privacy_ids) as key:
        persons = Persons.of(privacy_ids, max(sizes), max_records_per_unit, key)
        if persons is not None:
            if len(sizes) > 1:
                raise ValueError(
                    "Argument `features` must have one example for each of the `privacy_ids`, in "
                    f"every feature. Received: {sorted(sizes)} examples"
                )
            values = dict(
                zip(values, persons.matrices(list(values.values()), fill=-1), strict=True)
            )
        limits = limits_of(max_values, {name: ids.shape[1] for name, ids in values.items()})

        def counts_of(name):
            ids = distinct_values(
                name, values[name], vocabulary_sizes[name], limits[name], padding_id
            )
            return np.bincount(ids, minlength=vocabulary_sizes[name]).astype(np.float64)

        return release_largest(
            counts_of, vocabulary_sizes, limits, k, epsilon, mechanism,
            max(map(len, values.values())),
            {} if persons is None else persons.details, Origin.of((features, privacy_ids)),
            source,
        )  # fmt: skip


def limits_of(max_values, widths):
    """Dict of feature to the largest number of its values that count, of as many as there are."""
    limits = {n: count("max_values", _of(max_values, n, width)) for n, width in widths.items()}
    return {name: min(limits[name], width) for name, width in widths.items()}


def release_largest(
    counts_of, vocabulary_sizes, limits, k, epsilon, mechanism, n, details, origin, source=None
):
    """The release of the largest counts; the same for wherever they were made.

    Args:
        counts_of: function of a feature's name: float64 (V,), of how many examples, or persons,
            have each of its values.
        vocabulary_sizes, k, epsilon, mechanism: as for `private_top_k`.
        limits: from `limits_of`: how many counts of a feature one example changes by 1, at most.
        n: number of examples, or persons; public.
        details: of the persons, for the ledger.
        origin: `Origin` of the records.
        source: a `NoiseSource`; None for fresh entropy.
    """
    import dp_accounting  # takes a second to load: training needs it when ε is asked for

    source = NoiseSource() if source is None else source
    kept = {n: min(count("k", _of(k, n)), size) for n, size in vocabulary_sizes.items()}
    if mechanism == "laplace":
        scale = sum(limits.values()) / epsilon
        event = dp_accounting.LaplaceDpEvent(1.0 / epsilon)
    else:
        rounds = sum(kept.values())
        scale = rounds / epsilon
        event = dp_accounting.SelfComposedDpEvent(dp_accounting.LaplaceDpEvent(scale), rounds)
    rows = {}
    for name in vocabulary_sizes:
        noisy = _noisy(counts_of(name), mechanism, scale, source, limits[name], n)
        largest = np.argpartition(-noisy, kept[name] - 1)[: kept[name]]
        rows[name] = np.sort(largest).astype(np.int64)
    return TopKRelease(
        rows=rows,
        event=event,
        label="most frequent rows",
        num_examples=n,
        event_count=1,
        origin=origin,
        details={
            "mechanism": mechanism,
            "epsilon": float(epsilon),
            "k": sum(kept.values()),
            "max_values": sum(limits.values()),
            # Two calls cost twice, even if nothing else tells them apart.
            "release": secrets.token_hex(8),
            **({} if source.seed is None else {"seed": source.seed}),
            **details,
        },
    )


def check(features, vocabulary_sizes, epsilon, mechanism):
    """Raises for wrong arguments of `private_top_k`; of `features` only the names are looked at."""
    if not isinstance(features, dict) or not features:
        raise ValueError(
            "Argument `features` must be a dict of feature name to ids. "
            f"Received: features of type {type(features).__name__}"
        )
    if not isinstance(vocabulary_sizes, dict) or set(vocabulary_sizes) != set(features):
        raise ValueError(
            "Argument `vocabulary_sizes` must be a dict with the keys of `features`: sizes are "
            "public and must not be read from the data. "
            f"Received: vocabulary_sizes={vocabulary_sizes} for features {sorted(features)}"
        )
    positive("epsilon", epsilon)
    one_of("mechanism", mechanism, MECHANISMS)


def _of(setting, name, default=None):
    value = setting.get(name) if isinstance(setting, dict) else setting
    return default if value is None else value


def _as_matrix(name, ids):
    ids = np.asarray(ids)
    if ids.ndim not in (1, 2) or not np.issubdtype(ids.dtype, np.integer) or 0 in ids.shape:
        raise ValueError(
            "Argument `features` must hold integer arrays of shape (n,) or (n, T). "
            f"Received: an array of shape {ids.shape}, {ids.dtype} for {name!r}"
        )
    if ids.max() > np.iinfo(np.int64).max:
        raise ValueError(
            f"Argument `features` must hold ids below 2^63. Received: id {ids.max()} for {name!r}"
        )
    return ids.reshape(len(ids), -1).astype(np.int64)


def distinct_values(name, ids, size, limit, padding_id):
    """int64 (m,): values of the rows of `ids` (n, T), each once for each row, and `limit` at most.

    Args:
        name: of the feature, for the error.
        ids: int64 (n, T).
        size: V.
        limit: the most values of a row that count: the smallest.
        padding_id: an id that is no value, or None.
    """
    if ids.max() >= size:
        raise ValueError(
            f"Argument `features` must hold ids below vocabulary_sizes[{name!r}] = {size}. "
            f"Received: id {ids.max()}"
        )
    ordered = np.sort(ids, axis=1)
    counted = ordered >= 0
    counted[:, 1:] &= ordered[:, 1:] != ordered[:, :-1]
    if padding_id is not None:
        counted &= ordered != padding_id
    counted &= np.cumsum(counted, axis=1) <= limit
    return ordered[counted]


def _noisy(counts, mechanism, scale, source, moved, n):
    """(V,) counts with noise, by which the largest are chosen."""
    if mechanism == "laplace":
        # Private as a whole: on a grid, of which whole numbers are a part.
        grid = grid_of_counts(scale, moved, n)
        (noisy,) = source.release([tf.constant(counts)], grid, laplace_pair, tf.float64)
        return noisy.numpy()
    # Gumbel noise: only the choice is private, and only the choice is released.
    return counts - scale * np.log(_exponential(len(counts), source))


def _exponential(size, source):
    parts = []
    for start in range(0, size, _CHUNK):
        bits = draws.random_bits(source, tf.constant(min(_CHUNK, size - start))).numpy()
        parts.append(-np.log(((bits >> np.uint64(1)).astype(np.float64) + 0.5) * 2.0**-63))
    return np.concatenate(parts)
