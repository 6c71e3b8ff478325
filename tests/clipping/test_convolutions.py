"""Convolutions of all kinds are exact by their rules."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import tfdp
from tfdp.clipping.plan.planning import make_clipping_plan
from tfdp.clipping.rules import convolution, patches
from tfdp.errors import PrivacyError

B = 3


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def losses(outputs):
    return tf.reduce_sum(tf.square(outputs - 5.0), 1)


def chain(*made, shape):
    """A builder of a model that pools what the layers leave, and the shape of its inputs."""

    def build():
        x = inputs = keras.Input(shape, dtype=keras.config.dtype_policy().compute_dtype)
        for make in made:
            x = make()(x)
        x = keras.ops.mean(x, list(range(1, len(x.shape) - 1)))
        return keras.Model(inputs, layers.Dense(1)(x))

    return build, [5 if size is None else size for size in shape]


def of(layer, *args, **kwargs):
    return lambda: layer(*args, **kwargs)


CASES = {
    "separable": chain(
        of(layers.SeparableConv2D, 3, 3, strides=2, padding="same", activation="tanh"),
        of(layers.SeparableConv2D, 3, (2, 1), depth_multiplier=2, use_bias=False),
        shape=(6, 7, 2),
    ),
    "separable rows": chain(
        of(layers.SeparableConv1D, 3, 3, padding="same", dilation_rate=2), shape=(6, 2)
    ),
    "transposed": chain(
        of(layers.Conv2DTranspose, 3, (2, 3), strides=2, activation="tanh"),
        of(layers.Conv2DTranspose, 2, 3, strides=(2, 1), padding="same", use_bias=False),
        of(layers.Conv2DTranspose, 2, 2, strides=3),
        shape=(3, 2, 2),
    ),
    "transposed rows": chain(
        of(layers.Conv1DTranspose, 3, 4, strides=3, padding="same"), shape=(4, 2)
    ),
    "transposed volumes": chain(of(layers.Conv3DTranspose, 2, 2, strides=2), shape=(2, 3, 2, 2)),
    "volumes": chain(
        of(layers.Conv3D, 3, (1, 2, 3), activation="tanh"),
        of(layers.Conv3D, 2, 2, strides=(2, 1, 1), padding="same"),
        shape=(3, 4, 4, 2),
    ),
    "large kernels": chain(
        of(layers.Conv2D, 2, 9, padding="same"), of(layers.DepthwiseConv2D, 5, padding="same"),
        shape=(5, 4, 2),
    ),
    "long kernels": chain(
        of(layers.Conv1D, 2, 70, padding="causal"), of(layers.Conv1D, 2, 65, padding="same"),
        shape=(6, 2),
    ),
    "unknown sizes": chain(
        of(layers.Conv2D, 2, 3, padding="same"), of(layers.Conv2D, 2, 2, strides=2, padding="same"),
        of(layers.SeparableConv2D, 2, 2), shape=(None, 6, 2),
    ),
}  # fmt: skip


@pytest.mark.thorough_after(8)
@pytest.mark.parametrize("name", CASES)
def test_convolutions_are_exact_by_their_rules(brute_force, name):
    build, shape = CASES[name]
    check = brute_force(build, normal(B, *shape), losses)
    calls = make_clipping_plan(check.model, check.model.input).calls.values()
    assert all(planned.rule is not None for planned in calls)
    check.check()


def test_large_kernels_of_volumes_are_exact(brute_force, monkeypatch):
    monkeypatch.setattr(convolution, "LARGEST_PER_EXAMPLE", 0)
    build, shape = CASES["volumes"]
    brute_force(build, normal(B, *shape), losses).check()


OTHERS = {
    "padded outputs": of(layers.Conv1DTranspose, 2, 3, strides=2, output_padding=1),
    "dilated": of(layers.Conv1DTranspose, 2, 3, dilation_rate=2),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_transposed_convolutions_are_left_to_the_fallback(name):
    layer = OTHERS[name]()
    layer.build((B, 4, 2))
    assert not convolution.TransposedConvolutionRule().accepts(layer, (tf.zeros((B, 4, 2)),), {})


@pytest.mark.parametrize("padding", ["valid", "same"])
@pytest.mark.parametrize(
    "strides, dilation", [((1, 1), (1, 1)), ((2, 3), (1, 1)), ((1, 1), (2, 3))]
)
def test_patches_are_those_of_tensorflow(strides, dilation, padding):
    x, size = tf.constant(normal(2, 9, 11, 2)), (3, 2)
    wanted = tf.image.extract_patches(
        x, [1, *size, 1], [1, *strides, 1], [1, *dilation, 1], padding.upper()
    )
    found = tf.concat(patches.shifted(x, size, strides, dilation, padding), -1)
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(patches.patches(x, size, strides, dilation, padding), wanted)


def strided_points(layer):
    return lambda: keras.Sequential(
        [keras.Input((6, 5, 3)), layer(), layers.GlobalAveragePooling2D(), layers.Dense(1)]
    )


@pytest.mark.thorough
@pytest.mark.parametrize("layer", [layers.Conv2D, layers.Conv2DTranspose])
def test_points_with_strides_train_where_their_derivative_corrupts_memory(layer):
    """TensorFlow's Conv2DBackpropFilter of them does, on CPUs with oneDNN: it is not computed."""
    model = tfdp.make_private(strided_points(of(layer, 2, 1, strides=2))())
    optimizer = tfdp.optimizers.DPOptimizer(
        keras.optimizers.SGD(0.1), noise_multiplier=1.0, num_examples=40, expected_batch_size=10
    )
    model.compile(optimizer, loss="mse")
    data = normal(40, 6, 5, 3), normal(40, 1)
    for _ in range(3):
        model.fit(tfdp.data.poisson_batches(data, 10), verbose=0)


def test_points_with_strides_without_a_rule_are_refused():
    class Raw(layers.Layer):
        def build(self, shape):
            self.filters = self.add_weight(shape=(1, 1, shape[-1], 2))

        def call(self, x):
            return tf.nn.conv2d(x, self.filters, 2, "VALID")

    model = strided_points(Raw)()
    with pytest.raises(PrivacyError, match="convolution of size 1x1"):
        make_clipping_plan(model, tf.zeros((4, 6, 5, 3)))
