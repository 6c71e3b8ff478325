"""Values of a table as text, integers and times.

Each value is read by itself, whatever stands in other rows: otherwise one odd record would change
how all others are read, and no ε covers that.
"""

from __future__ import annotations

import contextlib
import decimal
import math
import numbers
from typing import Any

import numpy as np

#: From here on, not every whole number is a float64.
_EXACT = 2**53


def as_array(column: Any) -> np.ndarray:
    """A column as an array (n,).

    NumPy gives all values of a list one type, and makes integers floats if one of them is missing.
    Such columns become arrays of objects.
    """
    if isinstance(column, (list, tuple)):
        return _of_objects(column)
    found = np.asarray(column)
    as_list = getattr(column, "to_pylist", None) or getattr(column, "to_list", None)
    return _of_objects(as_list()) if found.dtype.kind == "f" and as_list else found


def _of_objects(values):
    found = np.empty(len(values), object)
    found[:] = values
    return found


def as_text(column: np.ndarray) -> np.ndarray:
    """(n,) str; whole numbers as integers are written, and "" for what is missing.

    Raises:
        ValueError: a float is too large to be a certain whole number.
    """
    if column.dtype.kind == "f":
        column = column.astype(object)
    if column.dtype.kind != "O":
        return column.astype(str)
    return np.array([_written(value) for value in column])


def _written(value):
    # pandas.NA has no truth value, not even compared with itself.
    if value is None or type(value).__name__ in ("NAType", "NaTType") or value != value:
        return ""
    if isinstance(value, bytes):
        return value.decode()
    if not (isinstance(value, (float, np.floating)) and value.is_integer()):
        return str(value)
    if abs(value) >= _EXACT:
        raise ValueError(
            "Columns of floats must hold numbers below 2**53, because larger ids would be rounded "
            "to others. Give the column as integers or as text (a column of pandas in which some "
            'are missing: as "Int64"). Received: a larger number'
        )
    return str(int(value))


def as_integers(column: np.ndarray) -> np.ndarray | None:
    """int64 of what are integers, as numbers or as text; None if one of them is none."""
    if column.dtype.kind == "i":
        return column.astype(np.int64)
    try:
        return as_text(column).astype(np.int64)
    except (ValueError, OverflowError):
        return None


def ranks(column: np.ndarray) -> np.ndarray:
    """(n,) places of ids among the different ones: integers by size, then others as text."""
    if column.dtype.kind in "iu":
        return np.unique(column, return_inverse=True)[1]
    distinct, places = np.unique(as_text(column), return_inverse=True)
    order = sorted(range(len(distinct)), key=lambda i: _by_size(distinct[i]))
    return np.argsort(order)[places]


def _by_size(text):
    try:
        return 0, int(text), text
    except ValueError:
        return 1, 0, text


def times(column: np.ndarray) -> list[np.ndarray]:
    """Keys by which `numpy.lexsort` orders numbers, or dates.

    Raises:
        ValueError: a value is missing or not finite, is neither, or there are both.
    """
    if column.dtype.kind in "iu":
        return [column]
    if column.dtype.kind == "M":
        return _dates(column)
    if column.dtype.kind in "SU":
        with contextlib.suppress(ValueError, OverflowError):
            return [column.astype(np.int64)]
    values = column.tolist()
    found = [_number(value) for value in values]
    if all(number is None for number in found):
        # numpy has no time zones: Z, which is UTC, is the only one that may stand there.
        return _dates([v.strip().rstrip("Z") if isinstance(v, str) else v for v in values])
    if None in found:
        raise ValueError("a value is missing, or there are numbers and dates")
    # Of integers, float64 keeps 53 bits, which are too few for times in nanoseconds.
    wholes = [math.floor(number) for number in found]
    rests = [float(number - whole) for number, whole in zip(found, wholes, strict=True)]
    return [np.array(rests), np.array(wholes, np.int64)]


def _number(value):
    """An exact number, or None of what is none."""
    if isinstance(value, (str, bytes)):
        for kind in (int, float):
            with contextlib.suppress(ValueError):
                return kind(value)
    elif isinstance(value, numbers.Integral):
        return int(value)
    elif isinstance(value, numbers.Real):
        return float(value)
    return value if isinstance(value, decimal.Decimal) else None


def _dates(values):
    # Nanoseconds reach no further than the year 2262, and begin again there.
    fine, coarse = (np.asarray(values, f"datetime64[{unit}]") for unit in ("ns", "us"))
    if np.isnat(coarse).any():
        raise ValueError("a date is missing")
    return [fine, coarse]
