"""What mixes examples is refused, by name or by number; nothing is private that is not."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import tfdp
from tfdp.errors import PrivacyError


class Centred(layers.Layer):
    """Mixes the examples, and has no name that says so."""

    def call(self, x):
        return x - tf.reduce_mean(x, axis=0, keepdims=True)


def in_batch_negatives(y_true, y_pred):
    scores = tf.matmul(y_pred, y_pred, transpose_b=True)
    labels = tf.range(tf.shape(scores)[0])
    return keras.losses.sparse_categorical_crossentropy(labels, scores, from_logits=True)


@pytest.mark.thorough
def test_in_batch_negatives_are_found_at_the_first_fit(small):
    model = tfdp.make_private(small.base())
    model.compile(small.optimizer(), loss=in_batch_negatives)
    for _ in range(2):
        with pytest.raises(PrivacyError, match="loss .*mixes the examples"):
            model.fit(*small.data(), batch_size=10, verbose=0)
    assert model.optimizer.steps_taken == 0
    model.compile(small.optimizer(), loss=small.loss)
    model.fit(*small.data(), batch_size=10, verbose=0)
    assert model.optimizer.steps_taken == 4


@pytest.mark.thorough
def test_subclassed_models_are_checked_at_the_first_fit(small):
    class Mixing(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense, self.mixer = layers.Dense(2), Centred()

        def call(self, x):
            return self.mixer(self.dense(x))

    model = tfdp.make_private(Mixing())
    model.compile(small.optimizer(), loss=small.loss)
    with pytest.raises(PrivacyError, match="mixes the examples"):
        model.fit(small.poisson(), verbose=0)


def fit(small, base=None, loss=None, **kwargs):
    model = small.model(base, loss, **kwargs)
    model.fit(small.poisson(), verbose=0)
    return model


@pytest.mark.thorough_after(6)
@pytest.mark.parametrize(
    "loss",
    [
        lambda y, p: tf.reduce_mean(p),
        lambda y, p: tf.reduce_mean(p, keepdims=True),
        lambda y, p: tf.reduce_mean(p, axis=0),
        lambda y, p: tf.reshape(p, [-1]),
        keras.losses.CosineSimilarity(axis=0),
    ],
)
@pytest.mark.parametrize("run_eagerly", [False, True])
def test_losses_without_the_batch_axis_are_refused(small, loss, run_eagerly):
    with pytest.raises((PrivacyError, ValueError)):
        fit(small, None, loss, compile_kwargs={"run_eagerly": run_eagerly})


@pytest.mark.thorough
def test_losses_whose_shape_is_a_coincidence_are_refused(small):
    # Two features and batches of two: the shape alone looks right.
    model = small.model(loss=keras.losses.CosineSimilarity(axis=0), expected_batch_size=2)
    x, y = small.data()
    with pytest.raises((PrivacyError, ValueError)):
        model.fit(x, np.eye(2, dtype=np.float32)[y], batch_size=2, verbose=0)


def test_mixed_float16_is_refused(small):
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")
    try:
        base = small.base()
    finally:
        keras.config.set_dtype_policy(policy)
    with pytest.raises(PrivacyError, match="mixed_float16"):
        small.model(base)


@pytest.mark.thorough_after(1)
@pytest.mark.parametrize("name", ["auto_mixed_precision", "auto_mixed_precision_onednn_bfloat16",
                                  "auto_mixed_precision_mkl"])  # fmt: skip
def test_graph_rewrites_to_16_bits_are_refused(small, name):
    tf.config.optimizer.set_experimental_options({name: True})
    try:
        with pytest.raises(PrivacyError, match=f"'{name}' set to True.*'{name}': False"):
            small.model()
    finally:
        tf.config.optimizer.set_experimental_options({name: False})
    model = small.model()
    tf.config.optimizer.set_experimental_options({name: True})
    try:
        with pytest.raises(PrivacyError, match=f"'{name}' set to True"):
            model.fit(small.poisson(), verbose=0)
    finally:
        tf.config.optimizer.set_experimental_options({name: False})


@pytest.mark.thorough_after(1)
@pytest.mark.parametrize("name", ["ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE",
                                  "TF_SET_ONEDNN_FPMATH_MODE"])  # fmt: skip
def test_products_of_fewer_bits_are_refused(small, monkeypatch, name):
    for mode in ("BF16", "f16", "ANY", "tf32"):
        monkeypatch.setenv(name, mode)
        with pytest.raises(PrivacyError, match=f"Unset it.*{name}={mode}"):
            small.model()
    monkeypatch.setenv(name, "strict")
    small.model()


@pytest.mark.thorough
def test_added_losses_are_refused_at_the_first_step(small):
    class Adds(layers.Layer):
        def call(self, x):
            self.add_loss(tf.reduce_sum(x))
            return x

    base = keras.Sequential([keras.Input((3,)), layers.Dense(2), Adds()])
    with pytest.raises(PrivacyError, match="add_loss"):
        fit(small, base)


def test_activity_regularizers_are_refused(small):
    base = keras.Sequential([keras.Input((3,)), layers.Dense(2, activity_regularizer="l1")])
    with pytest.raises(PrivacyError, match="activity_regularizer"):
        tfdp.make_private(base)


@pytest.mark.thorough
def test_layers_made_trainable_later_are_seen(small):
    # The plan belongs to the set of trainable variables.
    base = keras.Sequential([keras.Input((3,)), layers.Dense(4), layers.Dense(2)])
    base.layers[0].trainable = False
    eager = {"run_eagerly": True}  # a trace takes longer than its one step
    model = small.model(base, noise_multiplier=0.0, clip_norm=0.01, num_examples=small.n,
                        expected_batch_size=small.n, compile_kwargs=eager)  # fmt: skip
    x, y = small.data()
    model.fit(x, y, batch_size=small.n, verbose=0)
    base.layers[0].trainable = True
    model.compile(small.optimizer(noise_multiplier=0.0, clip_norm=0.01, num_examples=small.n,
                                  expected_batch_size=small.n), loss=small.loss,
                  **eager)  # fmt: skip
    before = [w.copy() for w in base.get_weights()]
    model.fit(x, y, batch_size=small.n, verbose=0)
    moved = [b - a for b, a in zip(before, base.get_weights(), strict=True)]
    assert all(np.any(m) for m in moved)
    assert np.sqrt(sum(np.sum(m**2) for m in moved)) <= 0.01 * (1 + 1e-5)


@pytest.mark.thorough
def test_other_input_shapes_get_a_plan_of_their_own(small):
    inputs = keras.Input((None, 3))
    base = keras.Model(inputs, layers.GlobalAveragePooling1D()(layers.Dense(2)(inputs)))
    eager = {"run_eagerly": True}
    model = small.model(base, noise_multiplier=0.0, clip_norm=0.01, compile_kwargs=eager)
    generator = np.random.default_rng(0)
    for length in (2, 5):
        x = generator.normal(size=(small.n, length, 3)).astype(np.float32)
        model.fit(small.poisson((x, small.data()[1]), steps_per_epoch=1), verbose=0)
    assert model.optimizer.steps_taken == 2


@pytest.mark.thorough
def test_variables_used_only_by_the_loss_are_reported(small):
    class Model(tfdp.models.DPModel):
        def __init__(self):
            super().__init__()
            self.dense = layers.Dense(2)
            self.temperature = self.add_weight(name="temperature", shape=(), initializer="ones")

        def call(self, x):
            return self.dense(x)

        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            loss = keras.losses.sparse_categorical_crossentropy(
                y, y_pred * self.temperature, from_logits=True
            )
            return loss * tf.cast(sample_weight, loss.dtype)

    model = Model()
    model.compile(small.optimizer())
    with pytest.warns(UserWarning, match="temperature"):
        model.fit(small.poisson(), verbose=0)


def test_own_losses_of_a_wrapped_model_are_refused():
    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = layers.Dense(2)

        def call(self, x):
            return self.dense(x)

        def compute_loss(self, *args, **kwargs):
            return tf.constant(0.0)

    with pytest.raises(ValueError, match="has its own `compute_loss`"):
        tfdp.make_private(Own())
