"""Variables that are zero, which hide what they multiply as long as they are.

A gate that starts at zero (a residual branch scaled by zero, the weight of a term that a callback
raises later) lets nothing through before training, and all of it afterwards.
"""

import contextlib

import numpy as np
import tensorflow as tf

# A table of more values stays as it is: to fill it would take as much memory again.
_LARGEST = 2**22


def closed(variables):
    """Those of some tf.Variables that are zero throughout, and can be opened.

    Args:
        variables: floating-point and other ones; some may be there twice.
    """
    found = {id(v): v for v in variables if v.dtype.is_floating and 0 < _size(v) <= _LARGEST}
    return [v for v in found.values() if _is_zero(v)]


@contextlib.contextmanager
def opened(variables):
    """Context in which variables that are zero hold other values, always the same.

    Args:
        variables: what `closed` gave.
    """
    generator = np.random.default_rng(0)
    with contextlib.ExitStack() as stack:
        for variable in variables:
            stack.callback(variable.assign, tf.identity(variable.value()))
            values = generator.uniform(0.5, 1.0, variable.shape)
            if variable.shape.rank > 1:
                # As initializers do: what goes through neither grows nor vanishes.
                values *= generator.choice([-1, 1], variable.shape) / np.sqrt(variable.shape[0])
            variable.assign(tf.cast(values, variable.dtype))
        yield


def _size(variable):
    return variable.shape.num_elements() or 0


def _is_zero(variable):
    value = variable.value()
    values = (tf.cast(value, tf.float32) if value.dtype == tf.bfloat16 else value).numpy().ravel()
    return not np.any(values[:1000]) and not np.any(values)
