"""Which way to the norm of an outer-product gradient is cheaper, and what the fallback costs.

Four ways to a norm, in operations and bytes, for left (T, p) and right (T, r) of one example:

- "single": one position, ‖left‖²·‖right‖².
- "per_example": the example's own (p, r) matrix, kept, and read again for the clipped sum
  instead of multiplying again. Only where it is no larger than its own factors, and never for a
  table.
- "gram": inner products between positions; nothing of size p·r.
- "looped": the (p, r) matrices of one example after another, none of them kept.
"""

import dataclasses

# Seconds on the machine where benchmarks/step_time.py was tuned; only their ratios matter.
_OPERATION = 1 / 200e9
_BYTE = 1 / 14e9
_ITERATION = 2e-5
# Seconds of the noise of one coordinate, and of its update by Adam.
_COORDINATE = 4e-9
# Seconds of a step of any size, of one step of a loop, and of a layer that is run by itself.
_STEP, _LOOP, _APART = 5e-4, 1e-4, 5e-5
# Examples in the batch for which the fallback is estimated.
EXAMPLES = 64
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


@dataclasses.dataclass(frozen=True)
class Work:
    """What one example is to a layer call.

    Attributes:
        parameters: numbers in the variables.
        positions: places of the outputs at which the parameters are used.
        steps: of the longest loop inside; 1 without loops.
    """

    parameters: int
    positions: int
    steps: int


def slowdown(work, apart, others):
    """About how often as long a step takes if a call has no rule, for `EXAMPLES` examples.

    Args:
        work: the call's `Work`.
        apart: whether examples follow one another, to draw random numbers of their own.
        others: the `Work` of every call of the model, this one included.
    """
    plain = step_seconds(others, EXAMPLES)
    # Every step of a vectorized loop adds up a copy of the gradient for each example.
    copies = 10 * work.parameters * work.steps * EXAMPLES * _BYTE
    runs = _APART * work.steps * EXAMPLES if apart else 0.0
    return 1.0 + (_plain_seconds(work, EXAMPLES) + copies + runs) / plain


def step_seconds(works, examples):
    """About how long a step without privacy takes that is made of these calls."""
    return _STEP + sum(_plain_seconds(work, examples) for work in works)


def noise_seconds(coordinates):
    """About how long noise for so many coordinates takes, and their update."""
    return coordinates * _COORDINATE


def _plain_seconds(work, examples):
    uses = max(work.positions, work.steps)
    loop = _LOOP * work.steps if work.steps > 1 else 0.0
    return 6 * work.parameters * uses * examples * _OPERATION + loop
