"""Whether the step that is being traced will be compiled as one XLA program.

XLA fuses what TensorFlow runs one operation after another, and pays for layouts and for code that
TensorFlow does not pay for. Where the two need different programs for the same numbers, they ask
here; `DPModel.train_step` answers.
"""

import contextlib
import threading

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
