"""Bars and curves of one line of text, for tables in a terminal."""

import math
from collections.abc import Sequence

_EIGHTHS_WIDE = ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")
_EIGHTHS_HIGH = "▁▂▃▄▅▆▇█"


def bar(share: float) -> str:
    """A horizontal bar, of 16 characters for a share of 1."""
    eighths = round(8 * 16 * share)
    return "█" * (eighths // 8) + _EIGHTHS_WIDE[eighths % 8]


def curve(values: Sequence[float], highest: float) -> str:
    """One character for each value, in eighths of the highest value that the line can show."""
    if highest == 0:
        return _EIGHTHS_HIGH[0] * len(values)
    eighths = (8 * value / highest if math.isfinite(value) else 8 for value in values)
    return "".join(_EIGHTHS_HIGH[min(7, int(eighth))] for eighth in eighths)
