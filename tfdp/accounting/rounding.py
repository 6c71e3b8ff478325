"""Numbers as they are printed, rounded so that no guarantee reads stronger than it is."""

import decimal
import math


def round_up(value, digits=4):
    """Text of a value with some significant digits, never below it: of ε, δ, a probability."""
    return _rounded(value, digits, decimal.ROUND_CEILING)


def round_down(value, digits=6):
    """Text of a value with some significant digits, never above it: of a noise multiplier."""
    return _rounded(value, digits, decimal.ROUND_FLOOR)


def round_up_to(value, decimals):
    """The value rounded up to a number of decimals, as a float never below it."""
    if not math.isfinite(value):
        return value
    digit = decimal.Decimal(1).scaleb(-decimals)
    rounded = float(decimal.Decimal(repr(float(value))).quantize(digit, decimal.ROUND_CEILING))
    return rounded if rounded >= value else math.nextafter(rounded, math.inf)


def _rounded(value, digits, rounding):
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    exact = decimal.Decimal(repr(float(value)))
    digit = decimal.Decimal(1).scaleb(exact.adjusted() + 1 - digits)
    return f"{float(exact.quantize(digit, rounding)):.15g}"
