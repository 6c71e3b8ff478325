"""Validators shared by the functions of `tfdp.data`."""

import math

import numpy as np

from tfdp._validate import count, is_number
from tfdp.accounting.losses.truncation import smallest_capacity
from tfdp.argument_names import called, explains
from tfdp.data.provenance.origins import Origin

_MOST_ROWS = 2**31 - 1
_PROBABILITY = "Pass `expected_batch_size`: the sampling probability times the number of records."
#: For arguments of Keras' `fit` and of Opacus.
explained = explains(
    {"batch_size": called("expected_batch_size"), "epochs": "Give it to `fit`."}
    | dict.fromkeys(("sampling_probability", "sample_rate"), _PROBABILITY)
)


def check_expected_batch_size(value, num_examples):
    """Raises unless `value` is a number in (0, num_examples]."""
    if not is_number(value) or not 0 < value <= num_examples:
        raise ValueError(
            "Argument `expected_batch_size` must be a positive number, at most the number of "
            f"examples ({num_examples}): the sampling probability of a record is their quotient. "
            f"Received: expected_batch_size={value!r}"
        )


def check_capacity(max_batch_size, expected_batch_size):
    """The number of rows of every batch, checked."""
    count("max_batch_size", max_batch_size)
    if max_batch_size < expected_batch_size:
        raise ValueError(
            "Argument `max_batch_size` must be at least `expected_batch_size` "
            f"({expected_batch_size}); otherwise about every second draw would be cut. Leave it "
            "out, and tfdp chooses a size that draws practically never exceed. Received: "
            f"max_batch_size={max_batch_size}"
        )


def capacity_of(max_batch_size, expected_batch_size, num_drawn_from, largest):
    """The number of places of every batch: as given, checked, or what draws do not exceed.

    Args:
        max_batch_size: as given; None for the smallest number that a draw exceeds with probability
            at most 1e-20.
        expected_batch_size: B.
        num_drawn_from: how many records or persons may be drawn.
        largest: how many in the larger of two neighbouring data sets. Where every draw is of all,
            a batch has room for these, or every draw of that one would be cut.
    """
    if max_batch_size is not None:
        check_capacity(max_batch_size, expected_batch_size)
    if max_batch_size is None or expected_batch_size == num_drawn_from:
        return smallest_capacity(largest, expected_batch_size / num_drawn_from)
    return min(largest, int(max_batch_size))


def check_rows_of_persons(persons, max_records_per_unit):
    """Raises if so many persons, of k rows each, take more rows than 32 bits can count."""
    rows = persons * max_records_per_unit
    if rows > _MOST_ROWS:
        raise ValueError(
            "Argument `max_records_per_unit` is too large: each person takes that many rows, "
            f"however few records they have, so {persons} persons would take {rows} rows. At most "
            f"{_MOST_ROWS} rows are possible. Give the largest number of records to use for one "
            f"person. Received: max_records_per_unit={max_records_per_unit}"
        )


def steps_of_epoch(steps_per_epoch, num_examples, expected_batch_size):
    """Batches in one pass: as given, checked, or n/B rounded and at least 1."""
    if steps_per_epoch is None:
        return max(1, math.floor(num_examples / expected_batch_size + 0.5))
    return count("steps_per_epoch", steps_per_epoch)


def check_sequences(train, privacy_ids=None):
    """The pair (x, y) as arrays, both (n, L), and the `Origin` of the pair and of the ids."""
    arrays = [np.asarray(part) for part in train] if isinstance(train, tuple) else []
    if (
        len(arrays) != 2
        or arrays[0].ndim != 2
        or 0 in arrays[0].shape
        or arrays[0].shape != arrays[1].shape
        or not all(np.issubdtype(array.dtype, np.integer) for array in arrays)
    ):
        received = [(array.shape, str(array.dtype)) for array in arrays] or type(train).__name__
        raise ValueError(
            "Argument `train` must be `SequenceData.train` or a pair (x, y) of integer arrays of "
            f"the same shape (num_users, max_length). Received: {received}"
        )
    return arrays, Origin.of((train, privacy_ids))


def known_num_items(train, num_items):
    """The size of the vocabulary: as given, or that of `SequenceData.train`; never of the ids."""
    num_items = getattr(train, "num_items", None) if num_items is None else num_items
    if num_items is None:
        raise ValueError(
            "Argument `num_items` must be given with plain arrays: the vocabulary size is public "
            "and must not be read from the data. Received: num_items=None"
        )
    return count("num_items", num_items)
