"""Charges in the files of plain Keras models.

A model that was made private is still a plain Keras model, and may be saved as one. Its files then
carry the charges in a group of their own, which Keras passes over: they load anywhere. Where tfdp
is imported, the loaded model remembers them for `make_private`.

Keras has no public place for this. `H5IOStore.h5_file`, the file behind the store that
`save_own_variables` is given, is private; tests/contracts/test_compat.py says what is expected.
"""

import functools

import keras
import numpy as np

_GROUP = "_tfdp"
_NAME = "charges"
_LOADED = "_tfdp_loaded_charges"


def carry_charges(model, to_bytes):
    """Has every file of a model carry what `to_bytes()` gives, a uint8 array."""
    save = type(model).save_own_variables

    @functools.wraps(save)
    def save_own_variables(store):
        save(model, store)
        file = getattr(store, "h5_file", None)
        if file is not None and _GROUP not in file:
            file.create_group(_GROUP).create_dataset(_NAME, data=to_bytes())

    # Past Keras' tracking of attributes.
    vars(model)["save_own_variables"] = save_own_variables


def loaded_charges(model):
    """The charges that the file of a model carried, as a uint8 array; or None."""
    return vars(model).get(_LOADED)


def install():
    """Makes Keras models remember the charges in the files that they are loaded from."""
    load = keras.Model.load_own_variables
    if hasattr(load, "remembers_charges"):
        return

    @functools.wraps(load)
    def load_own_variables(self, store):
        load(self, store)
        file = getattr(store, "h5_file", None)
        if file is not None and _GROUP in file:
            vars(self)[_LOADED] = np.asarray(file[_GROUP][_NAME])

    load_own_variables.remembers_charges = True
    keras.Model.load_own_variables = load_own_variables
