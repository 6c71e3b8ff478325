"""Batches that Python makes end before the interpreter does.

TensorFlow fetches batches ahead in threads of its own. A thread that wants to run Python while the
interpreter ends is gone for good, and the program, waiting for its batch, never exits. Keras closes
its iterators; a script that keeps one open at its end does not.
"""

import atexit
import threading
import time

_END = object()
_changed = threading.Condition()
_making, _exiting = 0, False


def ended_at_exit(batches):
    """Yields what an iterable does, until the program exits."""
    iterator = iter(batches)
    while _begin():
        try:
            batch = next(iterator, _END)
        finally:
            _finish()
        if batch is _END:
            return
        yield batch


def _begin():
    global _making
    with _changed:
        _making += not _exiting
        return not _exiting


def _finish():
    global _making
    with _changed:
        _making -= 1
        _changed.notify_all()


@atexit.register
def _exit():
    global _exiting
    with _changed:
        _exiting = True
        _changed.wait_for(lambda: not _making, timeout=30)
    time.sleep(0.1)  # TensorFlow's frames around ours return
