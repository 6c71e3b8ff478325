"""Charges in the files of plain Keras models.

A model that was made private is still a plain Keras model, and it, or a part of it, may be saved as
one. Such files carry the charges of the weights in a group of their own, which Keras passes over:
they load anywhere. Where tfdp is imported, the charges are put back onto the variables.

Keras has no public place for this: two methods of `keras.Model` are wrapped, and its writer of
legacy HDF5 files, which cannot carry charges; tests/contracts/test_compat.py says what is expected
of them.
"""

import functools
import json

import keras
import numpy as np

from tfdp._compat.keras import all_layers, check_legacy_saving, file_of
from tfdp.data.provenance.variable_values import HISTORY, RESTORED, give_history
from tfdp.errors import PrivacyError

_GROUP, _NAME = "_tfdp", "charges"


def install():
    """Makes Keras models write and read the charges of their weights."""
    save, load = keras.Model.save_own_variables, keras.Model.load_own_variables
    if hasattr(save, "writes_charges"):
        return

    @functools.wraps(save)
    def save_own_variables(self, store):
        save(self, store)
        file = file_of(store)
        if file is not None and _GROUP not in file and getattr(file, "mode", "r") != "r":
            charges = _charges_of(self)
            if charges is not None:
                file.create_group(_GROUP).create_dataset(_NAME, data=charges)

    @functools.wraps(load)
    def load_own_variables(self, store):
        if HISTORY in store.keys():  # only a `DPModel` writes it there, and takes it out again
            raise ValueError(
                f"These weights were saved from a private model, but {self.name!r} is a plain "
                "one, which expects other paths to its layers in the file. Load them into "
                "`tfdp.make_private(model)`, which shares its weights with `model`, or save the "
                "weights of the plain model, `model.save_weights(path)`."
            )
        load(self, store)
        file = file_of(store)
        if file is not None and _GROUP in file:
            _give_charges(self, bytes(np.asarray(file[_GROUP][_NAME], np.uint8)))

    check_legacy_saving(_refuse_to_lose_charges)
    save_own_variables.writes_charges = True
    keras.Model.save_own_variables = save_own_variables
    keras.Model.load_own_variables = load_own_variables


def _refuse_to_lose_charges(model, filepath):
    if _charges_of(model) is not None:
        raise PrivacyError(
            "Argument `filepath` names a file of the legacy HDF5 format, which would lose the "
            "charges of these weights: training that continues from it would state too small an "
            "epsilon. Save to a `.keras` file, or save the weights to a `.weights.h5` file. "
            f"Received: filepath={str(filepath)!r}"
        )


def _charges_of(model):
    """The charges of a model's weights as a uint8 array, or None if there are none."""
    variables = [v for v in model.weights if HISTORY in vars(v)]
    holders = [*variables, *(layer for layer in all_layers(model) if HISTORY in vars(layer))]
    histories = {id(vars(one)[HISTORY]): vars(one)[HISTORY] for one in holders}
    if not histories:
        return None
    # Here: importing tfdp is to cost little, and these are needed for private weights only.
    from tfdp.accounting.charges.history import ChargeHistory
    from tfdp.training.weights.weights_origin import states_of

    together = ChargeHistory()
    for history in histories.values():
        together.merge_json(history.to_json())
    text = json.dumps({"history": together.to_json(), "states": states_of(model, variables)})
    return np.frombuffer(text.encode(), np.uint8)


def _give_charges(model, data):
    from tfdp.accounting.charges.history import ChargeHistory

    stored = json.loads(data.decode())
    history = ChargeHistory()
    history.merge_json(stored["history"])
    for variable in model.weights:
        if HISTORY in vars(variable):
            vars(variable)[HISTORY].join(history)
        give_history(variable, history)
        vars(variable).setdefault(RESTORED, set()).update(stored["states"])
