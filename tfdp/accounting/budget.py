"""The privacy budget, and what a delta has to satisfy."""

import dataclasses

from tfdp import _validate


@dataclasses.dataclass(frozen=True)
class PrivacyBudget:
    """An (epsilon, delta) that must not be exceeded.

    Args:
        epsilon: positive and finite.
        delta: strictly between 0 and 1; compared with 1/n if n is known (`check_delta`).

    Raises:
        ValueError: if either is out of range.

    Example:

    >>> PrivacyBudget(epsilon=8, delta=1e-4)
    PrivacyBudget(epsilon=8.0, delta=0.0001)
    """

    epsilon: float
    delta: float

    def __post_init__(self):
        object.__setattr__(self, "epsilon", _validate.positive("epsilon", self.epsilon))
        object.__setattr__(self, "delta", _validate.open_unit("delta", self.delta))


def check_delta(delta, num_examples, name="num_examples"):
    """Refuses a delta above 1/n, at which publishing a random record is "private".

    Args:
        delta: a probability in (0, 1).
        num_examples: n, the number of records (or users) that are protected.
        name: of the argument that n was given as, for messages.

    Returns:
        A remark for the privacy statement if delta equals 1/n (to a relative 1e-9), else "".

    Raises:
        ValueError: if delta exceeds 1/n (MATH.md section 7).
    """
    delta = _validate.open_unit("delta", delta)
    num_examples = _validate.count(name, num_examples)
    largest = 1.0 / num_examples
    if abs(delta - largest) <= 1e-9 * largest:
        return (
            f"delta equals 1/n for n = {num_examples}: it allows the release of one record in "
            "expectation. Choose a delta well below 1/n."
        )
    if delta > largest:
        raise ValueError(
            f"Argument `delta` must be at most 1/{name} = {largest:.6g}: a larger delta "
            "would allow a mechanism that publishes one random record. Choose a smaller delta. "
            f"Received: delta={delta}, {name}={num_examples}"
        )
    return ""
