"""Weight penalties, kept out of the losses of single examples: they depend on no example."""

import contextlib
import threading

# Of each thread, of which every replica has one.
_APART = threading.local()


def are_apart():
    """Whether losses are computed without penalties now."""
    return getattr(_APART, "yes", False)


@contextlib.contextmanager
def apart():
    """Context in which losses are computed without penalties."""
    before, _APART.yes = are_apart(), True
    try:
        yield
    finally:
        _APART.yes = before
