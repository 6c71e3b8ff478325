"""What TensorFlow says in its own words only, said with what to do about it."""

import contextlib

import tensorflow as tf

from tfdp._compat.tensorflow import checks_numerics
from tfdp.optimizers import DPOptimizer

#: What stands in an error of TensorFlow, and what it means.
_MEANINGS = {
    "requires a fixed tensor list size": (
        "With `jit_compile=True`, XLA needs an upper bound on the iterations of a loop to "
        "compute its gradient. Give `keras.ops.while_loop` a `maximum_iterations`, or remove "
        "`jit_compile`."
    ),
    "When `num_oov_indices=0` all inputs should be in vocabulary": (
        "A layer that looks values up (StringLookup, IntegerLookup, FeatureSpace) has "
        "`num_oov_indices=0`, so it stops at values that are not in its vocabulary. The rows that "
        'pad a batch hold "" and 0. Make the layer with `num_oov_indices=1`: it then has one more '
        "index. Or look the values up before you sample, and pass the results to the sampler."
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
            "`tf.debugging.enable_check_numerics()` adds operations to every function. XLA "
            "cannot compile them, so the noise cannot be drawn, and they hide the gradients of "
            "single examples. Call `tf.debugging.disable_check_numerics()` before training. You "
            "may use it with `model(x)` and `evaluate`."
        )
    try:
        yield
    except tf.errors.OpError as error:
        for part, meaning in _MEANINGS.items():
            if part in str(error):
                raise ValueError(meaning) from error
        raise
