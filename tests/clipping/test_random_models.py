"""Functional models put together at random: norms and clipped sums are those of brute force."""

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import layers
from networks import Kernel, Own, inp

B, T, WIDTH = 3, 3, 4


class Split(layers.Layer):
    """Two outputs, of which the first makes the second."""

    def build(self, shape):
        self.w = self.add_weight(name="w", shape=(shape[-1],), initializer="ones")

    def call(self, x):
        one = keras.ops.tanh(x * self.w)
        return one, one * self.w


def shared(h, made):
    if "shared" not in made:
        made["shared"] = layers.Dense(WIDTH, "tanh")
    return made["shared"](h[-1])


#: Each takes the tensors (B, T, WIDTH) made before, and what is shared, and makes another one.
STEPS = {
    "dense": lambda h, made: layers.Dense(WIDTH, "gelu")(h[-1]),
    "softmax": lambda h, made: layers.Dense(WIDTH, "softmax")(h[-1]),
    "own": lambda h, made: Own(WIDTH, "sigmoid")(h[-1]),
    "shared": shared,
    "twice": lambda h, made: shared([shared(h, made)], made),
    "split": lambda h, made: keras.ops.multiply(*Split()(h[-1])),
    "norm": lambda h, made: layers.LayerNormalization()(h[-1]),
    "groups": lambda h, made: layers.GroupNormalization(2)(h[-1]),
    "convolution": lambda h, made: layers.Conv1D(WIDTH, 2, padding="causal")(h[-1]),
    "einsum": lambda h, made: layers.EinsumDense("abc,cd->abd", (T, WIDTH))(h[-1]),
    "mixed": lambda h, made: layers.Permute((2, 1))(
        layers.Dense(T)(layers.Permute((2, 1))(h[-1]))),
    "kernel": lambda h, made: keras.ops.reshape(
        layers.Dense(T * WIDTH)(Kernel()(layers.Flatten()(h[-1]))), (-1, T, WIDTH)),
    "attention": lambda h, made: layers.Attention(use_scale=True)([h[-1], h[0]]),
    "add": lambda h, made: h[-1] + h[len(h) // 2],
    "product": lambda h, made: h[-1] * keras.ops.tanh(h[0]),
    "backwards": lambda h, made: keras.ops.flip(h[-1], 1),
}  # fmt: skip
HEADS = {
    "mse": (lambda: layers.Dense(2), lambda g: g.normal(size=(B, T, 2)).astype(np.float32) + 3),
    "sparse_categorical_crossentropy": (
        lambda: Own(3, "softmax"), lambda g: g.integers(0, 3, (B, T)).astype(np.int32)),
    "binary_crossentropy": (
        lambda: layers.Dense(1, "sigmoid"), lambda g: g.integers(0, 2, (B, T, 1)).astype(np.int32)),
}  # fmt: skip


def check(brute_force, mean_loss, steps, loss, seed):
    generator = np.random.default_rng(seed)
    head, labels = HEADS[loss]

    def build():
        x = inp(T, WIDTH)
        made, h = {}, [x]
        for name in steps:
            h.append(STEPS[name](h, made))
        return keras.Model(x, head()(h[-1]))

    x = generator.normal(size=(B, T, WIDTH)).astype(np.float32)
    losses = mean_loss(loss, labels(generator))
    brute_force(build, x, losses).check(tolerance=3e-5)


MODELS = {
    "steps": st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=6),
    "loss": st.sampled_from(sorted(HEADS)),
    "seed": st.integers(0, 999),
}


@pytest.mark.thorough
@given(**MODELS)
@settings(max_examples=4, deadline=None, derandomize=True)
def test_some_models(brute_force, mean_loss, steps, loss, seed):
    check(brute_force, mean_loss, steps, loss, seed)


@pytest.mark.evidence
@given(**MODELS)
@settings(max_examples=60, deadline=None)
def test_many_models(brute_force, mean_loss, steps, loss, seed):
    check(brute_force, mean_loss, steps, loss, seed)
