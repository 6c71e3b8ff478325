"""A line chart as SVG inside a page, in the page's own colours; no library is needed."""

import html
import math
from collections.abc import Sequence

from tfdp.accounting.rounding import round_up

_WIDTH, _HEIGHT = 320, 180
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 310, 12, 142


def line_chart(points: Sequence[tuple[float, float]], x_label: str, y_label: str) -> str:
    """The points joined by a line, over axes from 0; no label is below the value it stands for.

    Args:
        points: (x, y) pairs of numbers ≥ 0, by x.
        x_label, y_label: of the axes; together they are the text of the picture, too.
    """
    most_x, most_y = (max(values) or 1 for values in zip(*points, strict=True))
    most_y = _at_least(most_y)
    places = [
        (_LEFT + (_RIGHT - _LEFT) * x / most_x, _BOTTOM - (_BOTTOM - _TOP) * y / most_y)
        for x, y in points
    ]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    told = f"{y_label} by {x_label}: from {round_up(points[0][1])} to {round_up(points[-1][1])}"
    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{html.escape(told)}">',
        f'<path class="axes" d="M{_LEFT} {_TOP}V{_BOTTOM}H{_RIGHT}"/>',
        f'<polyline class="line" points="{line}"/>',
    ]
    parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.2"/>' for x, y in places]
    for share in (0, 0.5, 1):
        x, y = _LEFT + (_RIGHT - _LEFT) * share, _BOTTOM - (_BOTTOM - _TOP) * share
        parts += [
            _text(x, _BOTTOM + 15, f"{most_x * share:.4g}", "middle"),
            _text(_LEFT - 5, y + 4, f"{most_y * share:.3g}", "end"),
        ]
    parts += [
        _text((_LEFT + _RIGHT) / 2, _HEIGHT - 6, x_label, "middle"),
        f'<g transform="rotate(-90)">{_text(-(_TOP + _BOTTOM) / 2, 11, y_label, "middle")}</g>',
    ]
    return "".join([*parts, "</svg>"])


def _at_least(value):
    """A short number that is not below the value, for the end of an axis."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(s * power for s in (1, 1.2, 1.6, 2, 3, 4, 6, 8, 10) if s * power >= value)


def _text(x, y, text, anchor):
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}">{html.escape(text)}</text>'
