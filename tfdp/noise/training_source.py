"""Noise of training steps and of input pipelines."""

from __future__ import annotations

import functools
import hashlib
import math
import os
import threading

import numpy as np
import tensorflow as tf

from tfdp import _validate
from tfdp.noise import grid as on_grid
from tfdp.noise.gaussian import later, normal_pair, philox_bits, standard_normal
from tfdp.noise.joined import LARGEST_JOINED, in_joined_parts
from tfdp.noise.layer_sources import ServingNoiseSource
from tfdp.runtime.replicas import of_first_replica
from tfdp.runtime.xla import is_compiling, platform

_LARGEST_DRAW = 1 << 22
ADVANCING = threading.Lock()
# Compiled once, for draws whose number is not known beforehand.
FEW, SMALL_DRAW = 1 << 11, 1 << 14
_WORDS_OF_A_BLOCK = on_grid.WORDS * SMALL_DRAW + 1  # values of the counter
# XLA splits a loop of 1,024 values over threads, and to hand over a part takes longer than to
# compute it.
_ON_ONE_THREAD = 1 << 9
_COMPILED_SIZES = _ON_ONE_THREAD, FEW, SMALL_DRAW // 4, SMALL_DRAW // 2, SMALL_DRAW
# XLA compiles Philox for a TPU in 3 s for this many values, and in minutes for 20 times as many.
_PART_OF_A_COMPILED_DRAW = 1 << 13


class NoiseSource:
    """Draws fresh noise, from the operating system's entropy unless a test fixes `seed`.

    The object is deliberately not trackable: TensorFlow and Keras save what they can see, and a
    saved key would replay "fresh" noise in every process that loads the file.

    Args:
        seed: integer for tests only; `None` (the default) takes 192 bits from the operating
            system. A privacy statement says when a seed was fixed.
    """

    # Of two sources of one seed neither must draw what the other drew.
    _purpose = ""

    def __init__(self, seed: int | None = None):
        _validate.seed(seed)
        self.seed = seed
        with tf.init_scope():
            # Signed: variables of strategies over several workers know no uint64.
            self._key = tf.Variable(
                np.zeros([1], np.int64), dtype=tf.int64, trainable=False, name="noise_key"
            )
            self._counter = tf.Variable(
                np.zeros([2], np.int64), dtype=tf.int64, trainable=False, name="noise_counter"
            )
        self._seedings = 0
        self.rekey()

    def __reduce_ex__(self, protocol):
        # Of copy.copy, copy.deepcopy and pickle alike. A copy of key and counter would draw the
        # same noise, and a file with them would tell it.
        raise TypeError(
            f"A {type(self).__name__} cannot be copied or pickled: the copy would draw the same "
            "noise. Make another one."
        )

    @property
    def variables(self):
        """Key and counter: int64 variables of one and two words."""
        return [self._key, self._counter]

    def rekey(self, strategy=None):
        """Takes a new key and counter; called eagerly, at the start of every `fit`.

        Args:
            strategy: a `tf.distribute.Strategy` of several workers, all of which make this call:
                they use the first one's entropy, and then draw the same values in every step.
        """
        if self.seed is None:
            entropy = os.urandom(24)
        else:
            entropy = hashlib.sha256(
                f"{self._purpose}{self.seed}/{self._seedings}".encode()
            ).digest()[:24]
        self._seedings += 1
        words = np.frombuffer(entropy, np.int64).copy()
        if strategy is not None:
            words = of_first_replica(words, strategy)
        self._key.assign(words[:1])
        self._counter.assign(words[1:])

    def bits(self, shape):
        """uint64 tensor of the given static shape; no two calls share a bit."""
        size = math.prod(shape)
        key, counter = self._advance(size)
        return philox_bits(key, counter, list(shape))

    def normal(self, shape, stddev, dtype=tf.float32):
        """Independent N(0, stddev^2) values, drawn in float64 and rounded once to `dtype`.

        Use it for choices only; use `release` for values that are released with noise. Many values
        are drawn in parts, so that no float64 (or uint64) tensor of the size of a large variable is
        created.
        """

        def draw(key, counter, start, count):
            draws = standard_normal(key, counter, (count,))
            return tf.cast(draws * tf.cast(stddev, tf.float64), dtype)

        return tf.reshape(self._in_parts(draw, math.prod(shape), 1, dtype), shape)

    def release(self, tensors, grid, law=normal_pair, dtype=tf.float32, divisor=1.0):
        """Adds noise to clipped sums; only the result may be released (`tfdp.noise.grid`).

        Args:
            tensors: list of float tensors of static shapes, or tf.IndexedSlices of such.
            grid: the `Grid` of all of them together.
            law: as for `tfdp.noise.grid.release`.
            dtype: of the results.
            divisor: a number by which the release is divided.

        Returns:
            List of tensors of the same shapes. Small ones share a draw; of large ones no float64
            (or uint64) tensor of their size is made.
        """
        most = _LARGEST_DRAW if platform() == "TPU" else LARGEST_JOINED
        return in_joined_parts(
            tensors, most, lambda values: self._release(values, grid, law, dtype, divisor)
        )

    def release_any(self, values, grid, dtype=tf.float32):
        """As `release`, of one tensor (n,) of any size, without compiling for that size."""
        # In blocks of one of two static sizes; what is past the values is thrown away.
        blocks = tf.cast(tf.size(values) // SMALL_DRAW + 1, tf.uint64)
        state = self._advance(blocks * _WORDS_OF_A_BLOCK)
        release = _any_released(dtype)
        # Eagerly in one call: as many operations run, whatever the size, which may be private.
        release = release if tf.executing_eagerly() else release.python_function
        return release(values, grid.public, *state)

    def _release(self, values, grid, law, dtype, divisor):
        """(n,) values of a static size."""
        size = values.shape[0]
        if platform() != "TPU":  # one loop that needs no memory but for values and results
            whole = size if is_compiling() else compiled_size(size)
            state = self._advance(on_grid.WORDS * whole)
            values = tf.pad(values, [[0, whole - size]]) if whole > size else values
            drawn = on_grid.compiled_release(values, grid.public, *state, law, dtype, divisor)
            return drawn[:size]

        def draw(key, counter, start, count):
            part = tf.slice(values, [start], [count]) if count < size else values
            part = tf.ensure_shape(part, [count])
            return on_grid.compiled_release(part, grid.public, key, counter, law, dtype, divisor)

        return self._in_parts(draw, size, on_grid.WORDS, dtype)

    def _in_parts(self, draw, size, words, dtype):
        """(size,) values.

        Args:
            draw: function of key, counter, the first place and a number of places, which gives
                the values of these places.
            size: a Python integer.
            words: values of the counter that one place uses.
            dtype: of the values.
        """
        if is_compiling() and size > _PART_OF_A_COMPILED_DRAW:
            return self._compiled_parts(draw, size, words, dtype)
        if size <= _LARGEST_DRAW:
            return draw(*self._advance(words * size), 0, size)

        def block(start, count):
            return draw(*self._advance(words * count), start, count)

        whole = size - size % _LARGEST_DRAW
        blocks = self._blocks(size // _LARGEST_DRAW, _LARGEST_DRAW, block, dtype)
        return tf.concat([blocks.concat(), block(whole, size - whole)], 0)

    def _compiled_parts(self, draw, size, words, dtype):
        """As `_in_parts`, by a loop whose body is small enough to compile."""
        part = _PART_OF_A_COMPILED_DRAW
        number = -(-size // part)
        # Counters of the parts do not overlap: each steps over a whole draw of its own.
        key, first = self._advance(number * (words * part + 1))

        def one(i, drawn):
            counter = later(first, tf.cast(i, tf.uint64) * tf.constant(words * part + 1, tf.uint64))
            # The last part ends where the values do, and begins in the one before.
            start = tf.minimum(i * part, size - part)
            return i + 1, drawn.write(i, draw(key, counter, start, part))

        drawn = tf.TensorArray(dtype, number, element_shape=[part])
        _, drawn = tf.while_loop(
            lambda i, _: i < number,
            one,
            (0, drawn),
            parallel_iterations=1,
            maximum_iterations=number,
        )
        drawn = drawn.stack()
        last = drawn[-1, number * part - size :]
        return tf.concat([tf.reshape(drawn[:-1], [-1]), last], 0)

    def _blocks(self, number, size, block, dtype):
        drawn = tf.TensorArray(dtype, number, element_shape=[size])
        _, drawn = tf.while_loop(
            lambda i, _: i < number,
            lambda i, drawn: (i + 1, drawn.write(i, block(i * size, size))),
            (0, drawn),
            parallel_iterations=1,
        )
        return drawn

    def _advance(self, size):
        # Of two threads that read the same counter both would draw the same noise. Compiled steps
        # of one model do not run at the same time: `fit` refuses a second one.
        with ADVANCING:
            counter = tf.bitcast(self._counter.read_value(), tf.uint64)
            # Philox makes 128 bits for each value of its counter; step past all of them.
            after = later(counter, tf.convert_to_tensor(size, tf.uint64) + 1)
            self._counter.assign(tf.bitcast(after, tf.int64))
            return tf.bitcast(self._key.read_value(), tf.uint64), counter


@functools.cache
def _any_released(dtype):
    """A tf.function of values (n,), the public numbers of a grid, a key and a counter."""

    def run(values, public, key, counter):
        count = tf.size(values)

        def block(i, size):
            part = values[i * size : (i + 1) * size]
            part = tf.ensure_shape(tf.pad(part, [[0, size - tf.size(part)]]), [size])
            own = later(counter, tf.cast(i, tf.uint64) * _WORDS_OF_A_BLOCK)
            return on_grid.compiled_release(part, public, key, own, dtype=dtype)

        def many():
            number = count // SMALL_DRAW + 1
            drawn = tf.TensorArray(dtype, number, element_shape=[SMALL_DRAW])
            _, drawn = tf.while_loop(
                lambda i, _: i < number,
                lambda i, drawn: (i + 1, drawn.write(i, block(i, SMALL_DRAW))),
                (0, drawn),
                parallel_iterations=1,
            )
            return drawn.concat()

        return tf.cond(count <= FEW, lambda: block(0, FEW), many)[:count]

    return tf.function(run, reduce_retracing=True, autograph=False)


def compiled_size(size):
    """How many values are drawn for `size`: one compilation, of a second, serves many sizes."""
    # What is compiled stays in memory, 10 MB for each size; the largest draw takes 50 microseconds.
    return next((one for one in _COMPILED_SIZES if size <= one), size)


class PipelineNoiseSource(NoiseSource):
    """A `NoiseSource` for input pipelines, in which several iterators may draw at the same time.

    An iterator that nobody reads any more still fills its buffer. If its draw read the counter,
    waited, and wrote it back, another iterator would draw the same bits twice. This counter is read
    and advanced in one operation, like that of `ServingNoiseSource`.

    Args:
        seed: as for `NoiseSource`.
    """

    def rekey(self, strategy=None):
        with tf.device("/device:CPU:0"):
            self._source = ServingNoiseSource(self.seed)

    def _advance(self, size):
        return self._source.advance([size])
