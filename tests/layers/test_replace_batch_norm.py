"""Models with batch normalization get group normalization in its place, and keep their weights."""

import keras
import numpy as np
import pytest
from eager_steps import eager_model, fit_steps
from epsilon_by_hand import DELTA
from keras import layers

import tfdp
from tfdp.errors import PrivacyError


def network():
    inner = keras.Sequential(
        [keras.Input((6, 6, 8)), layers.Conv2D(8, 1), layers.BatchNormalization(scale=False)]
    )
    x = keras.Input((8, 8, 3))
    frozen = layers.BatchNormalization(name="frozen")
    h = inner(layers.BatchNormalization(name="first")(layers.Conv2D(8, 3)(x)))
    h = layers.GlobalAveragePooling2D()(layers.ReLU()(frozen(h)))
    frozen.trainable = False
    return keras.Model(x, layers.Dense(2)(layers.BatchNormalization()(h)))


def test_every_trainable_batch_norm_is_replaced_and_weights_are_kept():
    old = network()
    old.get_layer("first").gamma.assign(np.arange(8))
    new = tfdp.layers.replace_batch_norm(old)
    first = new.get_layer("first")
    assert isinstance(first, layers.GroupNormalization) and first.groups == 2
    np.testing.assert_array_equal(first.gamma, np.arange(8))
    assert isinstance(new.get_layer("frozen"), layers.BatchNormalization)
    for a, b in zip(old.layers, new.layers, strict=True):
        if isinstance(a, (layers.Conv2D, layers.Dense)):
            np.testing.assert_array_equal(a.kernel, b.kernel)
            assert a.kernel is not b.kernel
    tfdp.make_private(new)
    with pytest.raises(PrivacyError, match="replace_batch_norm"):
        tfdp.make_private(old)


def test_models_with_operations_and_masks_are_copied_with_what_they_compute():
    x, ids = keras.Input((4,)), keras.Input((4,), dtype="int32")
    h = keras.ops.relu(layers.BatchNormalization()(layers.Dense(4)(x)) + x) * 2.0
    table = layers.Embedding(5, 4, mask_zero=True)(ids)
    mask = keras.ops.not_equal(ids, 0)
    h = h + layers.LSTM(4)(layers.BatchNormalization()(table, mask=mask), mask=mask)
    h = keras.ops.concatenate([h, keras.ops.mean(x, axis=1, keepdims=True)], axis=1)
    frozen = keras.Model([x, ids], layers.Dense(1)(h))
    frozen.trainable = False  # nothing to replace: the same outputs
    data = [np.random.default_rng(0).normal(size=(6, 4)).astype("float32"), np.eye(6, 4, dtype=int)]
    same = tfdp.layers.replace_batch_norm(frozen)
    np.testing.assert_allclose(same(data), frozen(data), rtol=1e-5)
    frozen.trainable = True
    new = tfdp.layers.replace_batch_norm(frozen)
    norms = [layer for layer in new.layers if isinstance(layer, layers.GroupNormalization)]
    assert len(norms) == 2 and new(data).shape == (6, 1)
    assert not any(isinstance(layer, layers.BatchNormalization) for layer in new.layers)


def test_one_example_does_not_change_another():
    new = tfdp.layers.replace_batch_norm(
        keras.Sequential([keras.Input((8,)), layers.Dense(16), layers.BatchNormalization()])
    )
    x = np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32)
    together = new(x, training=True)
    np.testing.assert_allclose(together[:1], new(x[:1], training=True), rtol=1e-5, atol=1e-6)
    assert np.std(together) > 0.1  # not each channel by itself


@pytest.mark.thorough
def test_a_batch_norm_of_any_width_gets_groups_that_divide_it():
    for width in (1, 3, 7, 12, 96, 100):
        model = keras.Sequential([keras.Input((4, width)), layers.BatchNormalization()])
        assert tfdp.layers.replace_batch_norm(model)(np.ones((2, 4, width))).shape[-1] == width


def test_what_cannot_be_replaced_is_refused():
    class Own(keras.Model):
        def call(self, x):
            return x

    with pytest.raises(ValueError, match="functional or sequential"):
        tfdp.layers.replace_batch_norm(Own())
    wrapped = layers.TimeDistributed(layers.BatchNormalization(name="inside"))
    with pytest.raises(PrivacyError, match="'inside'.*inside another layer"):
        tfdp.layers.replace_batch_norm(keras.Sequential([keras.Input((3, 4)), wrapped]))


def test_what_training_cost_goes_with_the_weights():
    frozen = layers.BatchNormalization(name="norm")
    frozen.trainable = False
    old = keras.Sequential([keras.Input((3,)), layers.Dense(4), frozen, layers.Dense(2)])
    model = eager_model(old)
    fit_steps(model, 2)
    frozen.trainable = True
    new = eager_model(tfdp.layers.replace_batch_norm(old))
    assert new.ledger == model.ledger and len(new.ledger.entries) == 1
    charged = model.ledger
    fit_steps(new)
    assert model.ledger == charged != new.ledger
    assumptions = new.privacy_statement(DELTA).assumptions
    assert not any("elsewhere" in s for s in assumptions), assumptions
