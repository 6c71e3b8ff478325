"""Columns of a table: of a CSV file, a Parquet file or a DataFrame, as arrays."""

from __future__ import annotations

import csv
import gzip
import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tfdp.data.datasets.single_values import as_array
from tfdp.data.provenance.origins import Origin

_PARQUET = (".parquet", ".pq")


def read_columns(
    data: Any, names: Sequence[str | int], delimiter: str | None = None
) -> tuple[list[np.ndarray], Origin]:
    """The named columns of a table, each an array (n,), and their `Origin`.

    Args:
        data: path of a CSV file (.gz, too) or of a Parquet file; a DataFrame of pandas, polars or
            pyarrow; or a dict of arrays.
        names: of the columns. Integers count from 0, and the file then has no header.
        delimiter: of a CSV file. Default: a tab in files called .tsv, else a comma. Fields may be
            quoted where it is one character.

    Raises:
        ValueError: a column is missing, a row has another number of fields than the first, or
            the table is empty. Messages name lines, and nothing that stands in them.
    """
    if not isinstance(data, (str, os.PathLike)):
        columns = _of_frame(data, names)
        return [as_array(column) for column in columns], Origin.of(columns)
    path = pathlib.Path(data)
    if path.suffix in _PARQUET:
        return [as_array(column) for column in _of_frame(_parquet(path, names), names)], Origin()
    delimiter = delimiter or ("\t" if ".tsv" in path.suffixes else ",")
    return _of_text(path, names, delimiter), Origin()


def read_lines(path: str | os.PathLike) -> Iterator[str]:
    """Lines of a UTF-8 file, of a compressed one (gzip), too."""
    with open(path, "rb") as file:
        opened = gzip.open if file.read(2) == b"\x1f\x8b" else open
    with opened(path, "rt", encoding="utf-8-sig", newline="") as lines:
        yield from lines


def _of_text(path, names, delimiter):
    lines = read_lines(path)
    if len(delimiter) == 1:
        rows = csv.reader(lines, delimiter=delimiter)
    else:
        rows = (line.rstrip("\r\n").split(delimiter) for line in lines)
    places, width, first = names, None, 1
    if any(isinstance(name, str) for name in names):
        header, first = next(rows, []), 2
        places, width = _places(path, header, names), len(header)
    found = [[] for _ in names]
    for number, row in enumerate(rows, start=first):
        if not row or row == [""]:
            continue
        width = len(row) if width is None else width
        if len(row) != width or max(places) >= width:
            # What stands in the line is private, and stays out of the message.
            raise ValueError(
                f"{path} must have the same number of fields in every line, including the columns "
                f"{list(names)}. If the separator is not {delimiter!r}, give `delimiter`. "
                f"Received, in line {number}: {len(row)} fields"
            )
        for values, place in zip(found, places, strict=True):
            values.append(row[place])
    if not found[0]:
        raise ValueError(f"{path} must hold at least one line of data. Received: an empty file")
    return [np.array(values) for values in found]


def _places(path, header, names):
    missing = [name for name in names if name not in header]
    if missing:
        raise ValueError(
            f"{path} must have a header with the columns {list(names)}. Put the names in its "
            "first line. If it has no header, give the columns by number, from 0. Received: "
            f"{header}"
        )
    return [header.index(name) for name in names]


def _of_frame(frame, names):
    columns = list(frame) if isinstance(frame, dict) else getattr(frame, "columns", None)
    if columns is None:
        raise ValueError(
            "Argument `data` must be a path, a DataFrame or a dict of arrays. "
            f"Received: data of type {type(frame).__name__}"
        )
    columns = list(getattr(frame, "column_names", columns))  # pyarrow keeps its names there
    missing = [name for name in names if name not in columns]
    if missing:
        raise ValueError(
            f"Argument `data` must have the columns {list(names)}. Received: columns {columns}"
        )
    found = [frame[name] for name in names]
    if not len(found[0]):
        raise ValueError("Argument `data` must hold at least one row. Received: none")
    return found


def _parquet(path, names):
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise ValueError(
            f"Reading Parquet files needs pyarrow: pip install 'tfdp[parquet]'. Received: {path}"
        ) from error
    if any(not isinstance(name, str) for name in names):
        raise ValueError(
            f"The columns of a Parquet file must be given by name. Received: columns {list(names)}"
        )
    known = parquet.read_schema(path).names
    missing = [name for name in names if name not in known]
    if missing:
        raise ValueError(f"{path} must have the columns {list(names)}. Received: {known}")
    table = parquet.read_table(path, columns=list(names))
    return {name: table[name] for name in names}
