"""The only source of random numbers for batches: a fresh generator for every pass over the data."""

import numpy as np

from tfdp import _validate


class GeneratorSource:
    """Makes numpy generators of which no two share a state.

    Without a seed each one is keyed by 128 bits of the operating system's entropy, so that the
    draws of one epoch, of a resumed run or of another process tell nothing about the next. No
    state is kept, and so none can be saved or replayed.

    Args:
        seed: non-negative integer for tests only; `None` takes entropy. The generators made from
            a seed still differ from each other: they are spawned one after the other.

    Raises:
        ValueError: `seed` is neither `None` nor a non-negative integer.
    """

    def __init__(self, seed=None):
        _validate.seed(seed)
        self._parent = None if seed is None else np.random.SeedSequence(seed)

    @property
    def seeded(self):
        """Whether a seed was fixed; the privacy statement says so."""
        return self._parent is not None

    def fresh(self):
        """A new generator, independent of every other one."""
        sequence = np.random.SeedSequence() if self._parent is None else self._parent.spawn(1)[0]
        return np.random.Generator(np.random.PCG64DXSM(sequence))
