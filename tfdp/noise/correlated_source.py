"""What all noise that is correlated over steps has: a chain's numbers, its grid, its end."""

import numpy as np
import tensorflow as tf

from tfdp.errors import PrivacyError
from tfdp.noise import grid as on_grid
from tfdp.noise.training_source import NoiseSource
from tfdp.runtime.xla import platform


def hidden(value, dtype, name):
    """A variable that nothing but its source holds, so that no file has it."""
    return tf.Variable(value, dtype=dtype, trainable=False, name=name)


class CorrelatedSource(NoiseSource):
    """Base of the sources of which a step's noise depends on that of earlier steps.

    Formal guarantees: the key is the operating system's, new for each chain, and in no variable
    that is saved. Outside of a chain, noise is independent, of the standard deviation of a chain's.

    Args:
        bands: b, how many steps the noise of one depends on, its own one included.
        seed: as for `NoiseSource`.
    """

    def __init__(self, bands: int, seed: int | None = None):
        super().__init__(seed)
        self._bands, self._layout = bands, None
        with tf.init_scope():
            # The coefficients, s, and what roundings of all steps move, in units of γ·√d·s.
            self._numbers = hidden(np.full(bands + 2, np.nan), tf.float64, "noise_of_chain")

    @property
    def variables(self):
        return [*super().variables, self._numbers]

    def build(self, tables):
        """Makes what is kept from step to step.

        Args:
            tables: list of variables, (V, d) each, of which chosen rows are.
        """
        raise NotImplementedError

    def begin(self, correlation, strategy=None):
        """Called eagerly: the next step is the first one of a chain.

        Args:
            correlation: of `tfdp.accounting`, of at most as many bands.
            strategy: as for `rekey`.
        """
        raise NotImplementedError

    def _begin(self, coefficients, sensitivity, carried, strategy):
        self.rekey(strategy)
        missing = self._bands - len(coefficients)
        s = sensitivity
        self._numbers.assign([*coefficients, *[0.0] * missing, s, carried / s])

    def end(self):
        """Called eagerly: no further step belongs to the chain; its key is gone."""
        self.rekey()
        self._numbers.assign([1.0, *[0.0] * (self._bands - 1), 1.0, 0.0])

    def grid(self, stddev, sensitivity, coordinates, rounding):
        """The `Grid` of a step.

        Args:
            stddev: σ·C, a scalar tensor.
            sensitivity: C.
            coordinates, rounding: as for `Grid`.
        """
        s, carried = tf.unstack(self._numbers.read_value()[self._bands :])
        stddev = tf.cast(stddev, tf.float64) * s
        return on_grid.Grid(stddev, sensitivity, coordinates, rounding, carried)

    def release(self, tensors, grid, divisor=1.0, dtype=tf.float32, rows=()):
        """One step's clipped sums with noise; called once in each step, with all of its tensors.

        Args:
            tensors: list of float tensors of static shapes, or tf.IndexedSlices of such.
            grid: from `grid`.
            divisor: a number by which what is released is divided.
            dtype: of the results.
            rows: list of (table, (S,) int64 distinct rows, (S, d) sums), of tables that `build` was
                given; rows beyond the table hold nothing.

        Returns:
            List of tensors of the same shapes, those of rows first.

        Raises:
            PrivacyError: on a TPU, where float64 is too short for it; if tensors of other shapes
                or kinds were released before.
        """
        raise NotImplementedError

    def _check(self, tensors):
        """Refuses tensors in whose places other ones were drawn, by this or another program."""
        if platform() == "TPU":
            raise PrivacyError(
                "Noise that is correlated over steps is not drawn on TPUs: leave "
                "`noise_correlation` of the DPOptimizer out."
            )
        layout = [(tuple(t.shape), isinstance(t, tf.IndexedSlices)) for t in tensors]
        if self._layout not in (None, layout):
            raise PrivacyError(
                "The set of trained weights has changed since this DPOptimizer was first used: a "
                "step would cancel noise that was never added. Compile with a new DPOptimizer. "
                f"Received: {layout} after {self._layout}"
            )
        self._layout = layout
