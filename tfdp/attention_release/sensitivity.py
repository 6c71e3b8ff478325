"""How far the released matrix can move when one unit of privacy changes (MATH.md section 6)."""

import math

from tfdp._validate import count, is_number

UNITS = ("sequence", "token", "feature")
FORMS = ("gram", "stacked", "product")


def frobenius_sensitivity(unit, form, length, max_norm, neighbor_distance=None):
    """Delta_F: the largest Frobenius norm of the change of a matrix between neighbours.

    Formal guarantees: an upper bound over all inputs whose rows ("sequence", "token") or columns
    ("feature") are clipped to `max_norm`. Write n, alpha, beta for length, norm and distance.

    | unit | gram, X X' | stacked, Z Z' for Z = [Q; K] | product, Q K' |
    |---|---|---|---|
    | sequence | sqrt(2) n alpha^2 | sqrt(2) 2n alpha^2 | 2 n alpha^2 |
    | token | sqrt(2(n-1) alpha^2 beta^2 + D^2) | sqrt(4(2n-2) alpha^2 beta^2 + 2 D^2 + 2 P^2) | sqrt(2(n-1) alpha^2 beta^2 + P^2) |
    | feature | F | F | F / sqrt(2) |

    - D, the change of a squared norm: beta (2 alpha - beta) up to beta = alpha, alpha^2 beyond;
      for "gram" and n >= 2 the off-diagonal and the diagonal are bounded together, which gives
      D = beta (2 alpha - beta) throughout (at distance t the sum t^2 (2(n-1) alpha^2 +
      (2 alpha - t)^2) grows with t). Reached exactly by collinear rows.
    - P, the change of an inner product q.k when both vectors move by at most beta:
      beta sqrt(4 alpha^2 - beta^2) up to beta = sqrt(2) alpha, 2 alpha^2 beyond.
    - F = max ||x x' - y y'||_F over columns at distance at most beta, exactly:
      beta (2 alpha - beta) up to beta = 2 alpha / 3, then beta sqrt(2 alpha^2 - beta^2 / 2) up to
      beta = sqrt(2) alpha, then sqrt(2) alpha^2. (The paper's bound is 2 alpha beta.)

    Args:
        unit: "sequence" (every row may change), "token" (one row of the input, so one row of X,
            or one of Q and one of K) or "feature" (one column).
        form: "gram", "stacked" or "product"; see the table.
        length: n, the rows of X, or of Q and of K each.
        max_norm: alpha, the l2 norm that rows or columns are clipped to.
        neighbor_distance: beta, the l2 distance by which the row (of Q and of K alike) or column
            may move; `None`, or anything from 2 alpha on, is any replacement. Only `None` for
            "sequence".

    Returns:
        A float.

    Raises:
        ValueError: if an argument is unknown or out of range.

    Source: MATH.md section 6; the cases beyond it are derived above.
    """  # noqa: E501
    check_unit(unit, max_norm, neighbor_distance)
    if form not in FORMS:
        raise ValueError(f"Argument `form` must be one of {FORMS}. Received: form={form!r}")
    n, a = count("length", length), float(max_norm)
    b = 2 * a if neighbor_distance is None else min(float(neighbor_distance), 2 * a)
    if unit == "sequence":
        return {"gram": math.sqrt(2) * n, "stacked": math.sqrt(2) * 2 * n, "product": 2 * n}[
            form
        ] * a**2
    if unit == "feature":
        return _outer_product_change(a, b) / (math.sqrt(2) if form == "product" else 1)
    others = (a * b) ** 2
    if form == "gram":
        diagonal = b * (2 * a - b) if n > 1 else _squared_norm_change(a, b)
        return math.sqrt(2 * (n - 1) * others + diagonal**2)
    if form == "product":
        return math.sqrt(2 * (n - 1) * others + _inner_product_change(a, b) ** 2)
    own = 2 * _squared_norm_change(a, b) ** 2 + 2 * _inner_product_change(a, b) ** 2
    return math.sqrt(4 * (2 * n - 2) * others + own)


def check_unit(unit, max_norm, neighbor_distance):
    """Validates what defines neighbours.

    Raises:
        ValueError: if an argument is unknown or out of range.
    """
    if unit not in UNITS:
        raise ValueError(f"Argument `unit` must be one of {UNITS}. Received: unit={unit!r}")
    for name, value in (("max_norm", max_norm), ("neighbor_distance", neighbor_distance)):
        if value is None and name == "neighbor_distance":
            continue
        if not is_number(value) or not 0 < value < 1e100:
            raise ValueError(
                f"Argument `{name}` must be a positive, finite number. Received: {name}={value!r}"
            )
    if unit == "sequence" and neighbor_distance is not None:
        raise ValueError(
            'Argument `neighbor_distance` must be None with unit="sequence", which protects any '
            'change of the whole input; it limits the change of one "token" or "feature". '
            f"Received: neighbor_distance={neighbor_distance}"
        )


def largest_row_norm(unit, max_norm, width):
    """Largest l2 norm of a row after clipping; `width` is d, the number of columns."""
    return math.sqrt(width) * max_norm if unit == "feature" else float(max_norm)


def _squared_norm_change(a, b):
    return b * (2 * a - b) if b <= a else a**2


def _inner_product_change(a, b):
    return b * math.sqrt(4 * a**2 - b**2) if b <= math.sqrt(2) * a else 2 * a**2


def _outer_product_change(a, b):
    if b <= 2 * a / 3:
        return b * (2 * a - b)
    return b * math.sqrt(2 * a**2 - b**2 / 2) if b <= math.sqrt(2) * a else math.sqrt(2) * a**2
