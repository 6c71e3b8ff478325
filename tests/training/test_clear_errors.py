"""What cannot be trained ends in one sentence that says what to do."""

import keras
import numpy as np
import processes
import pytest
import tensorflow as tf
from eager_steps import eager_model, fit_steps
from keras import layers

import tfdp
from tfdp.distribution.checks import check_executions
from tfdp.errors import PrivacyError


class Loop(layers.Layer):
    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], shape[-1]))

    def call(self, x):
        return keras.ops.while_loop(
            lambda i, h: i < 3, lambda i, h: (i + 1, keras.ops.tanh(h @ self.kernel)), (0, x)
        )[1]


@pytest.mark.thorough
def test_a_loop_whose_steps_xla_does_not_know_is_explained(small):
    base = keras.Sequential([keras.Input((3,)), Loop(), layers.Dense(2)])
    model = small.model(base, compile_kwargs={"jit_compile": True})
    with pytest.raises(ValueError, match="maximum_iterations.*or remove `jit_compile`"):
        model.fit(small.poisson(), verbose=0)


def test_layers_that_are_unfrozen_need_a_new_compile(small):
    base = keras.Sequential([keras.Input((3,)), layers.Dense(2), layers.Dense(2)])
    base.layers[0].trainable = False
    model = eager_model(base)
    fit_steps(model)
    base.layers[0].trainable = True
    with pytest.raises(ValueError, match="unfrozen.*call `compile` again.*dense.*kernel"):
        fit_steps(model)


def test_an_epoch_is_no_longer_than_a_pass(small):
    with pytest.raises(ValueError, match=r"at most 4.*poisson_batches\(..., steps_per_epoch=5\)"):
        eager_model().fit(small.poisson(), steps_per_epoch=5, verbose=0)


def test_executions_on_replicas_divide_the_epoch():
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    check_executions(strategy, 2, 4)
    check_executions(tf.distribute.get_strategy(), 2, 3)
    with pytest.raises(ValueError, match="must divide.*steps_per_execution=2, for 3 steps on 2"):
        check_executions(strategy, 2, 3)


@pytest.mark.parametrize("loss", ["dice", keras.losses.Dice(), "Tversky", keras.losses.Tversky()])
def test_losses_of_whole_batches_name_the_axes_that_work(small, loss):
    name = "Dice" if "dice" in str(loss).lower() else "Tversky"
    with pytest.raises(PrivacyError, match=rf"`keras.losses.{name}\(axis=\(1, 2, 3\)\)`"):
        small.model(loss=loss)


def mean_of_all(y_true, y_pred):
    return keras.ops.mean(keras.ops.square(y_true - y_pred[:, 0]))


@pytest.mark.thorough
def test_a_loss_that_is_one_number_is_named(small):
    with pytest.raises(ValueError, match=r"'mean_of_all' returned a scalar.*mean\(x, axis=-1\)"):
        small.model(loss=mean_of_all).fit(small.poisson(), verbose=0)

    class Own(tfdp.models.DPModel):
        def __init__(self):
            super().__init__()
            self.out = layers.Dense(1)

        def call(self, x):
            return self.out(x)

        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            return self.own_loss(x[:, :1], y_pred)

    model = Own()
    model.compile(small.optimizer())
    model.own_loss = keras.losses.MeanSquaredError()
    with pytest.raises(PrivacyError, match=r"`reduction=None`. Received: shape \(\)"):
        model.fit(small.poisson(), verbose=0)
    model.own_loss = keras.losses.MeanSquaredError(reduction=None)
    model.fit(small.poisson(), verbose=0)


@pytest.mark.thorough
def test_a_mask_that_the_loss_has_no_positions_for_can_be_left_out(small):
    def one_for_each_example(y_true, y_pred):
        return keras.ops.mean(keras.ops.square(y_true - y_pred), axis=[1, 2])

    ids = keras.Input((4,), dtype="int32")
    out = layers.Dense(2)(layers.Embedding(9, 3, mask_zero=True)(ids))
    data = np.arange(160).reshape(40, 4) % 9, np.zeros((40, 4, 2), "float32")
    for outputs in (out, keras.ops.softmax(out)):
        model = small.model(keras.Model(ids, outputs), loss=one_for_each_example)
        if outputs is out:
            with pytest.raises(ValueError, match="passes no mask on"):
                model.fit(small.poisson(data), verbose=0)
        else:
            model.fit(small.poisson(data), verbose=0)


def test_checks_of_numerics_are_named(small):
    model = eager_model()
    tf.debugging.enable_check_numerics()
    try:
        with pytest.raises(ValueError, match="disable_check_numerics"):
            model.fit(small.poisson(), verbose=0)
        with pytest.raises(ValueError, match="disable_check_numerics"):
            model.train_on_batch(*small.data())
    finally:
        tf.debugging.disable_check_numerics()


@pytest.mark.thorough_after(1)
@pytest.mark.parametrize("how", ["in the model", "map"])
def test_lookups_that_stop_at_padding_are_explained(small, how):
    def fit(num_oov_indices):
        look_up = layers.StringLookup(
            vocabulary=["a", "b"], num_oov_indices=num_oov_indices, output_mode="one_hot"
        )
        first = [keras.Input((2 + num_oov_indices,))]
        if how == "in the model":
            first = [keras.Input((1,), dtype="string"), look_up]
        texts = np.array(["a", "b"] * 20, object)[:, None]
        batches = small.poisson((texts, small.data()[1]), steps_per_epoch=1)
        if how == "map":
            batches = batches.map(lambda x, y: (look_up(x), y))
        eager = {"run_eagerly": num_oov_indices == 1}
        model = small.model(keras.Sequential([*first, layers.Dense(2)]), compile_kwargs=eager)
        model.fit(batches, verbose=0)

    with pytest.raises(ValueError, match='pad a batch hold "" and 0.*`num_oov_indices=1`'):
        fit(0)
    fit(1)


def test_private_weights_in_a_plain_model_are_named(small, tmp_path):
    small.model().save_weights(tmp_path / "private.weights.h5")
    with pytest.raises(ValueError, match="saved from a private model.*`tfdp.make_private"):
        small.base().load_weights(tmp_path / "private.weights.h5")


@pytest.mark.thorough
def test_training_works_under_numpy_behaviour():
    processes.run(
        """
from tensorflow.python.ops.numpy_ops import np_config
np_config.enable_numpy_behavior()
from eager_steps import eager_model, fit_steps
assert fit_steps(eager_model(clipping="automatic")).history["loss"]
"""
    )
