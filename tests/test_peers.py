"""Other libraries are timed on what they promise, and tfdp needs none of them."""

import importlib
import pathlib
import sys

import numpy as np
import pytest

HERE = pathlib.Path(__file__).resolve().parents[1]
NAME = "multilayer perceptron"


@pytest.fixture
def modules(monkeypatch):
    names = ("sizes", "protocol", "peers")
    monkeypatch.syspath_prepend(str(HERE / "benchmarks"))
    monkeypatch.syspath_prepend(str(HERE / "benchmarks" / "peer_workers"))
    yield {name: importlib.import_module(name) for name in names}
    for name in names:
        sys.modules.pop(name, None)


def linear(sizes, clipped):
    """A worker's trainer: a linear map to logits, squared errors, in NumPy."""

    class Trainer:
        def __init__(self, name, method, optimizer, noise_multiplier, clip_norm, batch_size):
            assert (name, optimizer, noise_multiplier) == (NAME, "sgd", 0.0)
            self.clipped, self.clip_norm = method != "plain" and clipped, clip_norm
            self.batch_size, self.weights = batch_size, np.ones(256)

        def feed(self, inputs, labels):
            (self.x,), self.y = inputs, labels

        def step(self):
            gradients = self.x * (self.x @ self.weights - self.y)[:, None]
            if self.clipped == "each":
                norms = np.linalg.norm(gradients, axis=1, keepdims=True)
                gradients *= np.minimum(1.0, self.clip_norm / norms)
            mean = gradients.sum(0) / self.batch_size
            if self.clipped == "mean":
                mean *= min(1.0, self.clip_norm / np.linalg.norm(mean))
            self.weights = self.weights - sizes.RATES["sgd"] * mean

        def get(self):
            return [self.weights.copy()]

        def set(self, values):
            (self.weights,) = values

    return Trainer


def test_clipping_of_single_examples_is_told_from_no_clipping_and_from_clipping_the_mean(modules):
    check, tolerance = modules["protocol"].check, modules["peers"].TOLERANCE
    errors = {
        clipped: check(linear(modules["sizes"], clipped), NAME, "private")
        for clipped in ("each", "mean", "")
    }
    assert errors["each"]["relative_error"] < 1e-9 and errors["each"]["clipped"] == 2
    assert errors["mean"]["relative_error"] > 10 * tolerance
    assert errors[""]["relative_error"] > 10 * tolerance


def test_a_method_that_does_not_clip_is_not_timed(modules):
    class Worker:
        methods = {"private": "plain"}

        def ask(self, do, architecture, method):
            assert do == "check"
            return {"relative_error": 0.5}

    found = modules["peers"].checks({"some": Worker()}, [NAME])
    assert "does not clip" in found[0]["error"]


def test_every_architecture_has_the_same_batch_for_every_library(modules):
    sizes = modules["sizes"]
    for name in sizes.ARCHITECTURES:
        first, again = sizes.batch(name), sizes.batch(name)
        assert len(first[1]) == sizes.ARCHITECTURES[name][2]
        assert all(np.array_equal(a, b) for a, b in zip(first[0], again[0], strict=True))


def test_no_other_library_is_a_dependency():
    project = (HERE / "pyproject.toml").read_text()
    assert not [v for v in ("opacus", "torch", "jax", "privacy") if f'"{v}' in project]
    assert "tensorflow-privacy" not in project
