"""Whether the step that is being traced will be compiled as one XLA program.

XLA fuses what TensorFlow runs one operation after another, and pays for layouts and for code that
TensorFlow does not pay for. Where the two need different programs for the same numbers, they ask
here; `DPModel.train_step` answers.
"""

import contextlib
import threading

import tensorflow as tf

from tfdp.distribution.single_trace import traces_once

_STATE = threading.local()


@contextlib.contextmanager
def compiling(now):
    """What is traced inside is compiled by XLA as part of a whole step, if `now`."""
    before = is_compiling()
    _STATE.now = bool(now)
    try:
        yield
    finally:
        _STATE.now = before


def is_compiling():
    """Whether the innermost `compiling` that is open says so; False if none is."""
    return getattr(_STATE, "now", False)


@contextlib.contextmanager
def for_platform(name):
    """What is traced inside will be compiled for "CPU", "GPU" or "TPU", wherever it is traced."""
    before = getattr(_STATE, "platform", None)
    _STATE.platform = name
    try:
        yield
    finally:
        _STATE.platform = before


def platform():
    """For what XLA compiles the step: "CPU", "GPU" or "TPU"."""
    forced = getattr(_STATE, "platform", None)
    if forced is not None:
        return forced
    if traces_once(tf.distribute.get_strategy()):
        return "TPU"
    return "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
