"""The charges in the trees of values that Orbax checkpoints hold, and no metrics in these."""

import numpy as np
import tensorflow as tf

from tfdp.data.provenance.variable_values import HISTORY

# Keras assigns what it finds under the path of a variable there, and passes over the rest. It also
# is a part of the tree that callbacks save where they save weights alone.
_HOLDER = "non_trainable_variables"
_METRICS = "metrics_variables"


def with_charges(tree, charges, value_format):
    """A tree of Keras' `get_state_tree` with charges, and without metrics, which are raw data.

    Args:
        tree: the tree.
        charges: uint8 array.
        value_format: as for `get_state_tree`.
    """
    charges = charges if value_format == "numpy_array" else tf.constant(charges)
    return {**tree, _METRICS: {}, _HOLDER: {**tree[_HOLDER], HISTORY: charges}}


def without_charges(tree):
    """A tree as Keras' `set_state_tree` takes it, and the charges that it held; None for none."""
    held = dict(tree.get(_HOLDER, {}))
    charges = held.pop(HISTORY, None)
    tree = {**tree, _HOLDER: held} if _HOLDER in tree else tree
    return tree, None if charges is None else np.asarray(charges, np.uint8)
