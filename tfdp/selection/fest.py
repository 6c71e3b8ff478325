"""Rows chosen once, before training: the most frequent ones of each feature."""

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import ArrayLike

from tfdp import accounting
from tfdp._validate import count, one_of, positive
from tfdp.data.provenance.origins import Origin
from tfdp.selection.row_selection import RowSelection
from tfdp.selection.top_k import MECHANISMS, private_top_k


@keras.saving.register_keras_serializable(package="tfdp")
class FEST(RowSelection):
    """Filtering-enabled sparse training, DP-FEST: only the k most frequent rows are trained.

    The other rows keep their initial value and receive no noise. Either the frequencies are public,
    or `adapt` finds the rows privately, once. Its release is charged to the ledger of the model
    that is compiled with it, and a budget is calibrated after it (MATH.md section 3).

    Args:
        k: number of rows to train in each table: an integer, or a dict of table name to integer.
        frequencies: array of the V frequencies of a single table, or a dict of table name to such
            arrays. Passing them declares them public. A table's name is that of its
            `SparseEmbedding` layer.
        epsilon: ε of a private choice. Exactly one of `frequencies` and `epsilon` must be given.
        mechanism: "laplace" or "gumbel", see `private_top_k`.

    Raises:
        ValueError: for arguments that are missing, contradictory or out of range.

    Example:

    ```python
    fest = tfdp.selection.FEST(k=1000, epsilon=0.1)
    fest.adapt({"query": query_ids}, vocabulary_sizes={"query": 100_000})
    optimizer = tfdp.optimizers.DPOptimizer(..., selection=fest)
    ```
    """

    is_static = True
    reads_batch = False
    fixed = ("k", "epsilon", "mechanism")

    def __init__(
        self,
        k: int | dict[str, int],
        frequencies: ArrayLike | dict[str, ArrayLike] | None = None,
        epsilon: float | None = None,
        mechanism: str = "laplace",
    ):
        if (frequencies is None) == (epsilon is None):
            raise ValueError(
                "Exactly one of the arguments `frequencies` (public) and `epsilon` (for a "
                f"private choice) must be given. Received: frequencies={frequencies}, "
                f"epsilon={epsilon}"
            )
        if epsilon is not None:
            positive("epsilon", epsilon)
        one_of("mechanism", mechanism, MECHANISMS)
        for value in k.values() if isinstance(k, dict) else [k]:
            count("k", value)
        self.k = k
        self.epsilon = epsilon
        self.mechanism = mechanism
        self.privacy_releases = []
        self.privacy_assumptions = []
        self._rows = {}
        if frequencies is not None:
            self.privacy_assumptions.append("the frequencies given to FEST are public")
            if not isinstance(frequencies, dict):
                frequencies = {None: frequencies}
            # Arrays that were made of a release carry its charge.
            origin = Origin.of(list(frequencies.values()))
            self.privacy_releases += origin.releases
            self.privacy_assumptions += origin.assumptions
            self._rows = {
                name: _most_frequent(values, self._k_of(name))
                for name, values in frequencies.items()
            }

    def adapt(
        self, features, vocabulary_sizes, *, max_values=None, padding_id=None, source=None,
        privacy_ids=None, max_records_per_unit=None, period=None,
    ):  # fmt: skip
        """Chooses the rows privately, from the training data. Every call is charged.

        For streaming data, call it again at the start of each period: the next `fit` trains the
        rows of the last call.

        Args:
            features: dict of table name to the ids of the training examples, (n,) or (n, T).
            vocabulary_sizes, max_values, padding_id, source, privacy_ids, max_records_per_unit,
                period: as for `private_top_k`.

        Returns:
            The `TopKRelease`.

        Raises:
            ValueError: if the frequencies are public, or as for `private_top_k`.
        """
        if self.epsilon is None:
            raise ValueError(
                "`adapt` reads private data, but this FEST was given public frequencies. Construct "
                f"it with `epsilon` instead. Received: epsilon={self.epsilon}"
            )
        release = private_top_k(
            features,
            vocabulary_sizes,
            {name: self._k_of(name) for name in features},
            self.epsilon,
            self.mechanism,
            max_values=max_values,
            padding_id=padding_id,
            source=source,
            privacy_ids=privacy_ids,
            max_records_per_unit=max_records_per_unit,
            period=period,
        )
        self._rows = {name: np.asarray(rows) for name, rows in release.rows.items()}
        for found, known in (
            (release.privacy_releases, self.privacy_releases),
            (release.privacy_assumptions, self.privacy_assumptions),
        ):
            known += [one for one in found if one not in known]
        return release

    @property
    def version(self):
        return len(self.privacy_releases)

    @property
    def is_chosen(self):
        """Whether rows have been chosen."""
        return bool(self._rows)

    def describe(self):
        return {"name": "FEST", "k": self.k, "public": self.epsilon is None}

    def check(self, tables):
        for name, num_rows in tables.items():
            self.rows(name, num_rows)

    def rows(self, name, num_rows):
        """The rows of one table that are trained, sorted int64.

        Raises:
            ValueError: if no rows were chosen for this table, or only for one of another size.
        """
        chosen = self._rows.get(name, self._rows.get(None))
        if chosen is None:
            how = "Call `adapt` first" if self.epsilon else "Give its frequencies"
            raise ValueError(
                f"FEST has chosen no rows of table {name!r}. {how}, with this name as the key. "
                f"Received: tables {sorted(map(str, self._rows))}"
            )
        if chosen[-1] >= num_rows:
            raise ValueError(
                f"FEST has chosen row {chosen[-1]} of table {name!r}, which has only {num_rows} "
                "rows. Pass the frequencies, or the vocabulary size, of this table."
            )
        return chosen

    def joint_rows(self, tables):
        """The rows of all tables in the common range of `tfdp.selection.tables`, sorted."""
        if None in self._rows and len(tables) > 1:
            raise ValueError(
                "Argument `frequencies` of FEST must be a dict of table name to frequencies for a "
                f"model with several tables. Received: tables {[t.name for t in tables]}"
            )
        start, parts = 0, []
        for table in tables:
            parts.append(self.rows(table.name, table.num_rows) + start)
            start += table.num_rows
        return np.concatenate(parts)

    def select(self, tables, example_mask, noise_multiplier, source):
        """The same rows in every step, whatever the batch."""
        self.joint_rows(tables)  # refuses one array for several tables
        return [tf.constant(self.rows(t.name, t.num_rows), tf.int64) for t in tables]

    def _k_of(self, name):
        if not isinstance(self.k, dict):
            return self.k
        if name not in self.k:
            raise ValueError(
                f"Argument `k` must have an entry for table {name!r}. Received: k={self.k}"
            )
        return self.k[name]

    def get_config(self):
        return {
            "k": self.k,
            "epsilon": self.epsilon,
            "mechanism": self.mechanism,
            "rows": [[name, rows.tolist()] for name, rows in self._rows.items()],
            "releases": accounting.Ledger(self.privacy_releases).to_json(),
            "assumptions": list(self.privacy_assumptions),
        }

    @classmethod
    def from_config(cls, config):
        public = config["epsilon"] is None
        rows = {name: np.asarray(ids, np.int64) for name, ids in config["rows"]}
        fest = cls(
            config["k"],
            frequencies={} if public else None,
            epsilon=config["epsilon"],
            mechanism=config["mechanism"],
        )
        fest._rows = rows
        fest.privacy_releases = list(accounting.Ledger.from_json(config["releases"]).entries)
        fest.privacy_assumptions = list(config["assumptions"])
        return fest


def _most_frequent(frequencies, k):
    frequencies = np.asarray(frequencies, np.float64)
    if frequencies.ndim != 1 or not len(frequencies) or np.isnan(frequencies).any():
        raise ValueError(
            "Argument `frequencies` must hold one number for each row of the table. "
            f"Received: an array of shape {frequencies.shape}"
        )
    order = np.argsort(-frequencies, kind="stable")[:k]
    return np.sort(order).astype(np.int64)
