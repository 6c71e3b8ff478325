"""The only source of Gaussian noise in the library.

A sampler is part of a privacy guarantee (MATH.md section 1). This one

- has true tails: a float64 inverse normal CDF of 63 random bits and a sign, past 9 sigma
  (`tf.random.normal` never exceeds 5.678);
- is keyed by the operating system's entropy, never by the global seed of Keras or TensorFlow;
- keeps its key and counter in variables that no checkpoint, `.keras` file or SavedModel can hold.

It runs under eager execution, `tf.function` and XLA alike, from stateless ops only.
"""

import functools
import hashlib
import math
import os

import numpy as np
import tensorflow as tf

from tfdp.clipping.planning import PrivacyError
from tfdp.distribution.replicas import of_first_replica
from tfdp.distribution.single_trace import traces_once
from tfdp.xla import is_compiling

_PHILOX = 1  # tf.random.Algorithm.PHILOX
_LARGEST_DRAW = 1 << 22
_SMALL_DRAW = 1 << 14  # compiled once, for draws whose number is not known beforehand
# XLA compiles Philox for a TPU in 3 s for this many values, and in minutes for 20 times as many.
_PART_OF_A_COMPILED_DRAW = 1 << 13

# Wichura (1988), algorithm AS 241 (PPND16): relative accuracy about 1e-16 in float64.
_A = (
    3.3871328727963666080e0, 1.3314166789178437745e2, 1.9715909503065514427e3,
    1.3731693765509461125e4, 4.5921953931549871457e4, 6.7265770927008700853e4,
    3.3430575583588128105e4, 2.5090809287301226727e3,
)  # fmt: skip
_B = (
    1.0, 4.2313330701600911252e1, 6.8718700749205790830e2, 5.3941960214247511077e3,
    2.1213794301586595867e4, 3.9307895800092710610e4, 2.8729085735721942674e4,
    5.2264952788528545610e3,
)  # fmt: skip
_C = (
    1.42343711074968357734e0, 4.63033784615654529590e0, 5.76949722146069140550e0,
    3.64784832476320460504e0, 1.27045825245236838258e0, 2.41780725177450611770e-1,
    2.27238449892691845833e-2, 7.74545014278341407640e-4,
)  # fmt: skip
_D = (
    1.0, 2.05319162663775882187e0, 1.67638483018380384940e0, 6.89767334985100004550e-1,
    1.48103976427480074590e-1, 1.51986665636164571966e-2, 5.47593808499534494600e-4,
    1.05075007164441684324e-9,
)  # fmt: skip
_E = (
    6.65790464350110377720e0, 5.46378491116411436990e0, 1.78482653991729133580e0,
    2.96560571828504891230e-1, 2.65321895265761230930e-2, 1.24266094738807843860e-3,
    2.71155556874348757815e-5, 2.01033439929228813265e-7,
)  # fmt: skip
_F = (
    1.0, 5.99832206555887937690e-1, 1.36929880922735805310e-1, 1.48753612908506148525e-2,
    7.86869131145613259100e-4, 1.84631831751005468180e-5, 1.42151175831644588870e-7,
    2.04426310338993978564e-15,
)  # fmt: skip


def philox_bits(key, counter, shape):
    return tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=shape, key=key, counter=counter, alg=_PHILOX, dtype=tf.uint64
    )


@functools.cache
def _compiled_normal(shape):
    # Compiled by itself, the chain of elementwise float64 work is one loop, several times faster.
    @tf.function(jit_compile=True, autograph=False)
    def draw(key, counter):
        return standard_normal_from_bits(philox_bits(key, counter, list(shape)))

    return draw


def _standard_normal(key, counter, shape):
    if traces_once(tf.distribute.get_strategy()):  # compiled already, with the whole step
        return standard_normal_from_bits(philox_bits(key, counter, list(shape)))
    return _compiled_normal(shape)(key, counter)


def standard_normal_from_bits(bits):
    """Turns uniform 64-bit integers into standard normal float64 values.

    Args:
        bits: uint64 tensor of independent uniform bits.

    Returns:
        float64 tensor of the same shape: the inverse CDF of (63 bits + 1/2) / 2^64, signed by
        the remaining bit. Largest magnitude 9.1.
    """
    negative = tf.equal(tf.bitwise.bitwise_and(bits, tf.constant(1, tf.uint64)), 1)
    magnitude = tf.cast(tf.bitwise.right_shift(bits, tf.constant(1, tf.uint64)), tf.int64)
    value = normal_of_tail((tf.cast(magnitude, tf.float64) + 0.5) * 2.0**-64)
    return tf.where(negative, -value, value)


def normal_of_tail(tail):
    """The standard normal value that is exceeded with probability `tail`, float64 in (0, 1/2]."""
    q = 0.5 - tail
    r = tf.sqrt(-tf.math.log(tail))
    central, near = q <= 0.425, r <= 5.0

    def choose(in_center, in_near_tail, in_far_tail):
        # Never by tf.cast, which reads a Python number as float32.
        values = [
            tf.convert_to_tensor(v, tf.float64) for v in (in_center, in_near_tail, in_far_tail)
        ]
        return tf.where(central, values[0], tf.where(near, *values[1:]))

    # One ratio of polynomials, whose coefficients are chosen for each value: three would be as
    # exact, and three times the work.
    x = choose(0.180625 - q * q, r - 1.6, r - 5.0)
    numerator = denominator = tf.zeros_like(x)
    for k in reversed(range(8)):
        numerator = numerator * x + choose(_A[k], _C[k], _E[k])
        denominator = denominator * x + choose(_B[k], _D[k], _F[k])
    return choose(q, 1.0, 1.0) * numerator / denominator


def _later(counter, count):
    """The 128-bit counter of Philox, two words of uint64, `count` values later."""
    low = counter[0] + count
    carry = tf.cast(low < count, tf.uint64)
    return tf.stack([low, counter[1] + carry])


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
        draws = _standard_normal(key, counter, tuple(shape))
        return tf.cast(draws * tf.cast(stddev, tf.float64), dtype)

    def _compiled_draw(self, size, stddev, dtype):
        """As `normal`, (size,) values, by a loop whose body is small enough to compile."""
        part = _PART_OF_A_COMPILED_DRAW
        number = -(-size // part)
        # Counters of the parts do not overlap: each steps over a whole draw of its own.
        key, first = self._advance(number * (part + 1))

        def draw(i, drawn):
            counter = _later(first, tf.cast(i, tf.uint64) * tf.constant(part + 1, tf.uint64))
            z = _standard_normal(key, counter, (part,)) * tf.cast(stddev, tf.float64)
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
        after = _later(counter, tf.constant(size + 1, tf.uint64))
        self._counter.assign(tf.bitcast(after, tf.int64))
        return tf.bitcast(self._key.read_value(), tf.uint64), counter


class ServingNoiseSource(tf.saved_model.experimental.TrackableResource):
    """Fresh randomness for a layer that draws noise at inference, also in an exported SavedModel.

    The state (Philox key and counter, 192 bits) is a *resource*, as a lookup table is: a
    SavedModel stores the operations that create and initialise it, never its value, and the
    process that loads the model runs them. Assign an instance to an attribute of a Keras layer and
    `model.export` and `tf.saved_model.save` find it.

    What was measured about the alternatives, on TensorFlow 2.21:

    - `tf.random.Generator` and `keras.random.SeedGenerator` are saved, and replayed in every
      process that loads the file.
    - `tf.raw_ops.RandomUniformInt(seed=0, seed2=0)` differs between processes and calls, but its
      kernel is seeded from 32 bits, few enough to enumerate; under XLA it returns the same values
      in every process.
    - `/dev/urandom` read by graph operations is the kernel's own generator, but XLA cannot
      compile the read. So it is read once, when the resource is initialised, outside XLA.

    Formal guarantees:

    - Two calls never share a bit: `RngReadAndSkip` reads and advances the counter atomically,
      concurrent requests included, under eager execution, `tf.function` and XLA.
    - Two processes, or two loads in one process, start from independent 192-bit states.
    - The global seeds of Keras and TensorFlow have no effect, and no checkpoint, `.keras` file or
      SavedModel holds the state.
    - Not covered: a process forked after the model was loaded (TensorFlow does not support this)
      and a restored snapshot of a running virtual machine; both continue from a copied state.

    Args:
        seed: integer for tests only: fixes the draws of this object in this process. A loaded
            SavedModel takes fresh entropy even then.

    Raises:
        ValueError: if `seed` is neither `None` nor an integer.
        tf.errors.NotFoundError: when a SavedModel is loaded where `/dev/urandom` does not exist:
            nothing is released without entropy.
    """

    # The shared name under which the kernel makes a new reference-counted variable at each run.
    _ANONYMOUS = "cd2c89b7-88b7-44c8-ad83-06c2a9158347"

    def __init__(self, seed=None):
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
            raise ValueError(
                f"Argument `seed` must be None (fresh entropy) or an integer. Received: seed={seed}"
            )
        super().__init__()
        self.seed = seed
        with tf.init_scope():
            self._initialize()

    def _create_resource(self):
        return tf.raw_ops.VarHandleOp(dtype=tf.int64, shape=[3], shared_name=self._ANONYMOUS)

    def _initialize(self):
        if tf.inside_function():  # traced for a SavedModel: runs in the process that loads it
            state = _entropy_in_graph()
        elif self.seed is None:
            state = np.frombuffer(os.urandom(24), np.int64)
        else:
            state = np.frombuffer(hashlib.sha256(f"{self.seed}".encode()).digest()[:24], np.int64)
        tf.raw_ops.AssignVariableOp(
            resource=self.resource_handle, value=tf.convert_to_tensor(state, tf.int64)
        )

    def bits(self, shape):
        """uint64 tensor of independent uniform bits; no two calls share a bit.

        Args:
            shape: list, or int tensor, static or not.
        """
        return philox_bits(*self.advance(shape), shape)

    def advance(self, shape):
        """Key and counter for a tensor of this shape; nobody else gets them.

        Raises:
            PrivacyError: in a program that all replicas run: its state stays on the host.
        """
        strategy = tf.distribute.get_strategy()
        if traces_once(strategy):
            raise PrivacyError(
                "Noise of a layer (DPForwardNoise, PrivateAttention) must differ from replica to "
                f"replica, and a step under {type(strategy).__name__} cannot reach the counter "
                "that makes it differ. Train under another strategy, or without the layer."
            )
        state = tf.raw_ops.RngReadAndSkip(
            resource=self.resource_handle,
            alg=_PHILOX,
            # in steps of 256 values of the counter, each 128 bits: far more than are used
            delta=tf.cast(tf.reduce_prod(tf.cast(shape, tf.int64)), tf.uint64),
        )
        state = tf.bitcast(state, tf.uint64)
        return state[2:], state[:2]


def _entropy_in_graph():
    # Lines of /dev/urandom average 256 bytes; 64 of them hold fewer than 24 bytes with a
    # probability below 1e-100. Only the byte 0x0a does not occur: about 191.8 bits of entropy.
    lines = tf.data.TextLineDataset("/dev/urandom", buffer_size=4096).take(64).batch(64)
    text = tf.strings.reduce_join(lines.get_single_element())
    return tf.reshape(tf.io.decode_raw(tf.strings.substr(text, 0, 24), tf.int64), [3])


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


class ReplicaNoiseSource:
    """Fresh noise for a layer in training, on every replica, process and step.

    The counter of `ServingNoiseSource`, which is read and advanced in one atomic operation, so
    that replicas of `tf.distribute` that share a layer never see the same value. Hidden from
    TensorFlow's and Keras' tracking: no checkpoint and no SavedModel holds even the operations
    that make it, and a function that draws from it cannot be exported.

    Args:
        seed: integer for tests only; `None` takes 192 bits from the operating system.
    """

    def __init__(self, seed=None):
        self.seed = seed
        self._source = ServingNoiseSource(seed)

    def normal(self, shape, stddev, like):
        """Independent N(0, stddev²) float32 values, drawn in float64 and rounded once.

        Args:
            shape: tf.TensorShape; where it is not static, the tensor `like` has it.
            stddev: standard deviation.
            like: a tensor of that shape.
        """
        if shape.is_fully_defined():
            shape = tuple(shape.as_list())
            draws = _standard_normal(*self._source.advance(shape), shape)
        else:
            draws = standard_normal_from_bits(self._source.bits(tf.shape(like)))
        return tf.cast(draws * tf.cast(stddev, tf.float64), tf.float32)
