"""Several devices and workers: samplers, checks, backups. One device needs none of it.

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
