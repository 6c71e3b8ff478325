"""What one user's history contributes to counts of transitions and of items, bounded exactly."""

import math

import numpy as np

from tfdp.errors import PrivacyError

#: Contributions are whole multiples of 1/UNIT: their sums are exact, in any order.
UNIT = 2**24
#: The largest of the two numbers in which a user says how much the pairs that count are.
_KEPT = UNIT // 10
_LARGEST_KEY = 2**62
_TINY = 1e-200


class Histories:
    """Users' items without padding, one after the other.

    Args:
        records: int array (n, length) of item ids, oldest first; 0 is padding, wherever it is.
        num_items: M, public.
        parts: how many histories of the same length stand in each row, one after another: of a
            person with several records. Items of different ones do not follow each other.

    Attributes:
        users, items: int64 (N,): whose item it is, ascending, and its id less 1.
        histories: int64 (N,): which history it is of, ascending.
        num_users: n.
        longest: the largest number of items that a record can hold, public.

    Raises:
        ValueError: for ids outside of 0 … num_items.
    """

    def __init__(self, records, num_items, parts=1):
        self.num_users, self.longest = records.shape
        self.num_items = num_items
        if records.size and (records.min() < 0 or records.max() > num_items):
            raise ValueError(
                f"Argument `train` must hold ids from 0 (padding) to num_items={num_items}. "
                f"Received: ids from {records.min()} to {records.max()}"
            )
        if self.num_users * UNIT >= 2**53:
            raise ValueError(
                f"Argument `train` must hold fewer than {2**53 // UNIT} users, so that their sum "
                f"is exact. Received: {self.num_users}"
            )
        self.users, columns = np.nonzero(records)
        self.items = records[self.users, columns].astype(np.int64) - 1
        self.histories = self.users * parts + columns // (self.longest // parts)

    def item_sums(self):
        """float64 (num_items,): the sums of `item_units`, whole multiples of 1/UNIT."""
        items, units = item_units(self)
        sums = np.zeros(self.num_items)
        sums[items] = units / float(UNIT)
        return sums

    def transition_sums(self, *settings):
        """As the function `transition_sums`."""
        return transition_sums(self, *settings)


def item_units(histories):
    """Sums over users of what each gives to the items that it contains.

    Formal guarantees: a user gives every distinct item of its history the same, and all of them
    together a vector of ℓ2 norm at most 1; exactly so, in integers.

    Args:
        histories: `Histories`.

    Returns:
        int64 (m,) items, less 1, sorted and distinct; and int64 (m,) sums in units of 1/UNIT.
    """
    key = np.unique(histories.users * histories.num_items + histories.items)
    users, items = np.divmod(key, histories.num_items)
    units = _of_norm(UNIT, np.ones(len(users)), users, histories.num_users)
    return added(items, units)


def transition_sums(histories, window, gap_power, symmetric, within=None, part=1 << 20):
    """Sums over users of what each gives to the transitions that it contains.

    A user's transitions are its pairs (item, one of the next `window` items). Each distinct pair
    has the weight gap^−gap_power of its smallest gap, once. All weights of a user are divided by
    their ℓ2 norm: a user of few pairs gives each of them more.

    Formal guarantees: what a user contributes to all that is returned has ℓ2 norm at most 1, exact
    in integers, whatever its history holds; and at most window·longest + 2 entries.

    Args:
        histories: `Histories`.
        window: largest gap.
        gap_power: number of at least 0.
        symmetric: whether (i, j) and (j, i) are one pair, (smaller id, larger id).
        within: int64 array, sorted: the places (below) that count; None for all. It must not
            depend on the histories, but through what was released about them.
        part: items of histories that are looked at together; memory is that of their pairs, and
            of the distinct pairs of all.

    Returns:
        int64 (m,) places, sorted and distinct: (first id − 1)·num_items + second id − 1; float64
        (m,) sums, whole multiples of 1/UNIT; and, with `within`, float64 (2,): sums over users of
        what the pairs that count add up to, divided by 10·√(window·longest), which is as much as
        they can: as they would be if all counted, and as they are. 0 without.
    """
    settings = window, gap_power, symmetric, within, window * histories.longest
    starts = np.searchsorted(histories.users, np.arange(histories.num_users + 1))
    largest = max(1, _LARGEST_KEY // histories.num_items**2)  # users of one part: keys fit in int64
    user, found, kept = 0, [], np.zeros(2, np.int64)
    while user < histories.num_users:
        stop = np.searchsorted(starts, starts[user] + part, side="right") - 1
        stop = int(min(max(stop, user + 1), user + largest, histories.num_users))
        own = slice(starts[user], starts[stop])
        users, items = histories.users[own] - user, histories.items[own]
        own = users, histories.histories[own], items
        *sums, of_part = _of_users(*own, stop - user, histories.num_items, settings)
        found, kept, user = [*found, sums], kept + of_part, stop
        if len(found) > 8:
            found = [merged(found)]
    places, units = merged(found)
    return places, units / float(UNIT), kept / float(UNIT)


def _of_users(users, histories, items, num_users, num_items, settings):
    """Places and units of the pairs of some users, numbered from 0, and their two shares' sums."""
    window, gap_power, symmetric, within, most_pairs = settings
    keys, weights = [np.zeros(0, np.int64)], [np.zeros(0)]
    size = num_items**2
    for gap in range(1, min(window, len(items) - 1) + 1):
        same = histories[gap:] == histories[:-gap]
        first, second = items[:-gap][same], items[gap:][same]
        if symmetric:
            first, second = np.minimum(first, second), np.maximum(first, second)
        keys.append(users[gap:][same] * size + first * num_items + second)
        weights.append(np.full(len(first), float(gap) ** -gap_power))
    # The first of equal keys has the smallest gap, and so the largest weight.
    keys, first = np.unique(np.concatenate(keys), return_index=True)
    weights = np.concatenate(weights)[first]
    owners, places = np.divmod(keys, size)
    if within is None:
        units = _of_norm(UNIT, weights, owners, num_users)
        return *added(places, units), np.zeros(2, np.int64)
    counts = _is_in(places, within)
    before = np.bincount(owners, weights**2, minlength=num_users)
    owners, places, weights = owners[counts], places[counts], weights[counts]
    after = np.bincount(owners, weights**2, minlength=num_users)
    total = np.bincount(owners, weights, minlength=num_users) / math.sqrt(most_pairs)
    kept = [np.minimum(total / np.sqrt(np.maximum(s, _TINY)), 1.0) for s in (before, after)]
    kept = [np.floor(_KEPT * share).astype(np.int64).sum() for share in kept]
    units = _of_norm(math.isqrt(UNIT**2 - 2 * _KEPT**2), weights, owners, num_users)
    return *added(places, units), np.array(kept)


def _of_norm(norm, weights, users, num_users):
    """int64: each user's weights, scaled to at most a norm, in units of 1/UNIT.

    Args:
        norm: integer, in units.
        weights: float64 (m,), positive, at most 1.
        users: int64 (m,), ascending.
        num_users: larger than every user.
    """
    squares = np.bincount(users, weights**2, minlength=num_users)
    # Rounded down; and before that made smaller by more than all that float64 rounds.
    scale = norm * (1.0 - 2.0**-30) / np.sqrt(np.maximum(squares, _TINY))
    units = np.floor(weights * scale[users]).astype(np.int64)
    if len(units):
        norms = np.add.reduceat(units * units, np.flatnonzero(np.diff(users, prepend=-1)))
        if units.min() < 0 or units.max() > norm or norms.max() > norm**2:
            raise PrivacyError(
                "The contribution of a user exceeds norm 1. Nothing was released. This is an error "
                "of tfdp: please report it."
            )
    return units


def _is_in(places, sorted_places):
    if not len(sorted_places):
        return np.zeros(len(places), bool)
    index = np.minimum(np.searchsorted(sorted_places, places), len(sorted_places) - 1)
    return sorted_places[index] == places


def added(places, units):
    """Distinct places, sorted, and the exact sums of their units."""
    if not len(places):
        return places, units
    order = np.argsort(places, kind="stable")
    places, units = places[order], units[order]
    starts = np.flatnonzero(np.diff(places, prepend=-1))
    return places[starts], np.add.reduceat(units, starts)


def merged(found):
    """As `added`, of a list of pairs (places, units)."""
    empty = np.zeros(0, np.int64)
    places, units = zip(*found, strict=True) if found else ((empty,), (empty,))
    return added(np.concatenate(places), np.concatenate(units))
