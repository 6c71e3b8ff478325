"""From what items are called to ids from 1 on, and who vouches for the vocabulary."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tfdp.data.datasets.single_values import as_integers, as_text
from tfdp.data.provenance.origins import Origin

#: Value of `items=` by which a user declares what occurs in the data to be public.
FROM_DATA = "from_data"
_CATALOGUE = "the catalogue of items is public"
_OCCURRING = "it is public which item ids occur in the data, and how many"


def item_ids(
    names: np.ndarray, items: Sequence | str | None
) -> tuple[np.ndarray, tuple | None, Origin]:
    """Ids of items, 0 for those that the catalogue does not have.

    An item that only one user has shows that the user is among the data. So a vocabulary of names
    is a public catalogue, or is declared to be one; nothing is taken from the data unasked.

    Args:
        names: (n,) what the items are called: integers or text.
        items: the catalogue, in whose order ids are given; `"from_data"`: all names that occur,
            sorted; None: integers are ids.

    Returns:
        (ids (n,) int64, the names in the order of their ids or None, the `Origin`).

    Raises:
        ValueError: for text without `items`, or a catalogue that is none.
    """
    if items is None:
        numbers = as_integers(names)
        if numbers is None:
            raise ValueError(
                "Argument `items` must be given if items are named by text, because the names "
                "that occur in private data are private. Pass the public catalogue, items=[...]; "
                "items that it lacks are left out. If the names in the data may be public, pass "
                'items="from_data"; the privacy statement lists that as assumed. (With `tfdp '
                "train`: --items FILE, or --items from_data.)"
            )
        return numbers, None, Origin()
    names = np.char.strip(as_text(names))
    if isinstance(items, str) and items == FROM_DATA:
        vocabulary, places = np.unique(names, return_inverse=True)
        return places.reshape(-1) + 1, tuple(vocabulary.tolist()), Origin(assumptions=(_OCCURRING,))
    if isinstance(items, str):
        raise ValueError(
            'Argument `items` must be a sequence of item names, or "from_data". '
            f"Received: items={items!r}"
        )
    catalogue = tuple(str(item).strip() for item in items)
    if not catalogue or len(set(catalogue)) != len(catalogue):
        raise ValueError(
            "Argument `items` must name every item once. Received: "
            f"{len(catalogue)} names, {len(set(catalogue))} different ones"
        )
    order = np.argsort(catalogue)
    ordered = np.array(catalogue)[order]
    places = np.minimum(np.searchsorted(ordered, names), len(ordered) - 1)
    ids = np.where(ordered[places] == names, order[places] + 1, 0)
    chosen_by = Origin.of(items)
    return ids, catalogue, Origin(chosen_by.releases, (*chosen_by.assumptions, _CATALOGUE))
