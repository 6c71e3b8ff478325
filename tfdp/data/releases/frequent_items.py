"""A smaller vocabulary: the frequent items, and one that stands for all the others."""

import dataclasses

import numpy as np

from tfdp.data.datasets.sequences import Sequences
from tfdp.data.provenance.origins import Origin, OriginArray
from tfdp.data.releases.frequency import FrequencyRelease


@dataclasses.dataclass(frozen=True, eq=False)
class FrequentItems:
    """Maps items to the k most frequent ones, and all others to a shared item k + 1.

    Under differential privacy every row of an embedding table gets the same noise, but the signal
    is in the rows of the frequent items: fewer rows mean less noise. Rare items then differ only by
    their popularity. This is the idea of DP-FEST (MATH.md section 3), with the rare rows tied
    together instead of frozen.

    The choice is post-processing of `frequency`. These are public frequencies, or a
    `private_frequency` release, which is charged to the model that receives `.release`.

    Args:
        frequency: array of num_items + 1 probabilities (index 0 is padding), declared public, or
            a `FrequencyRelease`.
        k: number of items with their own row.

    Raises:
        ValueError: if k is not between 1 and the number of items.
    """

    frequency: object = dataclasses.field(repr=False)
    k: int

    def __post_init__(self):
        probabilities = np.asarray(getattr(self.frequency, "probabilities", self.frequency))
        if not 1 <= self.k < len(probabilities):
            raise ValueError(
                "Argument `k` must lie between 1 and the number of items, "
                f"{len(probabilities) - 1}. Received: k={self.k}"
            )
        rows = np.full(len(probabilities), self.k + 1, np.int32)
        rows[np.argsort(-probabilities[1:], kind="stable")[: self.k] + 1] = np.arange(
            1, self.k + 1, dtype=np.int32
        )
        rows[0] = 0
        object.__setattr__(self, "_probabilities", probabilities.astype(np.float64))
        object.__setattr__(self, "_rows", rows)

    @property
    def num_items(self):
        """k + 1."""
        return self.k + 1

    @property
    def release(self):
        """The frequencies of the k + 1 items, as a model's `item_frequency` takes them.

        The frequency of the shared item is the sum of its items' frequencies, at most 1: an upper
        bound on the probability that a sequence contains any of them.
        """
        sums = np.bincount(self._rows, self._probabilities, minlength=self.k + 2)
        sums = np.minimum(sums, 1.0)
        sums[0] = 1.0
        if isinstance(self.frequency, FrequencyRelease):
            return dataclasses.replace(self.frequency, probabilities=sums.astype(np.float32))
        return OriginArray.of(sums, Origin.of(self.frequency))

    def encode(self, sequences):
        """Ids of the full vocabulary to ids of the small one; arrays, or a pair (x, y).

        The result carries the release that chose the items: a model that is trained on it, or on
        batches drawn from it, is charged for the release.
        """
        chosen_by = Origin.of(self.frequency)
        if not isinstance(self.frequency, FrequencyRelease):
            assumed = "the item frequencies by which FrequentItems chose are public"
            chosen_by = Origin(chosen_by.releases, (assumed,))
        origin = Origin.all_of([Origin.of(sequences), chosen_by])
        if not isinstance(sequences, tuple):
            return OriginArray.of(self._rows[sequences], origin)
        pair = (OriginArray.of(self._rows[ids], origin) for ids in sequences)
        return Sequences(*pair, num_items=self.num_items, origin=origin)

    def decode(self, scores):
        """Scores (B, k + 2) of the small vocabulary to scores (B, num_items + 1) of all items.

        An item of the shared row gets that row's score and its share of the row's popularity.
        """
        share = self._probabilities / np.bincount(
            self._rows, self._probabilities, minlength=self.k + 2
        )[self._rows]  # fmt: skip
        with np.errstate(divide="ignore"):
            share = np.log(share)
        share[0] = -np.inf
        origin = Origin.of((scores, self.frequency))
        return origin.on(np.asarray(scores)[:, self._rows] + share)
