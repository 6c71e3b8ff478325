"""Which item follows which, released once with differential privacy."""

import dataclasses
import math
import secrets
from typing import Any

import dp_accounting
import numpy as np
import tensorflow as tf
from numpy.typing import ArrayLike

from tfdp import _validate
from tfdp.data.datasets.sequences import UNIT_OF_PRIVACY
from tfdp.data.releases.base import ChargedRelease
from tfdp.data.releases.gaussian_cost import gaussian_cost
from tfdp.data.releases.transition_counts import Histories
from tfdp.data.releases.transition_rounds import TransitionRounds
from tfdp.data.sampling import arguments
from tfdp.data.sampling.periods import Period, entered
from tfdp.data.sampling.persons import Persons
from tfdp.noise import Grid, NoiseSource


@dataclasses.dataclass(frozen=True, eq=False)
class TransitionRelease(ChargedRelease):
    """Private transitions between items: you may keep, show and use them in a model.

    The user of a release must charge `privacy_releases`: its dp_accounting `event`, with `label`,
    `details` and `num_examples`, and the charges in its `origin`, which the records already
    carried. A model that receives the release does so.

    Attributes:
        indices: int64 (S, 2): pairs (item, later item) that survived, sorted; ids from 1.
        values: float32 (S,): their noisy weights, all positive. All pairs of a user together
            contribute a vector of norm 1. A symmetric release contains every pair in both orders.
        popularity: float32 (num_items + 1,): noisy weights of the items, at least 0; index 0, the
            padding item, is 0.
        num_items: M, public.
        details: dict of public parameters: those of `private_transitions`, and the standard
            deviations of the noise.
    """

    indices: np.ndarray = dataclasses.field(repr=False)
    values: np.ndarray = dataclasses.field(repr=False)
    popularity: np.ndarray = dataclasses.field(repr=False)
    num_items: int


def private_transitions(
    train: Any,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    noise_multiplier: float | None = None,
    num_items: int | None = None,
    window: int = 8,
    gap_power: float = 0.7,
    popularity_share: float = 0.1,
    rounds: int = 3,
    threshold: float = 1.0,
    symmetric: bool = False,
    most_survivors: int = 2**23,
    source: NoiseSource | None = None,
    privacy_ids: ArrayLike | None = None,
    max_records_per_unit: int | None = None,
    period: Period | None = None,
) -> TransitionRelease:
    """Releases how often one item follows another, and how popular items are.

    Each user contributes every pair of an item and one of the next `window` items, once, with
    weight gap^−gap_power of the smallest gap. All weights of a user are divided by their ℓ2 norm.
    The sums over users get Gaussian noise, on all M² entries. Entries under the threshold are
    discarded, which is post-processing; only the others are ever in memory.

    With several `rounds`, each round gets a part of the budget. From the second round on, users
    spend their whole norm on the pairs that have survived so far, so that these are measured more
    precisely. The values of a pair in all rounds are averaged by their precision.

    Formal guarantees: adding or removing one sequence moves the sums of each round by at most 1 in
    ℓ2 norm (`transition_counts.py`, exact in integers), and the item weights by at most 1, whatever
    the sequence contains: repeated items, no item, or 2,000. Which pairs a round measures depends
    on released values only. The rounds and the popularity are therefore an adaptive composition of
    Gaussians of multipliers σ/√share, whose shares add up to 1. They cost no more than one Gaussian
    of multiplier σ (Dong, Roth and Su 2022, theorem 3 and corollary 2), which is `event`. Noise is
    fresh at every call: two calls are two releases, and both cost.

    Args:
        train: `SequenceData.train`, or a pair `(x, y)` of integer arrays (n, L), 0 is padding. The
            items of a record are its L inputs and its last label, never the held-out test item.
        epsilon, delta: ε and δ of this release alone; δ defaults to 1/(10·n).
        noise_multiplier: σ of the whole release, instead of `epsilon`.
        num_items: M. Default: that of `train`. It is public, and never read from the ids found.
        window: the largest gap between the two items of a pair, in positions.
        gap_power: a pair with gap g has weight g^−gap_power.
        popularity_share: share of 1/σ² for the popularity, in (0, 1).
        rounds: number of rounds, which share the rest equally.
        threshold: in standard deviations of the noise. In the first round it is raised until noise
            alone is expected to leave at most `most_survivors` entries; `details["thresholds"]`
            holds the result.
        symmetric: whether to ignore the order of the two items of a pair.
        most_survivors: bounds the memory.
        source: a `tfdp.noise.NoiseSource` for tests; default: fresh entropy.
        privacy_ids, max_records_per_unit: as for `poisson_batches`: the person of each sequence,
            and the largest number of sequences used per person. The transitions within a person's
            sequences together have norm 1: the release is private for persons.
        period: as for `private_frequency`.

    Returns:
        A `TransitionRelease`. With `privacy_ids` its `num_examples` is the number of persons.

    Raises:
        ValueError: an argument is out of its range, `num_items` is not known, or an id is outside
            0 … num_items.

    Source: McSherry and Mironov (2009) release an item-item matrix with noise; Korolova et al.
    (2009) keep of a sparse histogram what exceeds a threshold.
    """
    (x, y), origin = arguments.check_sequences(train, privacy_ids)
    num_items = arguments.known_num_items(train, num_items)
    settings = checked_settings(window, gap_power, popularity_share, rounds, threshold, symmetric)
    _validate.count("most_survivors", most_survivors)
    records = np.concatenate([x, y[:, -1:]], axis=1)
    with entered(period, privacy_ids) as key:
        parts, details = 1, {}
        persons = Persons.of(privacy_ids, len(x), max_records_per_unit, key)
        if persons is not None:
            (records,) = persons.matrices([records])
            parts, details = max_records_per_unit, persons.details
        return release_transitions(
            Histories(records, num_items, parts),
            settings,
            (epsilon, delta, noise_multiplier),
            (popularity_share, rounds, most_survivors),
            details,
            origin,
            source,
        )


def release_transitions(histories, settings, cost, shares, details, origin, source=None):
    """The release of what the users of `histories` add up to; the same for wherever they are.

    Args:
        histories: `Histories`, or an object with its `num_users`, `num_items`, `longest`,
            `item_sums` and `transition_sums`.
        settings: from `checked_settings`.
        cost: (epsilon, delta, noise_multiplier), as for `private_transitions`.
        shares: (popularity_share, rounds, most_survivors), as for `private_transitions`.
        details: of the persons, for the ledger.
        origin: `Origin` of the sequences.
        source: a `NoiseSource`; None for fresh entropy.
    """
    n, num_items, threshold = histories.num_users, histories.num_items, settings["threshold"]
    popularity_share, rounds, most_survivors = shares
    sigma, cost = gaussian_cost(*cost, n)
    source = NoiseSource() if source is None else source
    grid = Grid(_part(sigma, popularity_share), 1.0, histories.longest, rounding=0.0)
    popularity = source.release_any(tf.constant(histories.item_sums()), grid).numpy()
    sigmas = [_part(sigma, (1.0 - popularity_share) / rounds)] * rounds
    found = TransitionRounds(histories, settings, source, most_survivors)
    for one in sigmas:
        found.run(one)
    kept = found.values > threshold * found.stddev
    places, values = found.places[kept], found.values[kept]
    if settings["symmetric"]:
        first, second = np.divmod(places, num_items)
        places = np.concatenate([places, (second * num_items + first)[first != second]])
        values = np.concatenate([values, values[first != second]])
        order = np.argsort(places)
        places, values = places[order], values[order]
    return TransitionRelease(
        indices=np.stack(np.divmod(places, num_items), axis=1) + 1,
        values=values.astype(np.float32),
        popularity=np.concatenate([[0.0], np.maximum(popularity, 0.0)]).astype(np.float32),
        num_items=num_items,
        event=dp_accounting.GaussianDpEvent(sigma),
        label="item transitions and popularity",
        num_examples=n,
        event_count=1,
        details={
            **settings,
            **cost,
            "unit": UNIT_OF_PRIVACY,
            "num_items": int(num_items),
            "rounds": int(rounds),
            "popularity_share": float(popularity_share),
            "thresholds": found.thresholds,
            "noise_stddev": found.stddev,
            "popularity_noise_stddev": float(grid.stddev),
            "release": secrets.token_hex(8),
            **({} if source.seed is None else {"seed": source.seed}),
            **details,
        },
        origin=origin,
    )


def _part(sigma, share):
    """The multiplier of a Gaussian that takes a share of 1/σ²; rounded up."""
    return sigma / math.sqrt(share) * (1.0 + 1e-12)


def checked_settings(window, gap_power, popularity_share, rounds, threshold, symmetric):
    """The arguments of `private_transitions` that say what is counted, as a dict."""
    _validate.count("window", window)
    _validate.count("rounds", rounds)
    _validate.open_unit("popularity_share", popularity_share)
    if not isinstance(symmetric, (bool, np.bool_)):
        raise ValueError(
            f"Argument `symmetric` must be True or False. Received: symmetric={symmetric!r}"
        )
    return {
        "window": int(window),
        "gap_power": _validate.not_negative("gap_power", gap_power),
        "threshold": _validate.not_negative("threshold", threshold),
        "symmetric": bool(symmetric),
    }
