"""Small private models."""

import keras
import numpy as np
import pytest

import tfdp

N = 40


def make_data(n=N, features=3, classes=2, seed=0):
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(n, features)).astype(np.float32)
    return x, generator.integers(0, classes, n).astype(np.int32)


class Small:
    """Builders with defaults that every test may change."""

    n = N
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    data = staticmethod(make_data)

    @staticmethod
    def base(features=3, classes=2):
        return keras.Sequential([keras.Input((features,)), keras.layers.Dense(classes)])

    @staticmethod
    def optimizer(inner=None, **kwargs):
        settings = {"num_examples": N, "expected_batch_size": 10}
        if "budget" not in kwargs:
            settings["noise_multiplier"] = 1.0
        inner = keras.optimizers.SGD(1.0) if inner is None else inner
        return tfdp.optimizers.DPOptimizer(inner, **{**settings, **kwargs})

    @classmethod
    def model(cls, base=None, loss=None, compile_kwargs=None, **kwargs):
        model = tfdp.make_private(cls.base() if base is None else base)
        loss = cls.loss if loss is None else loss
        model.compile(cls.optimizer(**kwargs), loss=loss, **(compile_kwargs or {}))
        return model

    @staticmethod
    def poisson(data=None, batch=10, **kwargs):
        return tfdp.data.poisson_batches(make_data() if data is None else data, batch, **kwargs)


@pytest.fixture(scope="session")
def small():
    return Small
