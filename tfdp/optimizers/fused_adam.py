"""Adam's update by TensorFlow's one operation, where Keras writes thirty for each variable.

The formula is Keras' own; only 1 - β₂ is rounded otherwise, which changes an update by 10⁻⁵ of
itself. Each of the thirty reads or writes all of a variable, and is one more to trace.
"""

import contextlib

import keras
import tensorflow as tf

from tfdp._compat.keras import moments_of
from tfdp.runtime.xla import is_compiling, platform

# Their subclasses may have another formula.
_KINDS = (keras.optimizers.Adam, keras.optimizers.AdamW)


@contextlib.contextmanager
def one_operation(optimizer):
    """While open, `optimizer.apply` moves a float32 variable by one operation, if it is Adam.

    A step that XLA compiles as a whole keeps Keras' operations: XLA makes one loop of them.

    Args:
        optimizer: a built `keras.optimizers.Optimizer`.
    """
    of_this_kind = type(optimizer) in _KINDS and "update_step" not in vars(optimizer)
    if not of_this_kind or optimizer.amsgrad or is_compiling() or platform() == "TPU":
        yield
        return
    by_keras, powers = optimizer.update_step, []

    def update_step(gradient, variable, learning_rate):
        gradient = tf.convert_to_tensor(gradient)
        if not variable.dtype == gradient.dtype == tf.float32:
            return by_keras(gradient, variable, learning_rate)
        if not powers:  # the same for all variables
            step = tf.cast(tf.convert_to_tensor(optimizer.iterations) + 1, tf.float32)
            powers.extend(tf.pow(beta, step) for beta in (optimizer.beta_1, optimizer.beta_2))
        first, second = moments_of(optimizer, variable)
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle, m=first.handle, v=second.handle,
            beta1_power=powers[0], beta2_power=powers[1], lr=tf.cast(learning_rate, tf.float32),
            beta1=optimizer.beta_1, beta2=optimizer.beta_2, epsilon=optimizer.epsilon,
            grad=gradient,
        )  # fmt: skip
        return None

    # In the instance's dictionary, where Keras neither tracks nor saves it.
    vars(optimizer)["update_step"] = update_step
    try:
        yield
    finally:
        vars(optimizer).pop("update_step", None)
