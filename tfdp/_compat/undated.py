"""Archives that do not say when they were written.

The time at which the best model of a tuning is saved tells how many runs there were, to whoever
knows when it began and how long a run takes.
"""

import functools
import json
import types
import zipfile

import numpy as np
from keras.src.saving import saving_lib

_NO_DATE = (1980, 1, 1, 0, 0, 0)  # the first that a ZIP file can hold


class _AnyZipFile(type):
    def __instancecheck__(cls, one):
        return isinstance(one, zipfile.ZipFile)


class UndatedZipFile(zipfile.ZipFile, metaclass=_AnyZipFile):
    """A `zipfile.ZipFile` whose members all have the same date."""

    def open(self, name, mode="r", *args, **kwargs):
        if mode == "w":
            if not isinstance(name, zipfile.ZipInfo):
                name = zipfile.ZipInfo(name)
            name.date_time = _NO_DATE
        return super().open(name, mode, *args, **kwargs)


def savez(file, **arrays):
    """As `numpy.savez`, without dates and pickles."""
    with UndatedZipFile(file, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)


def install():
    """Lets Keras write `.keras` files without dates from now on."""
    serialize = saving_lib._serialize_model_as_json
    if hasattr(serialize, "drops_dates"):
        return

    @functools.wraps(serialize)
    def _serialize_model_as_json(model):
        config, metadata = serialize(model)
        fields = json.loads(metadata)
        fields.pop("date_saved", None)
        return config, json.dumps(fields)

    _serialize_model_as_json.drops_dates = True
    saving_lib._serialize_model_as_json = _serialize_model_as_json
    saving_lib.zipfile = types.SimpleNamespace(**{**vars(zipfile), "ZipFile": UndatedZipFile})
