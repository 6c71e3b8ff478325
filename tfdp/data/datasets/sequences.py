"""Item sequences, one per user, split by leaving the last item out."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tfdp._validate import count
from tfdp.data.provenance.origins import Origin

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

_LARGEST_ID = "the number of items, which is the largest id in the data, is public"
#: What one record is, for statements.
UNIT_OF_PRIVACY = "one user (one training sequence)"


class Sequences(collections.namedtuple("Sequences", ["x", "y"])):
    """The pair `(x, y)` of item ids, with the size of the vocabulary.

    It can be used as any pair. Mapping over it (`tf.nest`, tf.data) returns a pair whose
    `num_items` is `None`, because transformed arrays may have another vocabulary.

    Args:
        x: int32 array (num_users, max_length), inputs; 0 is padding.
        y: int32 array (num_users, max_length), the item that follows each input; 0 is ignored.
        num_items: largest item id, public.
        origin: the `Origin` of the sequences: the releases and assumptions behind them.
    """

    num_items = None
    origin = Origin()

    def __new__(
        cls, x: ArrayLike, y: ArrayLike, num_items: int | None = None, origin: Origin | None = None
    ):
        self = super().__new__(cls, x, y)
        self.num_items = num_items
        self.origin = Origin() if origin is None else origin
        return self

    def __getnewargs__(self):
        return (*self, self.num_items, self.origin)


@dataclasses.dataclass(frozen=True, eq=False)
class SequenceData:
    """Users' item sequences, split into training pairs and one test target per user.

    One user is one record, so a guarantee holds for each user. Arrays are right-aligned: padding
    (0) is on the left and the last position is always the newest item.

    Attributes:
        train: `Sequences` (x, y): the history without its last item; y is x one step later.
        test: `Sequences` (x, y): x is the history before the last item; y is zero except in the
            last position, which holds the last item. Losses and metrics that ignore label 0 thus
            evaluate the held-out item alone.
        num_items: largest item id; item ids are 1 to num_items. Treated as public.
        num_users: number of records n. Treated as public.
        max_length: number of positions.
        items: names of the items, in the order of their ids from 1, if the data did not contain
            ids; else None. Public, or assumed to be.
    """

    train: Sequences = dataclasses.field(repr=False)
    test: Sequences = dataclasses.field(repr=False)
    num_items: int
    num_users: int
    max_length: int
    items: tuple | None = dataclasses.field(default=None, repr=False)

    @property
    def held_out(self) -> tuple[np.ndarray, np.ndarray]:
        """The test data, as in `model.evaluate(*data.held_out)`.

        Histories (num_users, max_length), and the item that followed each, (num_users,), 0 for
        none. Only the last position is scored.
        """
        return self.test.x, self.test.y[:, -1]


def leave_one_out_split(
    sequences: Sequence[ArrayLike], max_length: int, num_items: int | None = None
) -> SequenceData:
    """Holds out the last item of every sequence, as SASRec and DPFormer evaluate.

    For a history h_1 … h_m and L = max_length, the training record consists of the newest L+1 items
    of h_1 … h_(m-1). The test record consists of the newest L of them, with target h_m. So 1, 2, 3,
    4 with L = 2 gives train x = [1, 2], y = [2, 3] and test x = [2, 3], y = [0, 4].

    Every sequence stays one record in `train` and in `test`, in the given order, however short.
    With two items there is no training pair, with one there is no test target either, and the rows
    are zero. A zero row contributes nothing to a loss or a metric, but counts in n.

    Args:
        sequences: list of one-dimensional integer arrays of item ids (1 or more), oldest first.
        max_length: number of positions L.
        num_items: size of the vocabulary. Default: the largest id that occurs, which is then
            assumed to be public. Give it if the largest id must not be read from the data.

    Returns:
        A `SequenceData`.

    Raises:
        ValueError: there is no sequence or no item, an id is below 1 or above `num_items`, or
            `max_length` is not a positive integer.
    """
    return split_sequences(sequences, max_length, num_items, origin=Origin.of(sequences))


def split_sequences(sequences, max_length, num_items, items=None, *, origin):
    """As `leave_one_out_split`, with the names of the items and the `Origin` of their ids."""
    count("max_length", max_length)
    sequences = [np.asarray(sequence, np.int64).reshape(-1) for sequence in sequences]
    ids = np.concatenate(sequences) if sequences else np.zeros(0, np.int64)
    if ids.size == 0:
        raise ValueError("Argument `sequences` must hold at least one item. Received: none")
    if num_items is None:
        num_items = int(ids.max())
        origin = Origin(origin.releases, (*origin.assumptions, _LARGEST_ID))
    count("num_items", num_items)
    if ids.min() < 1 or ids.max() > min(num_items, np.iinfo(np.int32).max):
        raise ValueError(
            f"Argument `sequences` must hold item ids from 1 to num_items={num_items} that fit in "
            f"int32 (0 is padding). Received: ids from {ids.min()} to {ids.max()}"
        )

    shape = (len(sequences), max_length)
    train_x, train_y, test_x, test_y = (np.zeros(shape, np.int32) for _ in range(4))
    for row, sequence in enumerate(sequences):
        history = sequence[:-1]
        _right_align(train_x[row], history[:-1])
        _right_align(train_y[row], history[1:])
        if history.size:
            _right_align(test_x[row], history)
            test_y[row, -1] = sequence[-1]
    # Also of x and y by themselves.
    train_x, train_y, test_x, test_y = map(origin.on, (train_x, train_y, test_x, test_y))
    return SequenceData(
        train=Sequences(train_x, train_y, num_items, origin),
        test=Sequences(test_x, test_y, num_items, origin),
        num_items=num_items,
        num_users=len(sequences),
        max_length=max_length,
        items=items,
    )


def _right_align(row, values):
    newest = values[-len(row) :]
    row[len(row) - len(newest) :] = newest
