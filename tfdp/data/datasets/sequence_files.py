"""Reads `user item` files, the form in which SASRec publishes MovieLens and Amazon data."""

import warnings

import numpy as np

from tfdp.data.datasets.sequences import leave_one_out_split

_LARGEST_ID = int(np.iinfo(np.int64).max)


def load_sequences(path, max_length=50, num_items=None):
    """Loads a file of `user item` pairs and holds out each user's last item.

    Each line has two whitespace-separated positive integers, and the lines of one user stand in
    time order; users may be interleaved. Blank lines are skipped. Item ids are kept as they are.

    Args:
        path: path of the file.
        max_length: number of positions of a record.
        num_items: size of the vocabulary. Default: the largest item id in the file, which is then
            taken to be public.

    Returns:
        A `tfdp.data.SequenceData` with one record per user, in order of user id.

    Raises:
        ValueError: a line is malformed (the message has its number and content), the file is
            empty, or an item id exceeds `num_items`.
        FileNotFoundError: there is no such file.
    """
    users, items = _read_pairs(path)
    by_user = np.argsort(users, kind="stable")  # stable: time order within a user survives
    starts = np.flatnonzero(np.diff(users[by_user])) + 1
    return leave_one_out_split(np.split(items[by_user], starts), max_length, num_items)


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
        pairs = _read_pairs_slowly(path)
    return pairs[:, 0], pairs[:, 1]


def _read_pairs_slowly(path):
    """The format's definition, line by line; only used to name the line that breaks it."""
    pairs = []
    with open(path, "rb") as lines:
        for number, line in enumerate(lines, start=1):
            fields = line.split()
            if not fields:
                continue
            if not (len(fields) == 2 and all(map(_is_positive_integer, fields))):
                content = line.rstrip(b"\r\n").decode("utf-8", "backslashreplace")
                raise ValueError(
                    "Argument `path` must name a file of two positive integers, user and item, a "
                    f"line. Received: path={str(path)!r}, line {number}: {content!r}"
                )
            pairs.append((int(fields[0]), int(fields[1])))
    if not pairs:
        raise ValueError(
            "Argument `path` must name a file with at least one `user item` line. "
            f"Received: path={str(path)!r}, which is empty"
        )
    return np.array(pairs, np.int64)


def _is_positive_integer(field):
    return field.isdigit() and 1 <= int(field) <= _LARGEST_ID
