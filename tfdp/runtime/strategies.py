"""Strategies that trace a step once, as one program that XLA compiles for every replica."""

import contextlib

import tensorflow as tf

from tfdp._compat.tensorflow import traces_for_xla

_SINGLE_TRACE = (
    tf.distribute.TPUStrategy,
    tf.distribute.experimental.TPUStrategy,
    tf.compat.v1.distribute.experimental.TPUStrategy,
)


def traces_once(strategy):
    """Whether all replicas of a strategy run one traced program, with no call between them.

    In such a program an assignment to a variable without aggregation changes the copy of the
    replica that makes it.
    """
    return isinstance(strategy, _SINGLE_TRACE)


def compiled_by_xla(model):
    """Whether XLA compiles the steps of a model, so that their shapes must be static.

    Args:
        model: a Keras model, or another object that has no strategy.
    """
    strategy = getattr(model, "distribute_strategy", None)
    asked = bool(getattr(model, "jit_compile", False)) or traces_for_xla()
    return asked or traces_once(strategy)


def scope_of(model):
    """The scope of the strategy that a Keras model was made under; nothing inside of a scope."""
    strategy = getattr(model, "distribute_strategy", None)
    if strategy is None or tf.distribute.has_strategy():
        return contextlib.nullcontext()
    return strategy.scope()
