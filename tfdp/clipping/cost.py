"""Which way to the norm of an outer-product gradient is cheaper, in operations and bytes.

Forming a_i^T s_i costs T·p·r multiplications in small matrices and holds p·r numbers for each
example, which the clipped sum then reads instead of multiplying again. The gram way costs
T²·(p + r) in small matrices, and one large matrix product for the clipped sum.
"""

# Seconds on the machine the table in docs/ was measured on; only their ratios matter.
_SMALL_FLOP = 1 / 20e9  # batched small matrix products
_LARGE_FLOP = 1 / 80e9  # one large matrix product
_BYTE = 1 / 10e9


def costs(positions, rows, columns):
    """Estimated seconds for each example: (formed, gram).

    Args:
        positions: T, or None if unknown.
        rows, columns: p and r.
    """
    t = positions or 64
    formed = 2 * t * rows * columns * _SMALL_FLOP + 3 * 4 * rows * columns * _BYTE
    gram = (
        2 * t * t * (rows + columns) * _SMALL_FLOP
        + 2 * t * rows * columns * _LARGE_FLOP
        + 3 * 4 * t * t * _BYTE
    )
    return formed, gram


def cheaper_formed(positions, rows, columns):
    """Whether to form the per-example matrix: cheaper, and no larger than its own factors."""
    t = positions or 64
    if t == 1 or rows * columns > t * (rows + columns):
        return False
    formed, gram = costs(positions, rows, columns)
    return formed < gram
