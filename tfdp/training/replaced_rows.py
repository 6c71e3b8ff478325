"""Two batches of a few examples, of which some are in both and the others are replaced."""

import dataclasses

import numpy as np

#: Examples of a check. A prime number: rows cannot be taken in groups of the same size.
ROWS = 13
# Rows that stay: those that are differentiated in both batches, and in the second alone. More of
# them than in the first, so that what only adds up (norms of gradients) is never the same in both.
# That an order of the rows leaves each of the three in its place has a probability of 3e-6.
_BOTH, _SECOND = slice(0, 3), slice(3, 7)


@dataclasses.dataclass(frozen=True)
class ReplacedRows:
    """Which examples are where; all arrays are of integers, but for the last two.

    Attributes:
        first, second: (ROWS,) the examples of the two batches.
        stay: (places in the first batch, places in the second one) of the examples in both.
        compared: as `stay`, of those that are differentiated in both.
        first_differentiated, second_differentiated: (ROWS,) bool.
    """

    first: np.ndarray
    second: np.ndarray
    stay: tuple
    compared: tuple
    first_differentiated: np.ndarray
    second_differentiated: np.ndarray

    @classmethod
    def draw(cls, count, may_move):
        """Draws them.

        Args:
            count: number of examples to choose from; padding, if there is some, is the last.
            may_move: whether those that stay may come to stand in other places.
        """
        generator = np.random.default_rng()
        # By an odd number of places: all come from even ones to odd ones, or the other way.
        back = generator.choice([1, 3]) if may_move else 0
        kept = generator.permutation(np.arange(max(2, back), ROWS))[: _SECOND.stop]
        moved = kept - back
        first = np.arange(ROWS)
        # The first two have the largest and the smallest target: they are replaced, as others with
        # what is rare, and a copy of each stays, as who is treated otherwise.
        first[kept[:2]] = 0, 1
        first %= count
        return cls(
            first,
            _replaced(first, kept, moved, count, generator),
            (kept, moved),
            (kept[_BOTH], moved[_BOTH]),
            np.isin(np.arange(ROWS), kept[_BOTH]),
            np.isin(np.arange(ROWS), [*moved[_BOTH], *moved[_SECOND]]),
        )


def _replaced(first, kept, moved, count, generator):
    """`first[kept]` in the places `moved`; in others, other examples than before, of all kinds."""
    # None with a target at the end of the range, so that what is rare is in one batch only.
    candidates = np.arange(2 if count > 3 else 0, count)
    chosen = generator.choice(candidates, ROWS)
    same = chosen == first
    chosen[same] = np.where(first[same] == candidates[-1], candidates[0], candidates[-1])
    free = np.setdiff1d(np.arange(ROWS), moved)
    chosen[free[:2]] = candidates[-1], first[kept[2]]  # padding, if there is some; a copy
    chosen[moved] = first[kept]
    return chosen
