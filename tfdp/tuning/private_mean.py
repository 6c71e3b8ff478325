"""A score on private records, released with noise."""

import contextlib
import secrets
from collections.abc import Callable

import dp_accounting
import numpy as np
import tensorflow as tf
from numpy.typing import ArrayLike

from tfdp import _validate
from tfdp.accounting import LedgerEntry
from tfdp.accounting.charges.sampling import PERSON
from tfdp.data.provenance.origins import Origin
from tfdp.data.sampling.persons import checked_ids
from tfdp.noise import Grid, NoiseSource

_noted = []


@contextlib.contextmanager
def means_released():
    """Gives a list of every release that is made inside of it: `PrivateMean`, `LedgerEntry`."""
    found = []
    _noted.append(found)
    try:
        yield found
    finally:
        _noted[:] = [one for one in _noted if one is not found]


class PrivateMean:
    """The mean of a score over private records, clipped to [0, bound], with Gaussian noise.

    Formal guarantees: one record changes the sum by at most `bound`, so noise of standard deviation
    `noise_multiplier`·bound on the sum is one Gaussian mechanism, `.event`. The sum is divided by
    `num_examples`, which is public. Scores that are not finite count as 0. With `privacy_ids` the
    mean is over persons, each with the mean score of their records: one person changes the sum by
    at most `bound`. The mean carries its charge, as arrays do. If scores or ids were made with
    another release, that release costs extra, and the mean carries its charge, too. A tuning run
    charges all of them.

    Args:
        values: function from a trained model to one score for each record, an array (n,). Record
            i's score may depend on record i and the model only.
        num_examples: n, of persons if they are the unit.
        noise_multiplier: σ; the error of the mean is σ·bound/n.
        bound: largest score of a record.
        privacy_ids: array (number of records,) of integers or strings: the person of each record.
            Needed to choose among training runs whose unit of privacy is a person.

    Raises:
        ValueError: if an argument is out of range.
    """

    def __init__(
        self,
        values: Callable,
        *,
        num_examples: int,
        noise_multiplier: float,
        bound: float = 1.0,
        privacy_ids: ArrayLike | None = None,
    ):
        if not callable(values):
            raise ValueError(
                "Argument `values` must be a function from a model to one score for each record. "
                f"Received: values={values!r}"
            )
        self.values = values
        self.num_examples = _validate.count("num_examples", num_examples)
        self.noise_multiplier = _validate.positive("noise_multiplier", noise_multiplier)
        self.bound = _validate.positive("bound", bound)
        self._persons, self._origin = None, Origin.of(privacy_ids)
        if privacy_ids is not None:
            ids = checked_ids(privacy_ids, len(privacy_ids))
            self._persons = np.unique(ids, return_inverse=True)[1]
            persons = int(self._persons.max(initial=-1)) + 1
            if persons != self.num_examples:
                raise ValueError(
                    "Argument `num_examples` must be the number of persons with `privacy_ids`. "
                    f"Received: num_examples={num_examples} and ids of {persons} persons"
                )

    @property
    def is_about_persons(self):
        """Whether the mean is over persons, not over records."""
        return self._persons is not None

    @property
    def event(self):
        """The `DpEvent` of one score."""
        return dp_accounting.GaussianDpEvent(float(self.noise_multiplier))

    def __call__(self, model):
        """The noisy mean, an array without axes that carries its charge.

        Each call is a release. If you publish it beside a model, charge the model with `.event` of
        this object: `model.charge("mean score", score.event)`, and `unit="person"` for persons.
        """
        details = {
            "kind": "release",
            "mechanism": "gaussian",
            "noise_multiplier": float(self.noise_multiplier),
            "num_examples": self.num_examples,
            "release": secrets.token_hex(8),
        }
        if self.is_about_persons:
            details["unit"] = PERSON
        entry = LedgerEntry("mean score of private records", self.event, 1, details)
        for found in list(_noted):
            found.append((self, entry))
        mean, origin = self._mean(self.values(model))
        return Origin.all_of([Origin((entry,)), origin]).on(mean)

    def _mean(self, values):
        """The noisy mean of (n,) scores, and the `Origin` of what it was made with."""
        origin = Origin.all_of([Origin.of(values), self._origin])
        values = np.asarray(values, np.float64)
        records = self.num_examples if self._persons is None else len(self._persons)
        if values.shape != (records,):
            raise ValueError(
                "Argument `values` must return one score for each record, an array (n,); with "
                "several, one record would count several times. Received: an array of shape "
                f"{values.shape} for {records} records"
            )
        values = np.where(np.isfinite(values), np.clip(values, 0.0, self.bound), 0.0)
        if self._persons is not None:
            values = self._of_persons(values)
        # NumPy adds pairwise in float64: its error is far below the grid.
        total = tf.constant([values.sum()], tf.float64)
        grid = Grid(self.noise_multiplier * self.bound, self.bound, 1)
        (noisy,) = NoiseSource().release([total], grid, dtype=tf.float64)
        return float(noisy[0]) / self.num_examples, origin

    def _of_persons(self, values):
        counts = np.bincount(self._persons)
        # A mean is no more than its largest part, but for rounding.
        return np.minimum(np.bincount(self._persons, values) / counts, self.bound)
