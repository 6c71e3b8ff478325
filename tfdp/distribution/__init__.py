"""Private training on several devices, with `tf.distribute` (MATH.md section 1).

The private step itself is in `models` and `optimizers`; here is where it meets the other replicas.
"""

import importlib

_EXPORTS = {
    "BackupAndRestore": "backup",
    "poisson_batches": "poisson",
    "select_on_host": "host_selection",
}

__all__ = [*_EXPORTS]


def __getattr__(name):
    # Lazily: `noise` and `optimizers` import `replicas`, which is below them, and `data` is not.
    if name in _EXPORTS:
        module = importlib.import_module(f"tfdp.distribution.{_EXPORTS[name]}")
        return getattr(module, name)
    raise AttributeError(f"module 'tfdp.distribution' has no attribute {name!r}")


def __dir__():
    return sorted(__all__)
