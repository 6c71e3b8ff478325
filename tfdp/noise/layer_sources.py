"""Noise of layers, which draw at inference, in exported models and on every replica."""

from __future__ import annotations

import hashlib
import math
import os

import numpy as np
import tensorflow as tf

from tfdp import _validate
from tfdp.errors import PrivacyError
from tfdp.noise import grid as on_grid
from tfdp.noise.gaussian import PHILOX, philox_bits
from tfdp.runtime.strategies import traces_once


class ServingNoiseSource(tf.saved_model.experimental.TrackableResource):
    """Fresh randomness for a layer that draws noise at inference, also in an exported SavedModel.

    The state (Philox key and counter, 192 bits) is a *resource*, as a lookup table is: a
    SavedModel stores the operations that create and initialise it, never its value, and the
    process that loads the model runs them. Assign an instance to an attribute of a Keras layer and
    `model.export` and `tf.saved_model.save` find it.

    Measurements of the alternatives, on TensorFlow 2.21:

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

    def __init__(self, seed: int | None = None):
        _validate.seed(seed)
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

    def release(self, values, grid, scale=None):
        """Adds noise to values; only the result may be released (`tfdp.noise.grid`).

        Args:
            values: float tensor of any shape, static or not.
            grid: a `Grid`.
            scale: as for `tfdp.noise.grid.release`.

        Returns:
            A float64 tensor on the grid.
        """
        key, counter = self.advance(tf.shape(values))
        return on_grid.release(values, grid, key, counter, dtype=tf.float64, scale=scale)

    def advance(self, shape):
        """Key and counter for a tensor of this shape; no other call gets them.

        Raises:
            PrivacyError: in a program that all replicas run: its state stays on the host.
        """
        strategy = tf.distribute.get_strategy()
        if traces_once(strategy):
            raise PrivacyError(
                "Noise of a layer (DPForwardNoise, PrivateAttention) must differ from replica to "
                f"replica, but a step under {type(strategy).__name__} cannot reach the counter "
                "that makes it differ. Train under another strategy, or without the layer."
            )
        state = tf.raw_ops.RngReadAndSkip(
            resource=self.resource_handle,
            alg=PHILOX,
            # in steps of 256 values of the counter, each 128 bits: far more than are used
            delta=_size_of(shape),
        )
        state = tf.bitcast(state, tf.uint64)
        return state[2:], state[:2]


def _size_of(shape):
    """The product of a shape, uint64: a constant of the graph where the shape is known."""
    known = tf.get_static_value(tf.convert_to_tensor(shape))
    if known is not None:
        return tf.constant(math.prod(known.tolist()), tf.uint64)
    return tf.cast(tf.reduce_prod(tf.cast(shape, tf.int64)), tf.uint64)


def _entropy_in_graph():
    # Lines of /dev/urandom average 256 bytes; 64 of them hold fewer than 24 bytes with a
    # probability below 1e-100. Only the byte 0x0a does not occur: about 191.8 bits of entropy.
    lines = tf.data.TextLineDataset("/dev/urandom", buffer_size=4096).take(64).batch(64)
    text = tf.strings.reduce_join(lines.get_single_element())
    return tf.reshape(tf.io.decode_raw(tf.strings.substr(text, 0, 24), tf.int64), [3])


class ReplicaNoiseSource:
    """Fresh noise for a layer in training, on every replica, process and step.

    The counter of `ServingNoiseSource`, which is read and advanced in one atomic operation, so
    that replicas of `tf.distribute` that share a layer never see the same value. Hidden from
    TensorFlow's and Keras' tracking: no checkpoint and no SavedModel holds even the operations
    that make it, and a function that draws from it cannot be exported.

    Args:
        seed: integer for tests only; `None` takes 192 bits from the operating system.
    """

    def __init__(self, seed: int | None = None):
        self.seed = seed
        self._source = ServingNoiseSource(seed)

    def release(self, values, grid):
        """Adds noise to values; only the result may be released (`tfdp.noise.grid`).

        Args:
            values: float tensor.
            grid: the `Grid` of each example.

        Returns:
            A float32 tensor of the same shape.
        """
        if values.shape.is_fully_defined():
            state = self._source.advance(values.shape.as_list())
            return on_grid.compiled_release(values, grid.public, *state)
        return on_grid.release(values, grid, *self._source.advance(tf.shape(values)))
