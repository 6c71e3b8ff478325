"""Which way to the norm of an outer-product gradient is cheaper, in operations and bytes.

Four ways, for left (T, p) and right (T, r) of one example:

- "single": one position, ‖left‖²·‖right‖².
- "per_example": the example's own (p, r) matrix, kept, and read again for the clipped sum
  instead of multiplying again. Only where it is no larger than its own factors, and never for a
  table.
- "gram": inner products between positions; nothing of size p·r.
- "looped": the (p, r) matrices of one example after another, none of them kept.
"""

# Seconds on the machine where benchmarks/step_time.py was tuned; only their ratios matter.
_OPERATION = 1 / 200e9
_BYTE = 1 / 14e9
_ITERATION = 2e-5
# Numbers in the largest matrix of which each example gets one of its own.
LARGEST_PER_EXAMPLE = 1 << 18


def costs(positions, rows, columns):
    """Estimated seconds for each example, by strategy.

    Args:
        positions: T, or None if unknown.
        rows, columns: p and r.
    """
    t = positions or 64
    product = 2 * t * rows * columns * _OPERATION
    matrix = rows * columns * _BYTE
    return {
        "per_example": product + 10 * matrix,
        "gram": product + 2 * t * t * (rows + columns) * _OPERATION + 28 * t * t * _BYTE,
        "looped": 2 * product + 5 * matrix + _ITERATION,
    }


def strategy(positions, rows, columns):
    """The cheapest of the ways that are allowed for this shape."""
    if positions == 1:
        return "single"
    t = positions or 64
    seconds = costs(positions, rows, columns)
    if rows * columns > min(t * (rows + columns), LARGEST_PER_EXAMPLE):
        del seconds["per_example"]
    if rows * columns <= LARGEST_PER_EXAMPLE:
        del seconds["looped"]
    return min(seconds, key=seconds.get)
