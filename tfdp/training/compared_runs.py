"""Two runs of a few examples, and what differs between them for the examples that are in both."""

import dataclasses

import numpy as np
import tensorflow as tf

from tfdp.training.replaced_rows import ROWS, ReplacedRows

_TOLERANCE = 1e-4
_OF_STEPS = 0.05  # of gradients that a rounded ReLU may have moved


@dataclasses.dataclass
class Compared:
    """Two runs, the first event that differs (None if none does), and what no run repeats."""

    rows: ReplacedRows
    first: dict
    second: dict
    changed: tuple | None
    unrepeatable: set

    @property
    def has_moved(self):
        return not np.array_equal(*self.rows.stay)


def compare(run, count, may_move, tolerance=_TOLERANCE):
    """The `Compared` of two runs, of examples that are chosen at random.

    Args:
        run: function of the examples of a batch, and of those that are differentiated, to a dict of
            events by key.
        count: number of examples to choose from.
        may_move: as for `ReplacedRows.draw`.
        tolerance: by how much gradients may differ, relative to the largest.
    """
    rows = ReplacedRows.draw(count, may_move)
    first = run(rows.first, rows.first_differentiated)
    second = run(rows.second, rows.second_differentiated)
    unrepeatable = set()
    changed = _changed(first, second, rows, unrepeatable, tolerance)
    if changed:
        again, everywhere = run(rows.first, rows.first_differentiated), [np.arange(ROWS)] * 2
        unrepeatable = {key for key, _ in _differences(first, again, everywhere, everywhere)}
        changed = _changed(first, second, rows, unrepeatable, tolerance)
    return Compared(rows, first, second, changed, unrepeatable)


def without_rounding(run, count, compared):
    """Compares once more what differed in rows that had moved.

    A product may round a row by its place, by 1e-7: beside a step of what is computed of it, that
    comes out otherwise. A gradient has such steps wherever a ReLU is at zero, small ones each; so
    one that differs where nothing before it does counts if it is by much, or in rows that stay in
    their places.
    """
    for _ in range(2):  # the same by chance in one draw of 500
        again = compare(run, count, may_move=False)
        if again.changed:
            return again
    of_gradients = compared.changed[0][0] == "gradient"
    return compare(run, count, True, _OF_STEPS if of_gradients else _TOLERANCE)


def _changed(first, other, rows, unrepeatable, tolerance):
    """The first event that differs in rows that stayed, and by how much; None if none does."""
    for key, by in _differences(first, other, rows.stay, rows.compared, tolerance):
        if key not in unrepeatable:
            return key, by
    return None


def _differences(first, other, stay, compared, tolerance=_TOLERANCE):
    """Keys of the events that differ in the rows that stay, gradients in those to compare."""
    for key, event in first.items():
        if event.what == "again" or key not in other:
            continue
        if event.what == "gradient":
            by = difference(event.value, other[key].value, *compared, tolerance)
        else:
            by = difference(event.value, other[key].value, *stay)
        if by:
            yield key, by


def difference(a, b, rows, others, tolerance=_TOLERANCE):
    """0 if the rows are equal but for rounding, else by how much they differ."""
    a, b = numbers(a)[rows], numbers(b)[others]
    if a.shape != b.shape:  # as long as the longest row: what both have must be equal
        common = tuple(slice(min(sizes)) for sizes in zip(a.shape, b.shape, strict=True))
        a, b = a[common], b[common]
    if not np.issubdtype(a.dtype, np.floating):
        return float(np.mean(a != b))
    scale = np.max(np.abs(a), initial=1e-6, where=np.isfinite(a))
    if np.allclose(a, b, rtol=tolerance, atol=tolerance * scale, equal_nan=True):
        return 0.0
    by = np.abs(a - b)
    return float(np.max(by, initial=0.0, where=np.isfinite(by))) or np.inf


def numbers(tensor):
    """A tensor as a numpy array, bfloat16 as float32."""
    return (tf.cast(tensor, tf.float32) if tensor.dtype == tf.bfloat16 else tensor).numpy()
