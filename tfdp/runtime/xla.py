"""Whether the step that is being traced will be compiled as one XLA program.

XLA fuses what TensorFlow runs one operation after another, and pays for layouts and for code that
TensorFlow does not pay for. Where the two need different programs for the same numbers, they ask
here; `DPModel.train_step` answers.
"""

import threading

import tensorflow as tf

from tfdp._compat.tensorflow import traces_for_xla
from tfdp.runtime.strategies import traces_once
from tfdp.runtime.threads import holding

_STATE = threading.local()


def compiling(now):
    """Context: what is traced inside is compiled by XLA as part of a whole step, if `now`."""
    return holding(_STATE, "now", bool(now))


def is_compiling():
    """Whether the innermost `compiling` that is open says so, or a tf.function around it does."""
    return bool(getattr(_STATE, "now", None)) or traces_for_xla()


def for_platform(name):
    """Context: what is traced inside will be compiled for "CPU", "GPU" or "TPU"."""
    return holding(_STATE, "platform", name)


def platform():
    """For what XLA compiles the step: "CPU", "GPU" or "TPU"."""
    forced = getattr(_STATE, "platform", None)
    if forced is not None:
        return forced
    if traces_once(tf.distribute.get_strategy()):
        return "TPU"
    return "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
