"""Batches that Python makes end before the interpreter does.

TensorFlow fetches batches ahead in threads of its own. A thread that wants to run Python while the
interpreter ends is gone for good, and the program, waiting for its batch, never exits. Keras closes
its iterators; a script that keeps one open at its end does not.
"""

import atexit
import functools
import os
import threading
import time

_END = object()
_changed = threading.Condition()
_making, _exiting = 0, False


def ended_at_exit(make_batches):
    """A function that gives the batches which `make_batches()` gives, until the program exits."""
    _register()
    return lambda: _until_exit(make_batches())


def _until_exit(batches):
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


@functools.cache
def _register():
    atexit.register(_exit)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_in_child)


def _in_child():
    """After a fork: the threads that made batches are not there."""
    global _changed, _making
    _changed, _making = threading.Condition(), 0


def _exit():
    global _exiting
    with _changed:
        _exiting = True
        _changed.wait_for(lambda: not _making, timeout=30)
    time.sleep(0.1)  # TensorFlow's frames around ours return
