"""Synthetic item sequences: long-tailed, and with an order worth learning."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tfdp._validate import count
from tfdp.data.datasets.sequences import leave_one_out_split

if TYPE_CHECKING:
    from tfdp.data.datasets.sequences import SequenceData

_NUM_GENRES = 20
_RANK_OFFSET = 10.0  # Zipf-Mandelbrot: popularity is 1 / (rank + 10)
_STAY_IN_GENRE = 0.9
_FOLLOW_SUCCESSOR = 0.6
_SUCCESSOR_PROBABILITIES = (0.5, 0.25, 0.15, 0.1)


def synthetic_sequences(
    num_users: int = 4000,
    num_items: int = 1000,
    max_length: int = 50,
    min_length: int = 10,
    seed: int = 0,
) -> SequenceData:
    """Generates users' item sequences that a sequence model predicts better than popularity.

    Items have Zipf-Mandelbrot popularity and belong to 20 latent genres. Before each item the user
    draws a new genre with probability 0.1. A user who stayed takes, with probability 0.6, one of
    four fixed successors of the current item, all of its genre. Otherwise the next item is drawn
    from the user's genre by popularity. Nothing here is real data.

    Args:
        num_users: number of sequences.
        num_items: number of items.
        max_length: positions of a record, as in `leave_one_out_split`.
        min_length: shortest sequence; lengths are uniform from there to `max_length` + 2, the
            largest length from which nothing is cut off.
        seed: non-negative integer; the same seed makes the same data. It protects nothing.

    Returns:
        A `tfdp.data.SequenceData`.

    Raises:
        ValueError: a size is not a positive integer, or `min_length` exceeds `max_length` + 2.
    """
    for name, value in (
        ("num_users", num_users),
        ("num_items", num_items),
        ("max_length", max_length),
        ("min_length", min_length),
    ):
        count(name, value)
    longest = max_length + 2
    if min_length > longest:
        raise ValueError(
            f"Argument `min_length` must be at most max_length + 2 = {longest}. "
            f"Received: min_length={min_length}"
        )
    rng = np.random.default_rng(seed)
    catalogue = _Catalogue(rng, num_items)
    lengths = rng.integers(min_length, longest, size=num_users, endpoint=True)
    items = _walk(rng, catalogue, num_users, longest)
    sequences = [row[:length] for row, length in zip(items, lengths, strict=True)]
    return leave_one_out_split(sequences, max_length, num_items)


class _Catalogue:
    """The items' genres, popularities and successors; items are numbered from 0 here."""

    def __init__(self, rng, num_items):
        rank = rng.permutation(num_items)  # an id says nothing about its item's popularity
        popularity = 1.0 / (_RANK_OFFSET + rank)
        self.genre = rank % _NUM_GENRES  # every genre has its share of the head and of the tail
        self.num_genres = min(_NUM_GENRES, num_items)
        # Items in order of genre, so that one cumulative sum serves every genre.
        self._order = np.argsort(self.genre, kind="stable")
        self._cumulative = np.concatenate([[0.0], np.cumsum(popularity[self._order])])
        bounds = np.searchsorted(self.genre[self._order], np.arange(self.num_genres + 1))
        self._low, self._high = self._cumulative[bounds[:-1]], self._cumulative[bounds[1:]]
        self.genre_probability = (self._high - self._low) / self._cumulative[-1]
        self.successors = np.stack(
            [self.popular_item(rng, self.genre) for _ in _SUCCESSOR_PROBABILITIES], axis=1
        )

    def popular_item(self, rng, genre):
        """One item of each given genre, by popularity."""
        point = rng.uniform(self._low[genre], self._high[genre])
        position = np.searchsorted(self._cumulative, point, side="right") - 1
        return self._order[np.clip(position, 0, len(self._order) - 1)]


def _walk(rng, catalogue, num_users, length):
    """(num_users, length) item ids from 1, all users one step at a time."""

    def new_genre():
        return rng.choice(catalogue.num_genres, num_users, p=catalogue.genre_probability)

    items = np.empty((num_users, length), np.int64)
    genre = new_genre()
    item = catalogue.popular_item(rng, genre)
    for step in range(length):
        items[:, step] = item + 1
        stays = rng.random(num_users) < _STAY_IN_GENRE
        genre = np.where(stays, genre, new_genre())
        branch = rng.choice(len(_SUCCESSOR_PROBABILITIES), num_users, p=_SUCCESSOR_PROBABILITIES)
        # A successor is of the current item's genre: a user who moves on does not follow it.
        follows = stays & (rng.random(num_users) < _FOLLOW_SUCCESSOR)
        item = np.where(
            follows, catalogue.successors[item, branch], catalogue.popular_item(rng, genre)
        )
    return items
