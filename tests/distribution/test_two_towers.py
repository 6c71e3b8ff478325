"""Negatives that all examples share, on several replicas."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tfdp.errors import PrivacyError

ITEMS, USERS = 9, 13
GENERATOR = np.random.default_rng(2)
FEATURES = {"x": GENERATOR.normal(size=(ITEMS, 4)).astype(np.float32)}
X = GENERATOR.normal(size=(USERS, 5)).astype(np.float32), GENERATOR.integers(0, ITEMS, USERS)
OF_WHOLE = {"noise_multiplier": 0.0, "num_examples": USERS, "expected_batch_size": USERS}


def towers(noise_at, num_negatives=None):
    def build():
        x, users, items = (
            keras.Input((4,), name="x"), keras.Input((5,)), keras.Input((), dtype="int64")
        )  # fmt: skip
        tower = keras.Model({"x": x}, keras.layers.Dense(3)(x))
        negatives = tfdp.layers.SharedNegatives(
            tower, ITEMS, num_negatives, item_features=FEATURES, noise_at=noise_at,
            similarity="cosine", temperature=0.2,
        )  # fmt: skip
        return keras.Model([users, items], negatives(keras.layers.Dense(3)(users), items))

    return build


def train(replicas, count, *args):
    model = replicas.model(
        count, towers(*args),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        compile_kwargs={"run_eagerly": count is None}, **OF_WHOLE,
    )  # fmt: skip
    batches = tfdp.data.poisson_batches((X, np.zeros(USERS, np.int32)), USERS)
    changes, _ = replicas.train(model, batches)
    return model, changes


@pytest.mark.thorough
@pytest.mark.parametrize("noise_at", ["weights", "vectors"])
def test_two_replicas_make_the_update_of_one(replicas, noise_at):
    _, expected = train(replicas, None, noise_at)
    model, changes = train(replicas, 2, noise_at)
    assert any(np.any(np.abs(change) > 1e-4) for change in expected)
    for a, b in zip(changes, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-6)
    assert replicas.in_agreement(model.trainable_variables)


@pytest.mark.thorough
def test_several_draws_for_one_set_of_rows_are_refused(replicas):
    with pytest.raises(PrivacyError, match="2 replicas"):
        train(replicas, 2, "vectors", 4)


@pytest.mark.thorough
def test_negatives_of_each_replica_train_the_weights(replicas):
    model, changes = train(replicas, 2, "weights", 4)
    assert tf.reduce_any([np.any(change != 0) for change in changes])
    assert replicas.in_agreement(model.trainable_variables)
