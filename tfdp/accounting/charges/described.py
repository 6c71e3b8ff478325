"""What users say of their own charges, kept apart from what accounting reads of an entry."""

from tfdp._validate import count

#: Name among the details of an entry that holds what users say. Accounting reads nothing in it.
DESCRIBED = "described"

#: Names of details that accounting, history, tuning or statement read. None of them is the user's.
READ_BY_ACCOUNTING = frozenset(
    {
        "adjacency", "assumptions", "correlation", "covers", "kind", "max_records_per_unit",
        "mechanism", "noise_multiplier", "not_covered", "num_examples", "one_run",
        "overflow_probability", "period", "release", "remarks", "run", "sampling", "seed",
        "selection", "steps", "unit", "unstated",
        DESCRIBED,
    }
)  # fmt: skip


def described(details, num_examples=None):
    """The details of an entry that a user charges.

    Args:
        details: dict of names and plain values by which the user describes it.
        num_examples: n of the data that it saw, or None.

    Raises:
        ValueError: for a name that accounting reads. A value under it would change what is stated,
            or would be ignored where the user means it.
    """
    taken = sorted(READ_BY_ACCOUNTING & details.keys())
    if taken:
        raise ValueError(
            f"Arguments {taken} have names that accounting itself reads, so ε would depend on "
            "your description. Choose other names. To say that a charge protects persons, pass "
            '`unit="person"` to `model.charge`. To say that it belongs to a period, pass '
            "`period` to the releases and samplers of `tfdp.data`, which check it. Received: "
            f"{taken}"
        )
    known = {} if num_examples is None else {"num_examples": count("num_examples", num_examples)}
    return {**known, DESCRIBED: details} if details else known
