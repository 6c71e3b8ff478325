"""What a noise source releases step by step, and whether draws are standard normal."""

import concurrent.futures
import time

import keras
import numpy as np
import tensorflow as tf
from scipy import stats

SIZE = 20_000


class Weights(keras.callbacks.Callback):
    """Keeps the weights after each execution."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append(self.model.trainable_variables[0].numpy().ravel().astype(np.float64))


def releases(source, steps, grid, sizes=(SIZE,), sums=0.0):
    """(steps, n) what is released of constant sums, in float64: the grid itself."""
    found = []
    for _ in range(steps):
        tensors = [tf.fill([size], np.float32(sums)) for size in sizes]
        found.append(np.concatenate(source.release(tensors, grid, dtype=tf.float64)))
    return np.array(found)


def assert_standard(z, alarms=1e-9):
    """Mean and covariance over steps of independent standard normal values.

    Each entry is off by more than its bound with probability `alarms` at most; of 8 steps there are
    44 entries: the test fails by chance with probability below 5e-8.
    """
    steps, number = z.shape
    bound = stats.norm.isf(alarms / 2)
    covariance = z @ z.T / number
    off = covariance - np.eye(steps)
    deviation = np.where(np.eye(steps, dtype=bool), np.sqrt(2.0 / number), number**-0.5)
    assert np.all(np.abs(off) < bound * 1.1 * deviation), np.round(covariance, 3)
    assert np.all(np.abs(z.mean(1)) < bound * number**-0.5)


def assert_key_and_counter_decide(begin, release):
    """A change in any half of the key or of the counter's two words changes every value drawn.

    Args:
        begin: function of no arguments to a source that has drawn nothing yet.
        release: function of a source to what it draws, an array of float64.
    """
    words, found = np.array([7, 11, 13]), []
    for place, bit in ((None, 0), *((i, b) for i in range(3) for b in (5, 41)), (None, 0)):
        changed = words.copy()
        if place is not None:
            changed[place] ^= 1 << bit
        source = begin()
        source._key.assign(changed[:1])
        source._counter.assign(changed[1:])
        found.append(np.asarray(release(source)))
    first, *others, again = found
    np.testing.assert_array_equal(first, again)
    for i, one in enumerate(others):
        assert not np.any(one == first), f"word {i // 2}, bit {(5, 41)[i % 2]}"


class Slow:
    """A variable that takes long to read: every other thread could read it before it is assigned.

    Args:
        variable: of integers.
    """

    def __init__(self, variable):
        self._variable, self.assigned = variable, []

    def read_value(self):
        value = self._variable.read_value()
        time.sleep(0.02)
        return value

    def assign(self, value):
        self.assigned.append(np.ravel(value).tolist())
        self._variable.assign(value)


def assert_threads_draw_apart(source, name, grid):
    """No two threads that release at the same time read one counter, or number of a step.

    Args:
        source: that draws in all of them.
        name: of the attribute that is read and assigned.
        grid: of the releases.
    """
    slow = Slow(getattr(source, name))
    setattr(source, name, slow)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        # In float64, as `releases`: one compiled program serves both.
        draw = lambda _: source.release([tf.zeros([4])], grid, dtype=tf.float64)  # noqa: E731
        list(pool.map(draw, range(8)))
    assert len(slow.assigned) == 8 == len({tuple(one) for one in slow.assigned})
