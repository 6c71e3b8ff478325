"""What Python, NumPy, Keras and TensorFlow count and draw for a whole process."""

import os
import random
import secrets

import numpy as np
from keras.src.backend.common import global_state
from keras.src.random import seed_generator
from keras.src.utils import naming, rng_utils
from tensorflow.python.eager import context
from tensorflow.python.ops import stateful_random_ops

_NAMES = "object_name_uids"
_SEEDS_OF_KERAS = (rng_utils.GLOBAL_RANDOM_SEED, seed_generator.GLOBAL_SEED_GENERATOR)


def name_counts():
    """How many objects Keras has named by each name, as a dict."""
    return dict(global_state.get_global_attribute(_NAMES) or {})


def count_names_from(counts):
    """Lets Keras name objects as after `name_counts` had given `counts`."""
    naming.reset_uids()
    global_state.get_global_attribute(_NAMES).update(counts)


class RandomState:
    """The states of all random numbers of the process, as they are now."""

    def __init__(self):
        self._python, self._numpy = random.getstate(), np.random.get_state()
        self._keras = [global_state.get_global_attribute(name) for name in _SEEDS_OF_KERAS]
        self._generator = stateful_random_ops.global_generator
        self._seed = context.global_seed()
        if self._seed is not None:
            self._operations = context.context()._rng.getstate()

    def restore(self):
        """Lets random numbers go on as if none had been drawn since.

        Those of operations with a seed of their own start anew.
        """
        random.setstate(self._python)
        np.random.set_state(self._numpy)
        for name, value in zip(_SEEDS_OF_KERAS, self._keras, strict=True):
            global_state.set_global_attribute(name, value)
        stateful_random_ops.global_generator = self._generator
        context.set_global_seed(self._seed)
        if self._seed is not None:
            context.context()._rng.setstate(self._operations)


def seed_from_entropy():
    """Takes new seeds for all random numbers of the process from the operating system."""
    random.seed(os.urandom(32))
    np.random.seed(np.frombuffer(os.urandom(32), np.uint32))
    for name in _SEEDS_OF_KERAS:  # made anew when it is needed, from Python's numbers
        global_state.set_global_attribute(name, None)
    stateful_random_ops.global_generator = None
    context.set_global_seed(secrets.randbits(62))
