"""Variables that hold a private release: which values they are to have."""

import hashlib

import numpy as np
import tensorflow as tf

#: Attribute of a variable: the fingerprint of the values that are accounted for.
STATE = "_tfdp_state"
_RELEASED = "_tfdp_released"
_WHOLE = 1 << 22  # larger variables are known by some of their rows
ROWS = 4096


def mark_released(variable):
    """Says that a variable holds a release, which its layer charges; other values are not known."""
    with tf.init_scope():
        vars(variable)[STATE] = fingerprint(variable)
    vars(variable)[_RELEASED] = True


def is_released(variable):
    """Whether a variable holds a release."""
    return _RELEASED in vars(variable)


def is_large(variable):
    """Whether a variable is known by some of its rows."""
    return int(np.prod(variable.shape)) > _WHOLE


def fingerprint(variable):
    """A digest of the values of a variable; of a large one, of some of its rows."""
    rows = _some_rows(variable)
    digest = hashlib.blake2b(str((variable.shape, rows.dtype)).encode(), digest_size=12)
    digest.update(np.ascontiguousarray(rows).tobytes())
    return digest.hexdigest()


def _some_rows(variable):
    if not is_large(variable):
        return np.asarray(variable.value)
    # Never the whole table: reading it would copy it.
    count = variable.shape[0]
    rows = np.unique(np.linspace(0, count - 1, min(count, ROWS)).astype(np.int64))
    return np.asarray(tf.gather(variable.value, rows))
