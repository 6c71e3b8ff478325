"""Click logs: a label, integers, and categorical features as row ids."""

import dataclasses

import numpy as np

from tfdp.data.provenance.origins import Origin

_MADE_OF_NOTHING = Origin()
NUM_INTEGERS = 13
#: Table 3 of the paper: vocabulary sizes of Criteo's 26 categorical features.
CRITEO_VOCABULARY_SIZES = (
    1472, 577, 82741, 18940, 305, 23, 1172, 633, 3, 9090, 5918, 64300, 3207,
    27, 1550, 44262, 10, 5485, 2161, 3, 56473, 17, 15, 27360, 104, 12934,
)  # fmt: skip


# With so many rows held out in any case, one row less changes the training data by one row. Their
# number follows from that of all rows, though, and a person's rows move as many of others.
_BY_PLACE = (
    "it is public which rows were held out of the training data: the last rows of the table, by "
    "number"
)


def held_out_by_place(test_fraction):
    """The `Origin` of rows of which the last ones were held out."""
    return Origin(assumptions=(_BY_PLACE,) if test_fraction else ())


def feature_names(count):
    """Names of the categorical features: C1, C2, …"""
    return tuple(f"C{i + 1}" for i in range(count))


@dataclasses.dataclass(frozen=True, eq=False)
class ClickData:
    """Impressions in time order: an earlier part for training and a later part for testing.

    One impression is one record. `train` and `test` are pairs (x, y). y is float32 (n, 1), 1 for a
    click. x is a dict: "integers" is float32 (n, 13 for Criteo), raw counts, 0 if missing (take
    logarithms in the model); "C1", "C2", … are int64 (n,) ids in [0, V).

    Attributes:
        train: pair (x, y).
        test: pair (x, y).
        vocabulary_sizes: dict of feature name to V, public.
        privacy_assumptions: sentences about what was declared public when the data were made.
    """

    train: tuple = dataclasses.field(repr=False)
    test: tuple = dataclasses.field(repr=False)
    vocabulary_sizes: dict
    privacy_assumptions: tuple = ()

    @property
    def num_examples(self):
        """Number of training records n, public."""
        return len(self.train[1])


def click_data(
    labels, integers, ids, vocabulary_sizes, test_fraction, assumptions=(), origin=_MADE_OF_NOTHING
):
    """Puts the parts together and splits off the last rows for the test.

    Args:
        labels: (n,), 0 or 1.
        integers: (n, 13).
        ids: list of (n,) ids, one for each feature.
        vocabulary_sizes: V of each.
        test_fraction: share of the rows, the last ones, that are held out, in [0, 1).
        assumptions: see `ClickData`.
        origin: `Origin` of what the ids were made by.
    """
    if not 0 <= test_fraction < 1:
        raise ValueError(
            f"Argument `test_fraction` must lie in [0, 1). Received: test_fraction={test_fraction}"
        )
    names = feature_names(len(ids))
    columns = {
        "integers": np.asarray(integers, np.float32),
        **{name: np.asarray(i, np.int64) for name, i in zip(names, ids, strict=True)},
    }
    columns = {name: origin.on(values) for name, values in columns.items()}
    y = origin.on(np.asarray(labels, np.float32)[:, np.newaxis])
    kept = len(y) - int(round(test_fraction * len(y)))
    return ClickData(
        train=({k: v[:kept] for k, v in columns.items()}, y[:kept]),
        test=({k: v[kept:] for k, v in columns.items()}, y[kept:]),
        vocabulary_sizes=dict(zip(names, map(int, vocabulary_sizes), strict=True)),
        privacy_assumptions=tuple(assumptions),
    )
