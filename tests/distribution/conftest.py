"""Strategies over logical CPU devices, and small private models on them."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf
import tpu_emulation

import tfdp


class Replicas:
    """Builds and trains models on several replicas."""

    @staticmethod
    def strategy(count):
        """MirroredStrategy over `count` logical CPU devices."""
        return tf.distribute.MirroredStrategy(
            [f"CPU:{i}" for i in range(count)],
            # Collectives of different sizes cannot live in one process.
            cross_device_ops=tf.distribute.ReductionToOneDevice(),
        )

    @classmethod
    def model(cls, count, build, *, loss="mse", compile_kwargs=None, validate=False, **kwargs):
        """A private model under `count` replicas; none means no strategy at all.

        Args:
            count: number of replicas, or None.
            build: function that makes a keras.Model.
            validate: whether `fit` searches for examples that mix, which has tests of its own.
            kwargs: of the DPOptimizer; `inner` and `rows` make the optimizers it holds.
        """
        with cls.strategy(count).scope() if count else contextlib.nullcontext():
            keras.utils.set_random_seed(0)
            model = tfdp.make_private(build(), validate)
            inner = kwargs.pop("inner", lambda: keras.optimizers.SGD(1.0))
            rows = kwargs.pop("rows", None)
            if rows is not None:
                kwargs["embedding_optimizer"] = rows()
            model.compile(
                tfdp.optimizers.DPOptimizer(inner(), **kwargs), loss=loss, **(compile_kwargs or {})
            )
        return model

    @staticmethod
    def train(model, batches, **kwargs):
        """Trains; returns (how the weights changed, history)."""
        before = model.get_weights()
        history = model.fit(batches, verbose=0, **kwargs).history
        after = model.get_weights()
        return [b - a for a, b in zip(before, after, strict=True)], history

    @staticmethod
    def changes_of_steps(model, batches, **kwargs):
        """How each step of one `fit` changed each weight."""
        weights = [model.get_weights()]
        after = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs: weights.append(model.get_weights())
        )
        model.fit(batches, verbose=0, callbacks=[after], **kwargs)
        return [
            [b - a for a, b in zip(before, changed, strict=True)]
            for before, changed in zip(weights, weights[1:], strict=False)
        ]

    @staticmethod
    def in_agreement(variables):
        """Whether all replicas hold the same values, to the last bit."""
        for variable in variables:
            copies = [t.numpy() for t in variable.value.values]
            if not all(np.array_equal(copies[0], c) for c in copies):
                return False
        return True


@pytest.fixture(scope="session")
def replicas():
    return Replicas


@pytest.fixture
def tpus(monkeypatch):
    """As `replicas`, under an emulated TPUStrategy; its `programs` are the graphs of the steps."""

    class OnTPUs(Replicas):
        strategy = staticmethod(tpu_emulation.strategy)
        programs = []

    tpu_emulation.emulate(monkeypatch, OnTPUs.programs)
    return OnTPUs
