"""Reads click logs in the form of Criteo's display-advertising challenge."""

from __future__ import annotations

import gzip
import numbers
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf

from tfdp.data.datasets.clicks import (
    NUM_INTEGERS,
    click_data,
    feature_names,
    held_out_by_place,
)
from tfdp.data.provenance.origins import Origin

if TYPE_CHECKING:
    from tfdp.data.datasets.clicks import ClickData

_NUM_CATEGORICAL = 26
_NUM_FIELDS = 1 + NUM_INTEGERS + _NUM_CATEGORICAL


def load_criteo(
    path: str | os.PathLike,
    hash_buckets: int | Sequence[int] | None = None,
    vocabulary: Sequence[Sequence[str]] | None = None,
    num_rows: int | None = None,
    test_fraction: float = 0.1,
) -> ClickData:
    """Loads a file whose lines are label, 13 integers and 26 categorical values, tab-separated.

    The file has no header; an empty field is missing. The mapping from values to ids must not
    depend on private data, so you choose one of two ways by name:

    - `hash_buckets`: a hash of the value alone, the same in every process, gives its bucket. A
      missing value is hashed like any other.
    - `vocabulary`: a value's id is its position in a list, from 1; 0 is for missing and unknown
      values. Passing the list declares it public, and the data say so (`privacy_assumptions`).

    Args:
        path: path of the file, plain or gzip.
        hash_buckets: number of buckets, or 26 of them, such as
            `tfdp.data.CRITEO_VOCABULARY_SIZES`.
        vocabulary: 26 sequences of values (str); declared public.
        num_rows: number of rows to read; default: all.
        test_fraction: share of the rows that are held out; they are the last in time. The statement
            lists as assumed that it is public which rows these are, as for `load_clicks`.

    Returns:
        A `tfdp.data.ClickData`.

    Raises:
        ValueError: an argument is out of range, the file is empty, or a line is malformed (the
            message has its number).
        FileNotFoundError: there is no such file.
    """
    if (hash_buckets is None) == (vocabulary is None):
        raise ValueError(
            "Exactly one of the arguments `hash_buckets` and `vocabulary` must be given: sizes "
            "taken from the data would publish information about it. Received: "
            f"hash_buckets={hash_buckets}, vocabulary={vocabulary}"
        )
    if hash_buckets is not None:
        sizes, assumptions = _bucket_counts(hash_buckets), ()
    else:
        _check_vocabulary(vocabulary)
        sizes = [len(values) + 1 for values in vocabulary]
        assumptions = ("the vocabulary of the categorical features is public",)
    rows = _read_rows(path, num_rows)
    labels = _integers(path, [row[0] for row in rows], "label")
    if not np.isin(labels, (0, 1)).all():
        raise ValueError(
            "Argument `path` must name a file whose first field is 0 or 1. "
            f"Received: path={str(path)!r} with labels {sorted(set(labels.tolist()))[:5]}"
        )
    integers = np.stack(
        [
            _counts(path, [row[1 + i] for row in rows], f"count {i + 1}")
            for i in range(NUM_INTEGERS)
        ],
        axis=1,
    )
    ids = []
    for i in range(_NUM_CATEGORICAL):
        values = np.array([row[1 + NUM_INTEGERS + i] for row in rows], dtype=bytes)
        distinct, places = np.unique(values, return_inverse=True)
        if vocabulary is None:
            of_distinct = tf.strings.to_hash_bucket_fast(distinct.astype(object), sizes[i]).numpy()
        else:
            known = {str(value).encode(): n + 1 for n, value in enumerate(vocabulary[i])}
            known.pop(b"", None)
            of_distinct = np.array([known.get(value, 0) for value in distinct], np.int64)
        ids.append(of_distinct[places])
    origin = Origin.all_of([Origin.of(vocabulary), held_out_by_place(test_fraction)])
    return click_data(labels, integers, ids, sizes, test_fraction, assumptions, origin)


def _bucket_counts(hash_buckets):
    counts = hash_buckets
    if isinstance(counts, numbers.Integral) and not isinstance(counts, bool):
        counts = [counts] * _NUM_CATEGORICAL
    valid = isinstance(counts, (list, tuple)) and len(counts) == _NUM_CATEGORICAL
    if not valid or not all(isinstance(c, numbers.Integral) and c >= 1 for c in counts):
        raise ValueError(
            "Argument `hash_buckets` must be a positive integer or 26 of them. "
            f"Received: hash_buckets={hash_buckets}"
        )
    return [int(count) for count in counts]


def _check_vocabulary(vocabulary):
    lists = list(vocabulary)
    if len(lists) != _NUM_CATEGORICAL or any(isinstance(v, (str, bytes)) for v in lists):
        raise ValueError(
            "Argument `vocabulary` must hold 26 sequences of values, one for each of "
            f"{feature_names(_NUM_CATEGORICAL)[0]} to C26. Received: {len(lists)} of them"
        )


def _read_rows(path, num_rows):
    opened = gzip.open if _is_gzip(path) else open
    rows = []
    with opened(path, "rb") as lines:
        for number, line in enumerate(lines, start=1):
            if num_rows is not None and len(rows) >= num_rows:
                break
            fields = line.rstrip(b"\r\n").split(b"\t")
            if len(fields) != _NUM_FIELDS:
                raise ValueError(
                    f"Argument `path` must name a file of {_NUM_FIELDS} tab-separated fields a "
                    f"line. Received: path={str(path)!r}, line {number} with {len(fields)} fields"
                )
            rows.append(fields)
    if not rows:
        raise ValueError(
            f"Argument `path` must name a file with rows. Received: path={str(path)!r}, empty"
        )
    return rows


def _is_gzip(path):
    with open(path, "rb") as file:
        return file.read(2) == b"\x1f\x8b"


def _integers(path, fields, what):
    try:
        return np.array([field or 0 for field in fields]).astype(np.int64)
    except ValueError as error:
        raise ValueError(
            f"Argument `path` must name a file whose {what} fields are integers ({error}). "
            f"Received: path={str(path)!r}"
        ) from error


def _counts(path, fields, what):
    """float64 of whole or decimal counts; what is missing is 0."""
    try:
        counts = np.array([field or 0 for field in fields]).astype(np.float64)
    except ValueError as error:
        raise ValueError(
            f"Argument `path` must name a file whose {what} fields are numbers ({error}). "
            f"Received: path={str(path)!r}"
        ) from error
    if not np.isfinite(counts).all():
        raise ValueError(
            f"Argument `path` must name a file whose {what} fields are finite. "
            f"Received: path={str(path)!r}"
        )
    return counts
