"""A score on private records, released with noise."""

import dp_accounting
import numpy as np
import tensorflow as tf

from tfdp import _validate
from tfdp.noise import Grid, NoiseSource


class PrivateMean:
    """The mean of a score over private records, cut to [0, bound], with Gaussian noise.

    Formal guarantees: one record changes the sum by at most `bound`; noise of standard deviation
    `noise_multiplier`·bound on the sum is one Gaussian mechanism, `.event`. The sum is divided by
    `num_examples`, which is public. Scores that are not finite count as 0.

    Args:
        values: function from a trained model to one score for each record, an array (n,). Record
            i's score may depend on record i and the model only.
        num_examples: n.
        noise_multiplier: σ; the error of the mean is σ·bound/n.
        bound: largest score of a record.

    Raises:
        ValueError: if an argument is out of range.
    """

    def __init__(self, values, *, num_examples, noise_multiplier, bound=1.0):
        if not callable(values):
            raise ValueError(
                "Argument `values` must be a function from a model to one score for each record. "
                f"Received: values={values!r}"
            )
        self.values = values
        self.num_examples = _validate.count("num_examples", num_examples)
        self.noise_multiplier = _validate.positive("noise_multiplier", noise_multiplier)
        self.bound = _validate.positive("bound", bound)

    @property
    def event(self):
        """The `DpEvent` of one score."""
        return dp_accounting.GaussianDpEvent(float(self.noise_multiplier))

    def __call__(self, model):
        """The noisy mean, a float; each call is a release."""
        values = np.asarray(self.values(model), np.float64)
        if values.ndim != 1:
            raise ValueError(
                "Argument `values` must give one score for each record, an array (n,). "
                f"Received: an array of shape {values.shape}"
            )
        values = np.where(np.isfinite(values), np.clip(values, 0.0, self.bound), 0.0)
        # NumPy adds pairwise in float64: its error is far below the grid.
        total = tf.constant([values.sum()], tf.float64)
        grid = Grid(self.noise_multiplier * self.bound, self.bound, 1)
        (noisy,) = NoiseSource().release([total], grid, dtype=tf.float64)
        return float(noisy[0]) / self.num_examples
