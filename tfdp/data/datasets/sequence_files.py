"""Reads users' item sequences: `user item` lines, tables, or one line for each user."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from tfdp.data.datasets.columns import read_columns, read_lines
from tfdp.data.datasets.item_ids import item_ids
from tfdp.data.datasets.sequences import SequenceData, split_sequences
from tfdp.data.datasets.single_values import as_text, ranks, times
from tfdp.data.provenance.origins import Origin

_LARGEST_ID = int(np.iinfo(np.int64).max)


def load_sequences(
    data: str | os.PathLike | Any,
    max_length: int = 50,
    num_items: int | None = None,
    *,
    user: str | int | None = None,
    item: str | int | None = None,
    timestamp: str | int | None = None,
    delimiter: str | None = None,
    items: Sequence | str | None = None,
) -> SequenceData:
    """Loads the items of users, and holds out each user's last item.

    Without `user` and `item`, the file has one of two forms. In SASRec's, each line has two
    whitespace-separated positive integers, user and item, and the lines of one user are in time
    order. In S3Rec's and BERT4Rec's, there is one line for each user: the user, then the items.
    With `user` and `item`, the data are a table: a CSV or Parquet file, or a DataFrame.

    ```python
    data = tfdp.data.load_sequences("ml-1m.txt")
    data = tfdp.data.load_sequences(
        "orders.csv", user="customer", item="sku", timestamp="ordered_at", items=catalogue)
    data = tfdp.data.load_sequences("ratings.dat", user=0, item=1, timestamp=3, delimiter="::")
    ```

    Users may be interleaved, and may be numbers or text. Integer items are used as ids, unless
    `items` gives their names. The vocabulary is public, whatever its source: an item that only one
    user had would otherwise show that this user is in the data.

    Args:
        data: path of a file (.csv, .tsv, .parquet; compressed by gzip, too), a DataFrame (pandas,
            polars, pyarrow), or a dict of columns. Parquet files need `pip install tfdp[parquet]`.
        max_length: number of positions of a record.
        num_items: size of the vocabulary. Default: that of `items`, or else the largest item id in
            the data, which is then assumed to be public.
        user, item: the columns. Names are those of the header. Integers count from 0, and the file
            then has no header.
        timestamp: column of numbers or ISO 8601 dates that orders a user's items. Default: the
            order of the rows.
        delimiter: of a CSV file. Default: a tab for .tsv files, else a comma.
        items: names of the items, in the order of their ids, from 1: the public catalogue. Rows of
            other items are left out. `"from_data"` uses the names that occur; the privacy statement
            then lists them as assumed to be public.

    Returns:
        A `tfdp.data.SequenceData` with one record per user, in order of user id.

    Raises:
        ValueError: a line is malformed, a column is missing, the file is empty, an item id exceeds
            `num_items`, or items are named by text and `items` is missing.
        FileNotFoundError: there is no such file.
    """
    if (user is None) != (item is None):
        raise ValueError(
            "Arguments `user` and `item` must both name a column, or neither. "
            f"Received: user={user!r}, item={item!r}"
        )
    if user is not None:
        return _load_table(data, max_length, num_items, user, item, timestamp, delimiter, items)
    if timestamp is not None or delimiter is not None or not isinstance(data, (str, os.PathLike)):
        raise ValueError(
            "Arguments `user` and `item` must name the columns of a table. Received: user=None, "
            f"item=None, timestamp={timestamp!r}, delimiter={delimiter!r}, data of type "
            f"{type(data).__name__}"
        )
    users, found = _read_pairs(data)
    return _of_columns(users, found, [], max_length, num_items, items, Origin())


def load_histories(
    path: str | os.PathLike,
    max_length: int = 50,
    num_items: int | None = None,
    *,
    first_is_user: bool = False,
    delimiter: str | None = None,
    items: Sequence | str | None = None,
) -> SequenceData:
    """Loads a file with one line for each user: the items, oldest first.

    Args:
        path: path of the file. Blank lines are users without items.
        max_length, num_items, items: as for `load_sequences`.
        first_is_user: whether the first field of a line is the user, not an item.
        delimiter: between fields. Default: any white space.

    Returns:
        A `tfdp.data.SequenceData` with one record per line, in their order.

    Raises:
        ValueError: as for `load_sequences`.
        FileNotFoundError: there is no such file.
    """
    histories = []
    for line in read_lines(path):
        fields = line.strip() and line.strip("\r\n").split(delimiter)
        histories.append([f for f in fields[first_is_user:] if f] if fields else [])
    names = np.array([name for history in histories for name in history])
    if not names.size:
        raise ValueError(f"{path} must hold at least one item. Received: none")
    ids, catalogue, origin = item_ids(names, items)
    parts = np.split(ids, np.cumsum([len(history) for history in histories])[:-1])
    return _split(parts, max_length, num_items, catalogue, origin)


def _load_table(data, max_length, num_items, user, item, timestamp, delimiter, items):
    names = [user, item] if timestamp is None else [user, item, timestamp]
    if len({isinstance(name, str) for name in names}) > 1:
        raise ValueError(
            "Arguments `user`, `item` and `timestamp` must all be names of columns, or all numbers "
            f"of columns. Received: {names}"
        )
    (users, found, *moments), origin = read_columns(data, names, delimiter)
    for column, name in ((users, user), (found, item)):
        _refuse_missing(column, name)
    keys = _times(moments[0], timestamp) if moments else []
    return _of_columns(users, found, keys, max_length, num_items, items, origin)


def _refuse_missing(column, name):
    missing = np.char.strip(as_text(column)) == ""
    if missing.any():
        raise ValueError(
            f"Column {name!r} must have a value in every row: remove rows without one. Received: "
            f"{np.count_nonzero(missing)} rows without a value"
        )


def _times(column, name):
    try:
        return times(column)
    except (ValueError, TypeError, OverflowError) as error:
        raise ValueError(
            "Argument `timestamp` must name a column of numbers or of dates such as 2024-05-31 or "
            f"2024-05-31T12:30:00, with a value in every row. Received: timestamp={name!r}"
        ) from error


def _of_columns(users, found, time_keys, max_length, num_items, items, origin):
    ids, catalogue, of_items = item_ids(found, items)
    origin = Origin.all_of([origin, of_items])
    if catalogue is None and ids.min() < 1:
        raise ValueError(
            "Item ids must be at least 1, because 0 is padding. If these integers are names of "
            'items, pass the catalogue as `items`, or items="from_data". Received: ids from '
            f"{ids.min()} on"
        )
    users = ranks(users)
    # Stable: rows of one user keep their order where they have no time, or the same.
    order = np.lexsort((*time_keys, users))
    users, ids = users[order], ids[order]
    histories = np.split(ids, np.flatnonzero(np.diff(users)) + 1)
    return _split(histories, max_length, num_items, catalogue, origin)


def _split(histories, max_length, num_items, catalogue, origin):
    if catalogue is None:
        return split_sequences(histories, max_length, num_items, origin=origin)
    if num_items not in (None, len(catalogue)):
        raise ValueError(
            f"Argument `num_items` must be the number of `items`, {len(catalogue)}, or None. "
            f"Received: num_items={num_items}"
        )
    # A user without an item of the catalogue stays a record: n counts all users.
    known = [history[history > 0] for history in histories]
    return split_sequences(known, max_length, len(catalogue), catalogue, origin=origin)


def _read_pairs(path):
    try:
        with warnings.catch_warnings():
            # numpy only warns about empty files and about integers written as "1.0".
            warnings.simplefilter("error")
            pairs = np.loadtxt(path, dtype=np.int64, comments=None, ndmin=2)
        well_formed = pairs.shape[1] == 2 and pairs.min() >= 1
    except (ValueError, UserWarning, DeprecationWarning):
        well_formed = False
    if not well_formed:
        pairs = _read_line_by_line(path)
    return pairs[:, 0], pairs[:, 1]


def _read_line_by_line(path):
    """Pairs of user and item, of a file that has one on each line, or one line for each user.

    Of the second kind are files in which no user has two lines, and lines have several lengths:
    where all have the same, the third field may as well be a rating or a time.
    """
    with open(path, "rb") as lines:
        rows = [(fields[0], len(fields)) for fields in map(bytes.split, lines) if fields]
    users, lengths = map(set, zip(*rows, strict=True)) if rows else (set(), set())
    of_users = len(users) == len(rows) and len(lengths) > 1
    pairs = []
    with open(path, "rb") as lines:
        for number, line in enumerate(lines, start=1):
            fields = line.split()
            if not fields:
                continue
            fits = len(fields) == 2 or (of_users and len(fields) > 2)
            if not (fits and all(map(_is_positive_integer, fields))):
                content = line.rstrip(b"\r\n").decode("utf-8", "backslashreplace")
                raise ValueError(
                    "Argument `path` must name a file whose lines are two positive integers, "
                    "user and item, or a user followed by all of their items. If all lines of "
                    "the second form have the same length, read it with `load_histories(path, "
                    f"first_is_user=True)`. Received: path={str(path)!r}, line {number}: "
                    f"{content!r}"
                )
            user, *items = map(int, fields)
            pairs += [(user, item) for item in items]
    if not pairs:
        raise ValueError(
            "Argument `path` must name a file with at least one `user item` line. "
            f"Received: path={str(path)!r}, which is empty"
        )
    return np.array(pairs, np.int64)


def _is_positive_integer(field):
    return field.isdigit() and 1 <= int(field) <= _LARGEST_ID
