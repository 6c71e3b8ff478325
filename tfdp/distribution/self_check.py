"""What ε stands on, tried on the user's own devices before anything is trained there."""

import keras
import numpy as np
import tensorflow as tf

from tfdp.errors import PrivacyError
from tfdp.noise import Grid, NoiseSource, gaussian, grid, sum_rounding
from tfdp.optimizers import DPOptimizer
from tfdp.runtime import replicas
from tfdp.runtime.strategies import traces_once

_DRAWS = 1000
# A counter that overflows from its first word into the second one within a draw.
_COUNTER = np.array([-3, 7], np.int64)
# Bits of the largest and the smallest |z|, of both signs, and of each branch of the inverse CDF.
_TAILS = np.array(
    [0, 1, 2, 3, 2**64 - 1, 2**64 - 2, 2**63, 2**40, 2**40 + 1, 2**55 + 1, 2**60, 2**61 + 1],
    np.uint64,
)
_TOLERANCE = 1e-6
_ID = 2**40 + 1  # needs more than one word, as the ids of large tables do
_SIGMA, _CLIP_NORM, _BATCH = 2.0, 0.5, 4


def check_devices(strategy):
    """Runs a small program on every replica and compares what it gives with the host.

    Formal guarantees: if it returns, then on these devices, with these versions of TensorFlow and
    Keras, and for the values that were tried: noise is the same on all replicas, is that of its
    key, and has true tails; a draw advances the counter once, carry included;
    `replicas.all_reduce_sum` adds each replica's part once; `replicas.run_once_per_step` gets the
    examples of all replicas in their order and changes state once; an optimizer that is
    `already_summed` applies a sum once; and a step of a `DPOptimizer` is charged once and noised
    once.

    Args:
        strategy: a `tf.distribute.Strategy`; called eagerly, in cross-replica context.

    Raises:
        PrivacyError: for any difference. It says all that differed, and on which replica.
    """
    with strategy.scope():
        program = _Program()

    @tf.function(autograph=False)
    def run():
        return strategy.run(program.step)

    found = tf.nest.map_structure(
        lambda v: [t.numpy() for t in strategy.experimental_local_results(v)], run()
    )
    differences = []
    for name, (expected, tolerance) in program.expected(strategy.num_replicas_in_sync).items():
        wrong = [i for i, v in enumerate(found[name]) if not _agree(v, expected, tolerance)]
        if wrong:
            differences.append(
                f"- {_WHAT[name]}: expected {_short(expected)}, received "
                f"{_short(found[name][wrong[0]])} on replica {wrong[0]}"
            )
    if differences:
        raise PrivacyError(
            f"The self-check of {type(strategy).__name__} with {strategy.num_replicas_in_sync} "
            "replicas failed. On these devices, with these versions of TensorFlow and Keras, "
            "assumptions behind ε do not hold. Nothing was trained:\n" + "\n".join(differences)
        )


def check_once(model):
    """Makes the check before a compiled model first trains, where a step is traced once."""
    if traces_once(model.distribute_strategy) and not model.devices_checked:
        check_devices(model.distribute_strategy)
        model.devices_checked = True


def refuse_unchecked(model):
    """Refuses a step that is traced before the check was made.

    Raises:
        PrivacyError: for a loop of the user's own that did not call `make_train_function`.
    """
    if traces_once(model.distribute_strategy) and not model.devices_checked:
        raise PrivacyError(
            "The devices have not been checked. Train with `fit`, or call "
            "`model.make_train_function()` before the first step under "
            f"{type(model.distribute_strategy).__name__}, which runs the self-check."
        )


_WHAT = {
    "tails": "noise does not have the value of its random bits",
    "drawn": "noise differs from that of its key and counter on the host",
    "counter": "the noise counter has not advanced by exactly one draw",
    "total": "`replicas.all_reduce_sum` is not the sum over all replicas",
    "ids": "`replicas.run_once_per_step` did not get the ids of all replicas in their order",
    "flags": "`replicas.run_once_per_step` did not get the flags of all replicas in their order",
    "calls": "`replicas.run_once_per_step` changed state more or less than once",
    "applied": "an optimizer did not apply a total exactly once",
    "charged": "a step of a DPOptimizer was not charged exactly once",
    "stepped": "a step of a DPOptimizer did not add up clipped sums and noise, each once",
}


def _with_tails(bits):
    """Values of choices, and pairs of released noise, from the bits of their tails."""
    # Radii and an angle at which neither value of a pair is next to zero, where devices may differ.
    radii = tf.bitwise.right_shift(bits, tf.constant(1, tf.uint64))
    other = tf.fill([len(_TAILS)], tf.constant(0x5555555555555555, tf.uint64))
    pairs = gaussian.normal_pair((radii, other), (other, bits))
    return tf.concat([gaussian.standard_normal_from_bits(bits), *pairs], 0)


class _Program:
    """The program and its scratch objects; made in the scope of the strategy."""

    def __init__(self):
        self._source = NoiseSource(seed=1)
        self._source.variables[1].assign(_COUNTER)
        self._calls = tf.Variable(0, dtype=tf.int64, trainable=False)
        # A constant would be computed on the host.
        self._tails = tf.Variable(_TAILS.view(np.int64), trainable=False)
        self._plain = keras.optimizers.SGD(1.0)
        self._private = DPOptimizer(
            keras.optimizers.SGD(1.0), noise_multiplier=_SIGMA, num_examples=100,
            expected_batch_size=_BATCH, clip_norm=_CLIP_NORM, seed=2,
        )  # fmt: skip
        self._applied, self._stepped = (
            keras.Variable(np.zeros([2], np.float32), name=name) for name in ("applied", "stepped")
        )
        self._plain.build([self._applied])
        self._private.build([self._stepped])
        self._private.charging.begin(None)
        sources = (self._source, self._private.noise_source)
        self._states = [[v.numpy() for v in source.variables] for source in sources]

    def step(self):
        """Dict of what `expected` has, as this replica finds it."""
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        rank = tf.cast(replica, tf.int64)
        drawn = replicas.run_once_per_step(lambda: self._source.normal((_DRAWS,), 1.0))
        ids = tf.stack([rank * _ID, -1 - rank, tf.constant(tf.int64.max)])
        ids, flags = replicas.run_once_per_step(self._called, ids, tf.stack([rank % 2 == 0, True]))
        mine = tf.stack([tf.cast(rank + 1, tf.float32), 1.0])
        (total,) = replicas.all_reduce_sum([mine])
        with replicas.already_summed(self._plain):
            self._plain.apply([tf.constant([1.0, 2.0])], [self._applied])
        self._private.apply_clipped_sums([mine], [self._stepped], [None])
        bits = tf.bitcast(self._tails.read_value(), tf.uint64)
        return {
            "tails": tf.cast(_with_tails(bits), tf.float32),
            "drawn": drawn,
            "counter": tf.identity(self._source.variables[1].read_value()),
            "ids": ids,
            "flags": tf.cast(flags, tf.int32),
            "calls": tf.identity(self._calls.read_value()),
            "total": total,
            "applied": tf.identity(self._applied.value),
            "charged": tf.identity(self._private.charging.variables[0].read_value()),
            "stepped": tf.identity(self._stepped.value),
        }

    def expected(self, count):
        """Dict of name to (value, relative tolerance), computed on the host."""
        ids = [[rank * _ID, -1 - rank, tf.int64.max] for rank in range(count)]
        flags = [[rank % 2 == 0, True] for rank in range(count)]
        total = np.array([count * (count + 1) / 2, count])
        with_noise = _released_on_host(self._states[1], total)
        with tf.device("CPU:0"):
            tails = _with_tails(tf.constant(_TAILS)).numpy()
        low = (int(_COUNTER[0]) + _DRAWS + 1) % 2**64
        return {
            "tails": (tails, _TOLERANCE),
            "drawn": (_of_host(self._states[0], _DRAWS), _TOLERANCE),
            "counter": (np.array([low, _COUNTER[1] + 1]), 0),
            "total": (total, 0),
            "ids": (np.array(ids, np.int64).ravel(), 0),
            "flags": (np.array(flags, np.int32).ravel(), 0),
            "calls": (np.array(1), 0),
            "applied": (np.array([-1.0, -2.0]), 0),
            "charged": (np.array(1), 0),
            "stepped": (-with_noise / _BATCH, _TOLERANCE),
        }

    def _called(self, ids, flags):
        self._calls.assign_add(1)
        return ids, flags


def _of_host(state, size):
    """float64 noise of a known key and counter."""
    key, counter = (tf.bitcast(tf.constant(words), tf.uint64) for words in state)
    with tf.device("CPU:0"):
        bits = gaussian.philox_bits(key, counter, [size])
        return gaussian.standard_normal_from_bits(bits).numpy()


def _released_on_host(state, total):
    """What a step of `_Program` releases of this total, float64."""
    key, counter = (tf.bitcast(tf.constant(words), tf.uint64) for words in state)
    with tf.device("CPU:0"):
        on = Grid(_SIGMA * _CLIP_NORM, _CLIP_NORM, total.size, sum_rounding(_BATCH))
        return grid.release(tf.constant(total), on, key, counter, dtype=tf.float64).numpy()


def _agree(value, expected, tolerance):
    if value.shape != expected.shape:
        return False
    if not tolerance:
        return np.array_equal(value, expected)
    return bool(np.all(np.abs(value - expected) <= tolerance * np.maximum(np.abs(expected), 1)))


def _short(values):
    return np.array2string(np.asarray(values), threshold=6)
