"""How a model is asked, once it is exported."""

import dataclasses
from collections.abc import Callable


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
