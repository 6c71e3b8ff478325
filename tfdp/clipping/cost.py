"""Which way to the norm of an outer-product gradient is cheaper, in operations and bytes.

Forming a_i^T s_i costs T·p·r multiplications in small matrices and holds p·r numbers for each
example, which the clipped sum then reads instead of multiplying again. The gram way costs
T²·(p + r) in small matrices, and one large matrix product for the clipped sum.
"""

# Seconds on the machine the table in docs/ was measured on; only their ratios matter.
_SMALL_FLOP = 1 / 20e9  # batched small matrix products
_LARGE_FLOP = 1 / 80e9  # one large matrix product
_BYTE = 1 / 10e9
_ITERATION = 1e-4  # one turn of a loop
# Numbers in the largest matrix of which each example gets one of its own.
_LARGEST_FORMED = 1 << 17


def costs(positions, rows, columns):
    """Estimated seconds for each example: {strategy: seconds}.

    Args:
        positions: T, or None if unknown.
        rows, columns: p and r.
    """
    t = positions or 64
    large = 2 * t * rows * columns * _LARGE_FLOP
    return {
        "formed": 2 * t * rows * columns * _SMALL_FLOP + 3 * 4 * rows * columns * _BYTE,
        "gram": 2 * t * t * (rows + columns) * _SMALL_FLOP + large + 3 * 4 * t * t * _BYTE,
        "looped": 2 * large + 2 * 4 * rows * columns * _BYTE + _ITERATION,
    }


def strategy(positions, rows, columns):
    """How to find the norms of outer-product gradients.

    - "single": one position, ‖a‖²·‖s‖².
    - "formed": each example's matrix, held and reused for the clipped sum. Only where it is no
      larger than its own factors and smaller than a table.
    - "gram": inner products between positions.
    - "looped": each example's matrix, one example at a time.
    """
    if positions == 1:
        return "single"
    t = positions or 64
    seconds = costs(positions, rows, columns)
    if rows * columns > min(t * (rows + columns), _LARGEST_FORMED):
        del seconds["formed"]
    if rows * columns <= _LARGEST_FORMED:
        del seconds["looped"]
    return min(seconds, key=seconds.get)
