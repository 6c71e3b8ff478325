"""Values that hold inside a `with`, for one thread: replicas of one process are threads."""

import contextlib


@contextlib.contextmanager
def holding(local, name, value):
    """While open, an attribute of a `threading.local` has this value; afterwards what it had.

    Args:
        local: the `threading.local`.
        name: of the attribute; None is as if it had never been set.
        value: its value.
    """
    before = getattr(local, name, None)
    setattr(local, name, value)
    try:
        yield
    finally:
        setattr(local, name, before)
