"""Which initializer made a variable, remembered as it is made.

Many layers give theirs by name, or make one in `build`, and keep neither. Whether a value is that
of an initializer could not be told of their variables later.

Keras has no public place for this: `keras.layers.Layer.add_weight` is wrapped; it hands on what it
was given. tests/contracts/test_compat.py says what is expected of it.
"""

import functools

import keras
import numpy as np

#: Attribute of a variable: the initializer that made it.
INITIALIZER = "_tfdp_initializer"
_LIBRARIES = ("keras.", "keras_hub.", "keras_rs.", "tfdp.")


def install():
    """Makes layers remember the initializers of their variables."""
    add = keras.layers.Layer.add_weight
    if hasattr(add, "remembers_initializers"):
        return

    @functools.wraps(add)
    def add_weight(self, *args, **kwargs):
        if isinstance(kwargs.get("initializer"), str):
            kwargs["initializer"] = keras.initializers.get(kwargs["initializer"])
        elif len(args) > 1 and isinstance(args[1], str):
            args = (args[0], keras.initializers.get(args[1]), *args[2:])
        elif len(args) < 2 and kwargs.get("initializer") is None and _is_floating(self, kwargs):
            kwargs["initializer"] = keras.initializers.GlorotUniform()  # as Keras does
        variable = add(self, *args, **kwargs)
        given = args[1] if len(args) > 1 else kwargs.get("initializer")
        if knows_no_data(given):
            vars(variable)[INITIALIZER] = given
        return variable

    add_weight.remembers_initializers = True
    keras.layers.Layer.add_weight = add_weight


def knows_no_data(initializer):
    """Whether this is an initializer of a library that holds no values of its own.

    `Constant` may be given a whole table, and a class of the user's may hold anything.
    """
    if not isinstance(initializer, keras.initializers.Initializer):
        return False
    held = vars(initializer).get("value", 0.0)
    return type(initializer).__module__.startswith(_LIBRARIES) and np.ndim(held) == 0


def _is_floating(layer, kwargs):
    dtype = kwargs.get("dtype") or layer.variable_dtype
    return "float" in keras.backend.standardize_dtype(dtype)
