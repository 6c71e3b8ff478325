"""Where weights come from: an initializer, training that is charged, or elsewhere.

What training costs travels with the weights. Values that came another way (`set_weights`, a copy
of a model, a loop of the user's own, training before tfdp saw the model) have no history: the
statement then says that they are assumed to have learned nothing from the records.
"""

import contextlib
import types

import keras
import numpy as np
import tensorflow as tf

from tfdp._compat.keras import all_layers
from tfdp.data.provenance.variable_values import (
    FOREIGN,
    RESTORED,
    ROWS,
    STATE,
    TRAINED,
    TRAINING,
    fingerprint,
    is_large,
)
from tfdp.training.weights.held_constants import carries_its_charge
from tfdp.training.weights.initial_values import INITIALIZER, knows_no_data


class WeightOrigin:
    """Knows which values of a model's variables are accounted for.

    A value is accounted for if an initializer made it, or if it is what a charged run left or a
    file with its charges restored. Fingerprints of the values are kept on the variables.

    A variable that is marked as released (`mark_released`) is to keep the values of its release.
    Variables with a true attribute `is_accounted_for` are what a layer was told, publicly or by a
    charged release, and may change.

    Args:
        model: the model.
    """

    def __init__(self, model):
        self._model = model
        self._restored = set()
        self._has_begun = False
        # By the ids of handles, which `reads` keeps: see `other_reads`.
        self.reads, self.others = {}, {}
        # Sentences of `held_constants`, in order.
        self.constants = {}

    def begin(self):
        """Called eagerly before a charged run, or before charged steps outside of one."""
        if self._has_begun:
            return
        self._has_begun = True
        # The checks before the run may have built layers, and `build` may load weights.
        self._examine([v for v in self._variables() if not vars(v).keys() & {STATE, FOREIGN}])
        for variable in self._variables():
            vars(variable)[STATE] = TRAINING

    def end(self):
        """Called eagerly after it; what its steps made of the values is accounted for, too."""
        if not self._has_begun:
            return
        self._has_begun = False
        for variable in self._in_training():
            vars(variable).update({STATE: fingerprint(variable), TRAINED: True})

    @contextlib.contextmanager
    def loading(self):
        """While a file is read, which may stop halfway: a run does not account for its values."""
        before = {id(v): fingerprint(v) for v in self._in_training()}
        try:
            yield
        finally:
            changed = [v for v in self._in_training() if before.get(id(v)) != fingerprint(v)]
            for variable in changed:
                del vars(variable)[STATE]  # the run did not make this value
            self._examine(changed)
            for variable in changed:
                vars(variable)[STATE] = TRAINING

    def elsewhere(self):
        """Paths of the variables whose values are not accounted for."""
        return [v.path for v in self._from_elsewhere()]

    def _from_elsewhere(self):
        self._examine(self._variables())
        for v in self._others():
            known = isinstance(v, keras.Variable) and self._is_known(v)
            made_by = [vars(v)[INITIALIZER]] if INITIALIZER in vars(v) else ()
            if not known and not _is_initial(v, made_by):
                vars(v)[FOREIGN] = False
        return [v for v in (*self._variables(), *self._others()) if FOREIGN in vars(v)]

    def assumption(self):
        """The sentences for the statement: those that name a variable, and one for each array."""
        foreign, found = self._from_elsewhere(), []
        before = [v.path for v in foreign if not vars(v)[FOREIGN]]
        after = [v.path for v in foreign if vars(v)[FOREIGN]]
        if before:
            found.append(
                f"the initial values of {_named(before)} came from elsewhere, and learned nothing "
                "from these records"
            )
        if after:
            found.append(
                f"the values of {_named(after)} were changed after private training, outside of "
                "it. The new values came from elsewhere, and learned nothing from these records"
            )
        return (*found, *self.constants)

    def states(self):
        """Fingerprints of the values that are accounted for, to be stored with the charges."""
        if not tf.executing_eagerly():
            return []  # tf.saved_model.save: who restores weights from one has them from elsewhere
        return states_of(self._model, self._variables())

    def values(self):
        """Fingerprints of all values, accounted for or not, in the order of the variables."""
        return [fingerprint(v) for v in self._variables()]

    def restore(self, states):
        """Takes over what `states` gave when the charges were stored."""
        self._restored |= set(states)

    def _examine(self, variables):
        fresh = _initializers(self._model)
        for v in variables:
            if self._is_known(v):
                continue
            if _is_initial(v, fresh.get(id(v), ())):
                vars(v).setdefault(STATE, fingerprint(v))
            else:
                vars(v)[FOREIGN] = TRAINED in vars(v)

    def _in_training(self):
        return [v for v in self._variables() if vars(v).get(STATE) == TRAINING]

    def _is_known(self, variable):
        state = vars(variable).get(STATE)
        if state == TRAINING:
            return True
        restored = self._restored | vars(variable).get(RESTORED, set())
        if state is None and not restored:
            return False
        current = fingerprint(variable)
        return current == state or current in restored

    def _others(self):
        own = {id(v) for v in self._variables()}
        return [v for v in self.others.values() if id(v) not in own]

    def _variables(self):
        return [
            v
            for v in (*self._model.trainable_variables, *self._model.non_trainable_variables)
            if tf.as_dtype(v.dtype).is_floating and not getattr(v, "is_accounted_for", False)
        ]


def _named(paths):
    return f"variable {paths[0]}" if len(paths) == 1 else f"{len(paths)} variables ({paths[0]} …)"


def states_of(model, variables):
    """Fingerprints of the values of a model's variables that are accounted for, as files hold them.

    Args:
        model: the `keras.Model`.
        variables: those of its variables that may be accounted for.
    """
    found = []
    for variable in variables:
        if FOREIGN not in vars(variable):
            state = vars(variable).get(STATE)
            found.append(fingerprint(variable) if state == TRAINING else state)
    return [*(state for state in found if state is not None), *map(fingerprint, _merged(model))]


def _merged(model):
    """What Keras writes for weights with LoRA: their sum with the product of its two matrices."""
    for layer in all_layers(model):
        for name in ("kernel", "embeddings"):
            weight = vars(layer).get(f"_{name}")
            if weight is None or not getattr(layer, "lora_enabled", False):
                continue
            if not any(FOREIGN in vars(v) for v in layer.weights):
                value = tf.cast(getattr(layer, name), weight.dtype)
                yield types.SimpleNamespace(shape=weight.shape, value=value)


def _initializers(model):
    """Dict of a variable's id to the initializers that may have made it: its own, its layer's."""
    found = {id(v): [vars(v)[INITIALIZER]] for v in model.variables if INITIALIZER in vars(v)}
    for layer in all_layers(model):
        own = [v for v in vars(layer).values() if knows_no_data(v) or carries_its_charge(v)]
        for variable in layer.weights:
            found.setdefault(id(variable), []).extend(own)
    return found


def _is_initial(variable, initializers):
    """Whether an initializer of the layer gives this value: Keras' give the same at each call."""
    if is_large(variable):
        return any(_is_initial_table(variable, one) for one in initializers)
    value = np.asarray(tf.convert_to_tensor(variable.value))  # those of TPUs are no arrays
    if np.isin(value, (0, 1)).all():
        return True  # zeros, ones and the like hold nothing
    return any(_is_multiple(value, _drawn(one, variable)) for one in initializers)


def _is_multiple(value, drawn):
    """Whether a value is what was drawn, up to one factor for all of it.

    EinsumDense draws by a copy of its initializer that knows the roles of its axes, and so has
    another scale. One number is all that such a factor could have learned.
    """
    if drawn is None or drawn.shape != value.shape:
        return False
    largest = np.abs(drawn).max(initial=0.0)
    if largest == 0.0:
        return not value.any()
    scale = np.abs(value).max() / largest
    return np.allclose(value, drawn * scale, rtol=1e-5, atol=1e-7 * largest * scale)


def _drawn(initializer, variable, shape=None):
    try:
        drawn = initializer(variable.shape if shape is None else shape, dtype=variable.dtype)
    except (TypeError, ValueError):
        return None  # an initializer of another variable of the layer: another shape
    return np.asarray(drawn)


def _is_initial_table(variable, initializer):
    # The first rows alone: initializers of look-up tables do not depend on how many rows there are.
    rows = min(variable.shape[0], ROWS)
    first = np.asarray(tf.gather(variable.value, np.arange(rows)))
    return np.array_equal(first, _drawn(initializer, variable, (rows, *variable.shape[1:])))
