"""Argument checks for all packages. Each message names the argument and the value received."""

import math
import numbers

import numpy as np


def _refuse(name, value, requirement, hint):
    advice = f"; {hint}" if hint else ""
    raise ValueError(f"Argument `{name}` must be {requirement}{advice}. Received: {name}={value!r}")


def is_number(value):
    """Whether a value is a real number, and no truth value."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool | np.bool_)


def is_integer(value):
    """Whether a value is an integer, and no truth value."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def plain(number):
    """An int or a float as they are, numpy's as the one of the two that it is: JSON knows these."""
    if isinstance(number, int | float):
        return number
    return int(number) if is_integer(number) else float(number)


def positive(name, value, hint=""):
    """A finite float above 0; `hint` says what to do."""
    if not (is_number(value) and 0 < value < math.inf):
        _refuse(name, value, "a positive, finite number", hint)
    return float(value)


def not_negative(name, value, hint=""):
    """A finite float of at least 0."""
    if not (is_number(value) and 0 <= value < math.inf):
        _refuse(name, value, "a finite number of at least 0", hint)
    return float(value)


def noise_multiplier(value):
    """A float of at least 0 whose square is a finite number, too."""
    if not (is_number(value) and 0 <= value <= 1e150):
        _refuse("noise_multiplier", value, "a number of at least 0 and at most 1e150", "")
    return float(value)


def open_unit(name, value):
    """A float strictly between 0 and 1."""
    if not (is_number(value) and 0 < value < 1):
        _refuse(name, value, "a number strictly between 0 and 1", "")
    return float(value)


def probability(name, value):
    """A float in (0, 1]."""
    if not (is_number(value) and 0 < value <= 1):
        _refuse(name, value, "a probability above 0 and at most 1", "")
    return float(value)


def count(name, value, hint=""):
    """An int of at least 1 (integral floats are refused)."""
    if not (is_integer(value) and value >= 1):
        _refuse(name, value, "an integer of at least 1", hint)
    return int(value)


def seed(value):
    """None, or an integer of at least 0."""
    if value is not None and not (is_integer(value) and value >= 0):
        _refuse("seed", value, "None (fresh entropy) or an integer of at least 0", "")
    return None if value is None else int(value)


def one_of(name, value, allowed):
    """One of a few strings, or None where that is allowed."""
    if value not in allowed:
        choices = ", ".join("None" if one is None else f'"{one}"' for one in allowed)
        raise ValueError(f"Argument `{name}` must be one of {choices}. Received: {name}={value!r}")
    return value
