"""Differential privacy for Keras 3 on TensorFlow.

    import keras, tfdp

    model = tfdp.make_private(keras.Sequential([keras.Input((20,)), keras.layers.Dense(3)]))
    model.compile(
        tfdp.optimizers.DPOptimizer(
            keras.optimizers.Adam(1e-2), budget=tfdp.PrivacyBudget(epsilon=3, delta=1e-5)),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(tfdp.data.poisson_batches((x, y), expected_batch_size=500), epochs=10)
    print(model.privacy_statement())
    tfdp.serving.export(model, "exported/")

Where to find what:

    tfdp.make_private       any Keras model, made private
    tfdp.PrivacyBudget      ε and δ that may be spent
    tfdp.optimizers         DPOptimizer; row optimizers for sparse tables
    tfdp.data               batches drawn as the accountant assumes; releases; data sets
    tfdp.models             recommenders, click models, text classifiers
    tfdp.layers             sparse tables, forward noise, private attention
    tfdp.selection          which rows of sparse tables a step may update
    tfdp.callbacks, tfdp.metrics
    tfdp.accounting         ledger, calibration, statements
    tfdp.clipping           the plan of a step; rules for layers of your own
    tfdp.distribution       several devices and workers
    tfdp.tuning             hyper-parameters, chosen and charged
    tfdp.serving            export for TensorFlow Serving
    tfdp.audit              attacks on every mechanism

The command `tfdp --help` trains, plans, states and audits. The package imports lazily: `import
tfdp` loads neither TensorFlow nor Keras, and `tfdp.accounting` never does.
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
