"""What TensorFlow says in its own words only, said with what to do about it."""

import contextlib

import tensorflow as tf

from tfdp._compat.tensorflow import checks_numerics
from tfdp.optimizers import DPOptimizer

#: What stands in an error of TensorFlow, and what it means.
_MEANINGS = {
    "requires a fixed tensor list size": (
        "Under `jit_compile=True` XLA must know how many steps a loop makes at most, to take its "
        "gradient. Give `keras.ops.while_loop` its `maximum_iterations`, or leave `jit_compile` "
        "out."
    ),
}


@contextlib.contextmanager
def explained(model):
    """Context of steps of a model, whose errors it explains.

    Args:
        model: a compiled `DPModel`.

    Raises:
        ValueError: in place of such errors; for private steps under
            `tf.debugging.enable_check_numerics`.
    """
    if isinstance(model.optimizer, DPOptimizer) and checks_numerics():
        raise ValueError(
            "`tf.debugging.enable_check_numerics()` puts operations into every function that XLA "
            "cannot compile, by which the noise is drawn, and gradients of single examples would "
            "be hidden behind them. Call `tf.debugging.disable_check_numerics()` before training; "
            "`model(x)` and `evaluate` may be looked at with it."
        )
    try:
        yield
    except tf.errors.OpError as error:
        for part, meaning in _MEANINGS.items():
            if part in str(error):
                raise ValueError(meaning) from error
        raise
