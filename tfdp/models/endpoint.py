"""How a model is asked, once it is exported."""

import dataclasses
from collections.abc import Callable

_BEST = 10  # items that an exported model returns unless it is told otherwise


@dataclasses.dataclass(frozen=True)
class Endpoint:
    """What the `serve` signature of an exported model computes.

    Attributes:
        function: takes tensors as the signature says, returns a dict of tensors.
        signature: list of `tf.TensorSpec`.
        tracked: the Keras objects whose variables it reads.
        others: dict of the name of another signature to (function, signature).
    """

    function: Callable
    signature: list
    tracked: list
    others: dict = dataclasses.field(default_factory=dict)


def number_of_best(k, num_items):
    """How many items an exported model returns: k; for None 10, or all where there are fewer.

    Raises:
        ValueError: if k is no integer from 1 to num_items.
    """
    k = min(_BEST, num_items) if k is None else k
    if k != int(k) or not 1 <= k <= num_items:
        raise ValueError(
            f"Argument `k` must lie between 1 and num_items={num_items}. Received: k={k}"
        )
    return k
