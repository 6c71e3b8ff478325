"""Weight penalties, kept out of the losses of single examples: they depend on no example."""

import threading

from tfdp.runtime.threads import holding

# Of each thread, of which every replica has one.
_APART = threading.local()


def are_apart():
    """Whether losses are computed without penalties now."""
    return getattr(_APART, "yes", False)


def apart():
    """Context in which losses are computed without penalties."""
    return holding(_APART, "yes", True)
