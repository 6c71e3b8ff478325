"""Validators shared by the accounting package; each names the argument and what it received."""

import math
import numbers


def _real(name, value, requirement):
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ValueError(f"Argument `{name}` must be {requirement}. Received: {name}={value!r}")
    return float(value)


def positive(name, value):
    """A finite float above 0."""
    number = _real(name, value, "a positive, finite number")
    if not (number > 0 and math.isfinite(number)):
        raise ValueError(
            f"Argument `{name}` must be a positive, finite number. Received: {name}={value!r}"
        )
    return number


def not_negative(name, value):
    """A finite float of at least 0."""
    number = _real(name, value, "a finite number of at least 0")
    if not (number >= 0 and math.isfinite(number)):
        raise ValueError(
            f"Argument `{name}` must be a finite number of at least 0. Received: {name}={value!r}"
        )
    return number


def open_unit(name, value):
    """A float strictly between 0 and 1."""
    number = _real(name, value, "a number strictly between 0 and 1")
    if not 0 < number < 1:
        raise ValueError(
            f"Argument `{name}` must be a number strictly between 0 and 1. "
            f"Received: {name}={value!r}"
        )
    return number


def probability(name, value):
    """A float in (0, 1]."""
    number = _real(name, value, "a probability above 0 and at most 1")
    if not 0 < number <= 1:
        raise ValueError(
            f"Argument `{name}` must be a probability above 0 and at most 1. "
            f"Received: {name}={value!r}"
        )
    return number


def count(name, value):
    """An int of at least 1 (integral floats are refused)."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 1:
        raise ValueError(
            f"Argument `{name}` must be an integer of at least 1. Received: {name}={value!r}"
        )
    return int(value)


def one_of(name, value, allowed):
    """One of a few strings."""
    if value not in allowed:
        choices = ", ".join(f'"{choice}"' for choice in allowed)
        raise ValueError(f"Argument `{name}` must be one of {choices}. Received: {name}={value!r}")
    return value
