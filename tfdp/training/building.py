"""Making the variables of a step before the step is traced."""

import keras
import numpy as np
import tensorflow as tf

from tfdp._compat.keras import build_from_specification, has_strategy

# What a model, a loss or a metric may say of Keras tensors, which hold no values.
_NOT_SYMBOLIC = (AttributeError, RuntimeError, TypeError, ValueError, tf.errors.OpError)


def build_ahead(model, x, y=None):
    """Makes the variables of model, optimizer and metrics, where shapes are known without data.

    TensorFlow traces a function twice if variables are made in it, and the first step takes twice
    as long to begin.

    Args:
        model: a compiled `DPModel`.
        x: a batched dataset, or the inputs of a batch or of all examples.
        y: targets, unless x is a dataset.
    """
    to_be_traced = not model.run_eagerly and model.train_function is None
    if not to_be_traced or has_strategy(model):
        return
    batch = _symbolic(x, y)
    if batch is None:
        return
    try:
        build_from_specification(model, batch)
    except _NOT_SYMBOLIC:
        # A model that runs on data alone, or data that do not fit it: the trace makes the
        # variables, or says what is wrong.
        return


def _symbolic(x, y):
    """(x, y, sample_weight) as Keras tensors of any batch size; None if their shapes vary."""
    data = x.element_spec if isinstance(x, tf.data.Dataset) else (x, y)
    x, *rest = keras.utils.unpack_x_y_sample_weight(data)
    data = (getattr(x, "inputs", x), *rest)  # without the rows that were chosen for it
    if not all(t is None or _is_known(t) for t in tf.nest.flatten(data)):
        return None
    return tf.nest.map_structure(
        lambda t: None if t is None else keras.KerasTensor(
            (None, *t.shape[1:]), tf.as_dtype(t.dtype).name), data,
    )  # fmt: skip


def _is_known(tensor):
    kinds = (np.ndarray, tf.Tensor, tf.TensorSpec)
    if not isinstance(tensor, kinds) or tf.TensorShape(tensor.shape).rank in (None, 0):
        return False
    shape = tf.TensorShape(tensor.shape)[1:]
    dtype = tf.as_dtype(tensor.dtype)
    return shape.is_fully_defined() and (dtype.is_floating or dtype.is_integer or dtype.is_bool)
