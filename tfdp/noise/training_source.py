"""Noise of training steps and of input pipelines."""

import hashlib
import math
import os

import numpy as np
import tensorflow as tf

from tfdp.noise.gaussian import later, philox_bits, standard_normal
from tfdp.noise.layer_sources import ServingNoiseSource
from tfdp.runtime.replicas import of_first_replica
from tfdp.runtime.xla import is_compiling

_LARGEST_DRAW = 1 << 22
_SMALL_DRAW = 1 << 14  # compiled once, for draws whose number is not known beforehand
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

    def __init__(self, seed=None):
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
            raise ValueError(
                f"Argument `seed` must be None (fresh entropy) or an integer. Received: seed={seed}"
            )
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

    @property
    def variables(self):
        """Key and counter: int64 variables of one and two words."""
        return [self._key, self._counter]

    def rekey(self, strategy=None):
        """Takes a new key and counter; called eagerly, at the start of every `fit`.

        Args:
            strategy: a `tf.distribute.Strategy` of several workers, all of which make this call:
                they take the first one's entropy, and then draw the same in every step.
        """
        if self.seed is None:
            entropy = os.urandom(24)
        else:
            entropy = hashlib.sha256(f"{self.seed}/{self._seedings}".encode()).digest()[:24]
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

        Many of them are drawn in parts, so that no float64 (or uint64) tensor of the size of a
        large variable is made.
        """
        size = math.prod(shape)
        if is_compiling() and size > _PART_OF_A_COMPILED_DRAW:
            return tf.reshape(self._compiled_draw(size, stddev, dtype), shape)
        if size > _LARGEST_DRAW:
            whole = self._blocks(size // _LARGEST_DRAW, _LARGEST_DRAW, stddev, dtype).stack()
            rest = self.normal((size % _LARGEST_DRAW,), stddev, dtype)
            return tf.reshape(tf.concat([tf.reshape(whole, [-1]), rest], 0), shape)
        key, counter = self._advance(size)
        draws = standard_normal(key, counter, tuple(shape))
        return tf.cast(draws * tf.cast(stddev, tf.float64), dtype)

    def _compiled_draw(self, size, stddev, dtype):
        """As `normal`, (size,) values, by a loop whose body is small enough to compile."""
        part = _PART_OF_A_COMPILED_DRAW
        number = -(-size // part)
        # Counters of the parts do not overlap: each steps over a whole draw of its own.
        key, first = self._advance(number * (part + 1))

        def draw(i, drawn):
            counter = later(first, tf.cast(i, tf.uint64) * tf.constant(part + 1, tf.uint64))
            z = standard_normal(key, counter, (part,)) * tf.cast(stddev, tf.float64)
            return i + 1, drawn.write(i, tf.cast(z, dtype))

        drawn = tf.TensorArray(dtype, number, element_shape=[part])
        _, drawn = tf.while_loop(
            lambda i, _: i < number,
            draw,
            (0, drawn),
            parallel_iterations=1,
            maximum_iterations=number,
        )
        return tf.reshape(drawn.stack(), [-1])[:size]

    def normal_values(self, count, stddev, dtype=tf.float32):
        """As `normal`, (count,) values, where the count is only known in the step."""
        blocks = self._blocks(count // _SMALL_DRAW + 1, _SMALL_DRAW, stddev, dtype)
        return blocks.concat()[:count]

    def _blocks(self, number, size, stddev, dtype):
        drawn = tf.TensorArray(dtype, number, element_shape=[size])
        _, drawn = tf.while_loop(
            lambda i, _: i < number,
            lambda i, drawn: (i + 1, drawn.write(i, self.normal((size,), stddev, dtype))),
            (0, drawn),
            parallel_iterations=1,
        )
        return drawn

    def _advance(self, size):
        counter = tf.bitcast(self._counter.read_value(), tf.uint64)
        # Philox makes 128 bits for each value of its counter; step past all of them.
        after = later(counter, tf.constant(size + 1, tf.uint64))
        self._counter.assign(tf.bitcast(after, tf.int64))
        return tf.bitcast(self._key.read_value(), tf.uint64), counter


class PipelineNoiseSource(NoiseSource):
    """A `NoiseSource` for input pipelines, of which several iterators may draw at the same time.

    An iterator that nobody reads any more still fills its buffer. Were its draw to read the
    counter, wait, and write it back, another iterator would draw the same bits twice; this counter
    is read and advanced in one operation, as that of `ServingNoiseSource`.

    Args:
        seed: as for `NoiseSource`.
    """

    def rekey(self, strategy=None):
        with tf.device("/device:CPU:0"):
            self._source = ServingNoiseSource(self.seed)

    def _advance(self, size):
        return self._source.advance([size])
