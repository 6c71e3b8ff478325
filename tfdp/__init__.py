"""tfdp: differential privacy for Keras 3 on TensorFlow.

The package imports lazily: `import tfdp` loads neither TensorFlow nor Keras, and
`tfdp.accounting` never does.
"""

import importlib

from tfdp._compat.imports import when_imported

__version__ = "0.1.0"

_SUBPACKAGES = (
    "accounting",
    "audit",
    "callbacks",
    "clipping",
    "data",
    "distribution",
    "layers",
    "metrics",
    "models",
    "optimizers",
    "selection",
    "serving",
    "tuning",
)
_EXPORTS = {
    "BudgetError": "errors",
    "PrivacyBudget": "accounting",
    "PrivacyError": "errors",
    "make_private": "models",
}

__all__ = [*_SUBPACKAGES, *_EXPORTS]


def __getattr__(name):
    if name in _SUBPACKAGES:
        return importlib.import_module(f"tfdp.{name}")
    if name in _EXPORTS:
        return getattr(importlib.import_module(f"tfdp.{_EXPORTS[name]}"), name)
    raise AttributeError(f"module 'tfdp' has no attribute {name!r}")


def __dir__():
    return sorted(__all__)


# `.keras` files name the classes of this package: make them known without importing them.
when_imported("keras", lambda: importlib.import_module("tfdp.registration").register())
