"""What is known of the values of variables: what they are to be, and what they cost.

It is kept on the variables themselves, whatever models they are in.
"""

import copy
import hashlib
import weakref

import keras
import numpy as np
import tensorflow as tf

from tfdp.runtime.external_table import handles_of

#: Attribute of a variable: the fingerprint of the values that are accounted for.
STATE = "_tfdp_state"
#: Attribute of a variable whose values came from elsewhere, and of what they become: whether the
#: last of them came after charged steps had trained it. The notes of those steps name earlier ones.
FOREIGN = "_tfdp_from_elsewhere"
#: Attribute of a variable: charged steps have trained it in this process.
TRAINED = "_tfdp_trained"
#: Attribute of a variable: fingerprints of values that came from a file with their charges.
RESTORED = "_tfdp_restored"
#: Attribute of a variable, and of its layer: the `ChargeHistory` of the weights.
HISTORY = "_tfdp_charges"
#: Instead of a fingerprint, while a charged run changes the values.
TRAINING = "training"
_RELEASED = "_tfdp_released"
# id -> what holds a history, or a release. Keras compares variables by value: no set can hold them.
_HOLDERS = weakref.WeakValueDictionary()
_OF_RELEASES = weakref.WeakValueDictionary()
_WHOLE = 1 << 22  # larger variables are known by some of their rows
ROWS = 4096


def give_history(holder, history):
    """Makes a variable, or a layer, hold the `ChargeHistory` of its weights."""
    vars(holder)[HISTORY] = history
    _HOLDERS[id(holder)] = holder


def variables_with_history():
    """(variable, history) of the Keras variables of this process that hold one, if only an empty.

    The variables that `quantize` made of others have the history of their layer.
    """
    found = []
    for holder in list(_HOLDERS.values()):
        history = vars(holder)[HISTORY]
        if isinstance(holder, keras.Variable):
            found.append((holder, history))
        elif getattr(holder, "quantization_mode", None) is not None:
            found += [(variable, history) for variable in holder.weights]
    return found


def histories_read(handles):
    """(variable, history) of those whose resource handles are among some, given by their ids."""
    return [
        (variable, history)
        for variable, history in (variables_with_history() if handles else ())
        if any(id(handle) in handles for handle in handles_of(variable))
    ]


def mark_released(variable, layer):
    """Says that a variable holds a release, which its layer charges; other values are not known."""
    with tf.init_scope():
        vars(variable)[STATE] = fingerprint(variable)
    vars(variable)[_RELEASED] = layer
    _OF_RELEASES[id(variable)] = variable


def is_released(variable):
    """Whether a variable holds a release."""
    return _RELEASED in vars(variable)


def layers_of_releases_read(handles):
    """The layers whose releases are in variables among some resource handles, given by their ids.

    Args:
        handles: set of ids.
    """
    found = {}
    for variable in list(_OF_RELEASES.values()) if handles else ():
        if any(id(handle) in handles for handle in handles_of(variable)):
            layer = vars(variable)[_RELEASED]
            found[id(layer)] = layer
    return list(found.values())


def hand_on(pairs):
    """Notes what is known of variables on others that were given the same values.

    Args:
        pairs: (variable, the one that was given its value); histories of charges are copied.
    """
    from tfdp.accounting.charges.history import (
        ChargeHistory,  # here: needed for private weights only
    )

    copies = {}
    for old, new in pairs:
        for name in (STATE, FOREIGN, RESTORED, TRAINED):
            known = vars(old).get(name)
            if known is not None and known != TRAINING:
                vars(new)[name] = copy.copy(known)
        history = vars(old).get(HISTORY)
        if history is None:
            continue
        if id(history) not in copies:
            copies[id(history)] = ChargeHistory()
            copies[id(history)].merge_json(history.to_json())
        give_history(new, copies[id(history)])


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
