"""Released representations: batches of them, their statement, and the file that keeps them."""

import dataclasses
import json
import pathlib

import numpy as np
import tensorflow as tf

from tfdp import accounting
from tfdp._compat.undated import savez
from tfdp._validate import count
from tfdp.accounting.charges.mechanisms import Notes
from tfdp.data.provenance.origins import Origin
from tfdp.data.provenance.released_datasets import tag_release
from tfdp.data.releases.base import ChargedRelease


@dataclasses.dataclass(frozen=True, eq=False)
class Release(ChargedRelease):
    """Private noisy vectors, and their cost. Everything computed from them is free.

    Made by `release_once` or `release_mixtures`. Train a `DPModel` on `.batches(...)` for any
    number of epochs, with any optimizer: the release is charged to its ledger once.

    Attributes:
        features: float32 (m, k).
        targets: the labels (m,) as they were ("release_once"; they are not private), or noisy
            sums of one-hot labels (m, classes) ("release_mixtures").
        details: dict of public parameters of the mechanism.
    """

    features: np.ndarray = dataclasses.field(repr=False)
    targets: np.ndarray = dataclasses.field(repr=False)

    def batches(self, batch_size, balanced=False):
        """Shuffled `tf.data.Dataset` of `(features, targets)`; every pass is a new order.

        Args:
            batch_size: rows of a batch.
            balanced: whether to add sample weights that give all classes the same weight, for the
                labels (m,) of `release_once`. A head that learns from strong noise is unsure and
                falls back on the more common class. Without noise, at inference, it would then
                predict nothing else.

        Raises:
            ValueError: for `balanced` without one label for each row.
        """
        count("batch_size", batch_size)
        parts = (self.features, self.targets)
        if balanced:
            if self.targets.ndim != 1:
                raise ValueError(
                    "Argument `balanced` needs one label for each row, as in `release_once`: it "
                    "weights classes, and a sum over records has no class. Leave it out. "
                    f"Received: targets of shape {self.targets.shape}"
                )
            classes, place, counts = np.unique(
                self.targets, return_inverse=True, return_counts=True
            )
            weights = len(self.targets) / (len(classes) * counts)
            parts = (*parts, weights[place].astype(np.float32))
        data = tf.data.Dataset.from_tensor_slices(parts)
        shuffled = data.shuffle(len(self.features)).batch(batch_size).prefetch(2)
        return tag_release(shuffled, self.carried)

    def privacy_statement(self, delta=None, accountant=None):
        """The `tfdp.accounting.Statement` of the release alone.

        Args:
            delta: δ; defaults to the budget's, or 1/(10·n).
            accountant: "pld", "rdp" or None.
        """
        n = self.num_examples
        return accounting.privacy_statement(
            accounting.Ledger(self.privacy_releases),
            delta=(self.details["delta"] or 0.1 / n) if delta is None else delta,
            accountant=accountant,
            notes=Notes(assumptions=tuple(self.privacy_assumptions)),
        )

    def save(self, path):
        """Writes one `.npz` file that carries its privacy statement; returns its path.

        Raises:
            ValueError: if the file exists.
        """
        path = free_path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as file:
            savez(
                file,
                features=self.features,
                targets=self.targets,
                entry=np.array(json.dumps(self.entry.to_dict())),
                made_with=np.array(accounting.Ledger(self.origin.releases).to_json()),
                assumptions=np.array(json.dumps(self.origin.assumptions)),
                privacy_statement=np.array(self.privacy_statement().to_json()),
            )
        return path

    @classmethod
    def load(cls, path):
        """Reads a file that `save` wrote. The release costs once, however often it is read."""
        with np.load(path, allow_pickle=False) as saved:
            entry = accounting.LedgerEntry.from_dict(json.loads(str(saved["entry"])))
            releases = accounting.Ledger.from_json(str(saved["made_with"])).entries
            return cls(
                features=saved["features"],
                targets=saved["targets"],
                event=entry.event,
                label=entry.label,
                event_count=entry.count,
                num_examples=entry.details["num_examples"],
                details=entry.details,
                origin=Origin(tuple(releases), tuple(json.loads(str(saved["assumptions"])))),
            )


def free_path(path):
    """The path, where no file is.

    Raises:
        ValueError: if the file exists.
    """
    path = pathlib.Path(path)
    if path.exists():
        raise ValueError(
            "Argument `path` must name a new file. Load an existing release with "
            "`tfdp.data.Release.load`, or choose another name (a second release is charged "
            f"again). Received: path={path}"
        )
    return path
