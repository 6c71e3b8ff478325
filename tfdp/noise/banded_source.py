"""Noise of training steps that depends on the noise of a few steps before (MATH.md section 13)."""

import functools
import math

import tensorflow as tf

from tfdp.errors import PrivacyError
from tfdp.noise import grid as on_grid
from tfdp.noise.correlated_source import CorrelatedSource, hidden
from tfdp.noise.gaussian import fused_pairs_of_blocks
from tfdp.noise.joined import LARGEST_JOINED, in_joined_parts
from tfdp.noise.pairs import apart, together
from tfdp.noise.training_source import ADVANCING, compiled_size
from tfdp.runtime.xla import is_compiling, platform

# What is kept of a step's noise has as many bits, so many units of the grid at most.
_LARGEST_KEPT = 2.0**31
# So much of the standard deviation may be for roundings on the grid.
_RAISED = 0.25
# What the sum of one product of a number that is kept adds to rounding, in two runs, at most.
_ROUNDED = 2.0**-20


class BandedSource(CorrelatedSource):
    """Adds to each step's sums its own draw, less a part of the noise of the steps before it.

    y_t = r(x_t) + w_t, w_t = d_t − r(Σ_{0<i<b} c_i·w_{t−i}), with d_t the draw of an independent
    release. The last b − 1 of the w are kept, as whole numbers of the grid, 4 bytes for each of the
    weights: whoever has them subtracts the noise. So they are in variables that nothing saves, and
    are set to zero where a chain begins and where it ends.

    Formal guarantees: those of `CorrelatedSource`. A chain may have any number of steps: the noise
    of a shorter one is that of the first steps.

    Args:
        bands: b.
        seed: as for `NoiseSource`.
    """

    _purpose = "bands/"

    def __init__(self, bands: int, seed: int | None = None):
        super().__init__(bands, seed)
        self._kept = []
        with tf.init_scope():
            # Never set back: it only tells which place is next, and all places begin at zero.
            self._position = hidden(0, tf.int64, "step")
            self._largest = hidden(1.0, tf.float64, "largest_noise_of_chain")
        self.end()

    @property
    def variables(self):
        return [*super().variables, self._position, self._largest, *self._kept]

    def build(self, tables):
        if tables or tf.distribute.get_strategy().num_replicas_in_sync > 1:
            raise PrivacyError(
                "Noise of a `BandedMatrix` is kept from step to step, on one device and for dense "
                "weights only. Train on one device, or leave out `noise_correlation` of the "
                "DPOptimizer."
            )

    def begin(self, correlation, strategy=None):
        c = correlation.strategy
        # The b − 1 steps after a record's own one round something else than without it: by half a
        # unit in each of two runs, and by what sums in float64 are off by.
        units = 1.0 + _ROUNDED * len(c) * sum(map(abs, c))
        carried = units * math.sqrt(len(c) - 1)
        self._forget()
        self._begin(c, correlation.sensitivity, carried, strategy)
        self._largest.assign(correlation.largest)

    def end(self):
        super().end()
        self._forget()
        self._largest.assign(1.0)

    def _forget(self):
        for kept in self._kept:
            kept.assign(tf.zeros_like(kept))

    def grid(self, stddev, sensitivity, coordinates, rounding):
        s, carried = tf.unstack(self._numbers.read_value()[self._bands :])
        stddev = tf.cast(stddev, tf.float64) * s
        # Less, because what covers roundings on the grid raises the standard deviation.
        largest = (1.0 + _RAISED) * on_grid.LARGEST_DRAW * (1.0 + rounding)
        largest = _LARGEST_KEPT / (largest * self._largest.read_value())
        # If that should raise it further (10⁷ weights at σ = 1,000), nothing is released but NaN.
        raised = stddev / sensitivity * math.sqrt(coordinates) * (1.0 + carried)
        stddev = tf.where(raised < _RAISED * largest, stddev, float("nan"))
        return on_grid.Grid(stddev, sensitivity, coordinates, rounding, carried, largest)

    def release(self, tensors, grid, divisor=1.0, dtype=tf.float32, rows=()):
        self._check(tensors)
        # Where the data have ended, the step fails, and must not move what is kept.
        values = [t.values if isinstance(t, tf.IndexedSlices) else t for t in tensors]
        with ADVANCING, tf.control_dependencies(values):
            step = self._position.read_value()
            self._position.assign(step + 1)
        slot, coefficients = _in_slots(step, self._numbers.read_value()[1 : self._bands])
        divisor, part = tf.constant(divisor, dtype), 0

        def one_part(values):
            nonlocal part
            size = values.shape[0]
            kept = self._kept_of(part, compiled_size(size))
            part += 1
            whole = size if is_compiling() else compiled_size(size)
            values = tf.pad(values, [[0, whole - size]]) if whole > size else values
            key, counter = self._advance(on_grid.WORDS * whole)
            release = _compiled(self._bands, dtype)
            if self._bands == 1:
                return release(values, grid.public, key, counter, divisor)[0][:size]
            earlier = kept.read_value()[:, :, : _pairs(whole)]
            noisy, own = release(values, grid.public, key, counter, divisor, earlier, coefficients)
            beyond = kept.shape[2] - own.shape[1]
            own = tf.pad(own, [[0, 0], [0, beyond]]) if beyond else own
            kept.scatter_update(tf.IndexedSlices(own[tf.newaxis], slot[tf.newaxis]))
            return noisy[:size]

        return in_joined_parts(tensors, LARGEST_JOINED, one_part)

    def _kept_of(self, part, size):
        """The variable of the noise of a part of the weights; made once.

        It is (b − 1, 2, size/2): the first and the second values of pairs.
        """
        if part == len(self._kept):
            with tf.init_scope():
                zeros = tf.zeros([self._bands - 1, 2, _pairs(size)], tf.int32)
                self._kept.append(hidden(zeros, tf.int32, "noise_of_steps"))
        return self._kept[part]


def _in_slots(step, coefficients):
    """Where the noise of this step is kept, and the coefficient of each place's noise.

    The noise of step t is in place t modulo b − 1, that of i steps ago in place t − i.

    Args:
        step: t, a scalar.
        coefficients: (b − 1,) c_1 … c_{b−1}.
    """
    places = coefficients.shape[0]
    if not places:
        return step, coefficients
    slot = step % places
    ago = (slot - tf.range(places, dtype=tf.int64) - 1) % places
    return slot, tf.gather(coefficients, ago)


@functools.cache
def _compiled(bands, dtype):
    # One loop for the draw and all that is kept: no float64 of their size is written to memory.
    @tf.function(jit_compile=True, autograph=False)
    def run(values, public, key, counter, divisor, earlier=None, coefficients=None):
        """(n,) released, and the noise of pairs, (2, n/2) int32, in units of the grid."""
        numbers, pairs = on_grid.numbers_of(*public), apart(values)

        def draw():
            blocks = fused_pairs_of_blocks(key, counter, pairs[0].shape[0])
            noise = on_grid.drawn_units(*numbers, blocks)
            if bands > 1:
                noise = [one - _taken(coefficients, earlier[:, i]) for i, one in enumerate(noise)]
            return tf.cast(noise, tf.int32)

        # What is released is made of what is kept. XLA could draw twice, and round otherwise; it
        # takes a branch as it is. There is no σ below 0.
        if platform() == "CPU":
            none = [2, *pairs[0].shape]
            kept = tf.cond(public[0] < 0.0, lambda: tf.zeros(none, tf.int32), draw)
        else:
            kept = draw()
        noisy = [
            on_grid.on_grid(value, tf.cast(one, tf.float64), numbers[0], numbers[1], dtype)
            for value, one in zip(pairs, tf.unstack(kept), strict=True)
        ]
        return together(*[one / divisor for one in noisy], values), kept

    return run


def _taken(coefficients, earlier):
    """What a step takes back of the noise of the steps before it, in units of the grid."""
    places = range(coefficients.shape[0])
    return tf.round(tf.add_n([coefficients[i] * tf.cast(earlier[i], tf.float64) for i in places]))


def _pairs(size):
    return (size + 1) // 2
