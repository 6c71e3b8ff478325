"""Weights whose values nobody accounts for are mentioned in the statement, and no others."""

import itertools

import keras
import numpy as np
import pytest
import slow
import tensorflow as tf
from eager_steps import EAGER, eager_model, fit_steps
from epsilon_by_hand import DELTA

import tfdp


def test_weights_from_elsewhere_are_mentioned(small):
    def mentioned(model):
        return any("came from elsewhere" in s for s in model.privacy_statement(DELTA).assumptions)

    model = eager_model()
    fit_steps(model)
    assert not mentioned(model)  # initial values, and what was charged
    fit_steps(model)
    assert not mentioned(model)
    copy = keras.models.clone_model(model.model)
    copy.set_weights(model.get_weights()[:2])
    other = eager_model(copy)
    fit_steps(other)
    assert mentioned(other)
    fit_steps(other)
    assert mentioned(other)  # it belongs to the run
    other.compile(small.optimizer(), loss=small.loss, **EAGER)
    assert mentioned(other)
    model.layers[0].set_weights([w + 1 for w in model.layers[0].get_weights()])
    assert mentioned(model)

    base = small.base()
    with tf.GradientTape() as tape:  # a loop of the user's own
        loss = tf.reduce_mean(base(small.data()[0]) ** 2)
    kernel = base.trainable_variables[0]
    kernel.assign_sub(tape.gradient(loss, kernel.value))
    model = eager_model(base)
    fit_steps(model)
    assert mentioned(model)


@pytest.mark.thorough
def test_changes_after_private_training_are_said_to_be_that(small):
    """They were called initial values, though a step without privacy had made them."""
    model = eager_model()
    fit_steps(model)
    kernel = model.trainable_variables[0]
    for _ in range(2):
        kernel.assign_add(tf.ones_like(kernel))
        (said,) = [
            s for s in model.privacy_statement(DELTA).assumptions if "came from elsewhere" in s
        ]
        assert f"variable {kernel.path} were changed after private training, outside of" in said
        fit_steps(model)
    model.trainable_variables[1].assign([3.0, 4.0])
    assert "2 variables" in "".join(model.privacy_statement(DELTA).assumptions)


def test_weights_from_elsewhere_that_are_changed_after_training_are_said_to_be_both(small):
    model = eager_model()
    model.set_weights([w + 1 for w in model.get_weights()])
    fit_steps(model)
    kernel = model.trainable_variables[0]
    kernel.assign_add(tf.ones_like(kernel))
    said = "; ".join(model.privacy_statement(DELTA).assumptions)
    assert f"the initial values of variable {kernel.path} came from elsewhere" in said
    assert f"the values of variable {kernel.path} were changed after private training" in said


@pytest.mark.thorough
def test_values_from_elsewhere_stay_so(small):
    def mentioned(model):
        return any("came from elsewhere" in s for s in model.privacy_statement(DELTA).assumptions)

    model = eager_model()
    model.set_weights([w + 1 for w in model.get_weights()])
    model.fit(small.poisson(), epochs=0, verbose=0)
    fit_steps(model)
    assert mentioned(model)
    encoder = keras.layers.Dense(3)
    encoder.build((None, 3))
    encoder.set_weights([w + 1 for w in encoder.get_weights()])
    encoder.trainable = False
    for _ in range(2):
        model = eager_model(keras.Sequential([keras.Input((3,)), encoder, keras.layers.Dense(2)]))
        fit_steps(model)
        assert mentioned(model)


@pytest.mark.thorough
def test_files_know_which_weights_they_account_for(small, tmp_path):
    model = eager_model()
    fit_steps(model)
    model.save(tmp_path / "m.keras")
    other = keras.models.load_model(tmp_path / "m.keras")
    assert other.ledger == model.ledger
    for loaded in (other, eager_model()):
        if loaded is not other:
            model.save_weights(tmp_path / "m.weights.h5")
            loaded.load_weights(tmp_path / "m.weights.h5")
        fit_steps(loaded)
        assumptions = loaded.privacy_statement(DELTA).assumptions
        assert not any("elsewhere" in s for s in assumptions), assumptions


def test_values_of_initializers_that_a_layer_does_not_keep_are_initial(small):
    """Of layers that are built before they are wrapped; a table of values is no initializer."""

    class Own(keras.layers.Layer):
        def __init__(self, make, by_place=False):
            super().__init__()
            self.make, self.by_place = make, by_place

        def build(self, shape):
            shape, how = (shape[-1], 4), self.make()
            if self.by_place:
                self.kernel = self.add_weight(shape, how)
            else:
                self.kernel = self.add_weight(shape=shape, initializer=how)

        def call(self, x):
            return tf.matmul(x, self.kernel)

    class Learned(keras.initializers.Initializer):
        def __call__(self, shape, dtype=None):
            return values

    values = np.random.default_rng(0).normal(size=(3, 4)).astype("float32")
    table = keras.initializers.Constant(values)
    for layer, known in (
        (Own(lambda: "glorot_uniform"), True),
        (Own(lambda: "he_normal", by_place=True), True),
        (Own(lambda: None), True),
        (Own(keras.initializers.RandomNormal), True),
        (Own(lambda: table), False),
        (Own(Learned), False),
        (keras.layers.Dense(4, kernel_initializer=table), False),
    ):
        base = keras.Sequential([keras.Input((3,)), layer, keras.layers.Dense(2)])
        model = eager_model(base)
        kernel = layer.weights[0]
        assert model.weight_origin.elsewhere() == ([] if known else [kernel.path])
        kernel.assign_add(0.1 * tf.random.normal((3, 4)))
        assert model.weight_origin.elsewhere() == [kernel.path]


@pytest.mark.thorough_after(1)
@pytest.mark.parametrize(
    "layer", [keras.layers.Dense(3), keras.layers.EinsumDense("ab,bc->ac", 3, bias_axes="c")]
)
def test_files_hold_kernels_with_lora(layer, tmp_path):
    """Keras writes the sum of kernel and product, where the charges are those of its parts."""

    def base(layer):
        return keras.Sequential([keras.Input((3,)), layer, keras.layers.Dense(2)])

    model = eager_model(base(layer))
    fit_steps(model)
    layer.enable_lora(2)
    model = eager_model(model.model)
    fit_steps(model)
    assert np.any(layer.lora_kernel_b)
    model.save_weights(tmp_path / "own.weights.h5")
    model.model.save_weights(tmp_path / "plain.weights.h5")
    for file in ("own.weights.h5", "plain.weights.h5"):
        again = base(type(layer).from_config({**layer.get_config(), "lora_rank": None}))
        loaded = eager_model(again)
        (loaded if file.startswith("own") else again).load_weights(tmp_path / file)
        np.testing.assert_allclose(again.layers[0].kernel, layer.kernel)
        assert loaded.ledger == model.ledger
        assert loaded.weight_origin.elsewhere() == []


@pytest.mark.thorough
def test_a_foreign_kernel_with_lora_stays_foreign(tmp_path):
    model = eager_model()
    kernel = model.trainable_variables[0]
    kernel.assign(kernel + 1.0)
    fit_steps(model)
    model.model.layers[-1].enable_lora(2)
    model = eager_model(model.model)
    fit_steps(model)
    model.save_weights(tmp_path / "m.weights.h5")
    loaded = eager_model()
    loaded.load_weights(tmp_path / "m.weights.h5")
    # Not by the statement, in which the run before says so for itself.
    assert loaded.weight_origin.elsewhere() == [loaded.trainable_variables[0].path]


@pytest.mark.thorough
def test_other_frequencies_than_the_released_ones_are_mentioned():
    data = tfdp.data.leave_one_out_split([[1, 2, 3, 1]] * 40, 4, num_items=3)
    frequency = tfdp.data.private_frequency(data.train, epsilon=0.5)

    model = tfdp.models.DPFormer(3, 4, frequency, dim=4, num_blocks=1)
    model.build((None, 4))
    (layer, *_) = [one for one in model._flatten_layers() if hasattr(one, "frequency")]
    assert model.weight_origin.elsewhere() == []
    layer.frequency.assign(np.array([1.0, 0.9, 0.3, 0.7]))
    assert model.weight_origin.elsewhere() == [layer.frequency.path]


class Plain(keras.Model):
    """Trains without privacy; its files fit a model that `make_private` made."""

    def __init__(self, base):
        super().__init__()
        self.model = base

    def call(self, x):
        return self.model(x)


def mentioned(model):
    return any("came from elsewhere" in s for s in model.privacy_statement(DELTA).assumptions)


def built(model):
    model.build((None, 3))
    return model


BACKUPS = [keras.callbacks.BackupAndRestore, tfdp.distribution.BackupAndRestore]


KINDS = list(itertools.product((True, False), BACKUPS))


@pytest.mark.parametrize("fits, backup_kind", slow.cases(KINDS, slow=[KINDS[1], KINDS[2]]))
@pytest.mark.filterwarnings("ignore:Skipping variable loading")
def test_weights_that_a_callback_loads_in_a_run_are_mentioned(small, tmp_path, fits, backup_kind):
    """A backup of training without privacy; also if loading it stops at the optimizer's state."""

    def backup():
        return backup_kind(tmp_path, delete_checkpoint=False)

    plain = built(Plain(small.base()))
    plain.compile(keras.optimizers.SGD(0.1) if fits else "adam", loss=small.loss, **EAGER)
    plain.fit(*small.data(), verbose=0, callbacks=[backup()])
    model = built(eager_model())
    if fits:
        fit_steps(model, epochs=2, callbacks=[backup()])
    else:
        with pytest.raises(ValueError):
            fit_steps(model, epochs=2, callbacks=[backup()])
        np.testing.assert_array_equal(model.get_weights()[0], plain.get_weights()[0])
        fit_steps(model)
    assert mentioned(model)
    model.save_weights(tmp_path / "m.weights.h5")
    loaded = eager_model()
    loaded.load_weights(tmp_path / "m.weights.h5")
    assert mentioned(loaded)


@pytest.mark.thorough
@pytest.mark.parametrize("backup_kind", BACKUPS)
def test_a_run_that_goes_on_from_its_backup_knows_its_weights(small, tmp_path, backup_kind):
    for epochs in (1, 2):
        model = built(eager_model())
        backup = backup_kind(tmp_path, delete_checkpoint=False)
        fit_steps(model, epochs=epochs, callbacks=[backup])
    assert model.optimizer.steps_taken == 2
    assert not mentioned(model)


@pytest.mark.thorough
def test_values_of_this_run_that_keras_puts_back_are_known(small):
    stop = keras.callbacks.EarlyStopping("loss", patience=0, restore_best_weights=True)
    averaged = keras.optimizers.SGD(0.1, use_ema=True)
    for inner, callback in (
        (keras.optimizers.SGD(1.0), stop),
        (averaged, keras.callbacks.SwapEMAWeights()),
    ):
        model = eager_model(inner=inner)
        fit_steps(model, epochs=3, callbacks=[callback])
        assert not mentioned(model)


VALUES = np.random.default_rng(0).normal(size=(3, 4)).astype("float32")


class Ordinary(keras.layers.Layer):
    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], 4), trainable=False)

    def call(self, x):
        return tf.matmul(x, self.kernel)


class Assigns(Ordinary):
    def build(self, shape):
        super().build(shape)
        self.kernel.assign(VALUES)


class Loads(keras.layers.Layer):
    folder = None

    def __init__(self):
        super().__init__()
        self.net = keras.Sequential([keras.layers.Dense(4)])

    def build(self, shape):
        donor = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4)])
        donor.layers[0].kernel.assign(VALUES)
        donor.save_weights(self.folder / "donor.weights.h5")
        self.net.build(shape)
        self.net.load_weights(self.folder / "donor.weights.h5")

    def call(self, x):
        return self.net(x)


BUILT = list(
    itertools.product((Ordinary, Assigns, Loads), (True, False), ("fit", "release", "step"))
)
# Other ways to train than `fit` matter where they build a layer; one that assigns stands for both.
MORE = [(kind, before, way) for kind, before, way in BUILT if way != "fit"
        and (before or kind is Loads)]  # fmt: skip


@pytest.mark.thorough_after(3)
@pytest.mark.parametrize("kind, before, way", slow.cases(BUILT, slow=MORE))
def test_weights_that_a_layer_loads_as_it_is_built_are_mentioned(
    small, tmp_path, monkeypatch, kind, before, way
):
    """Whether `fit` builds it or a `keras.Input` does."""
    monkeypatch.setattr(Loads, "folder", tmp_path)
    known = kind is Ordinary
    start = [keras.Input((3,))] if before else []
    base = keras.Sequential([*start, kind(), keras.layers.Dense(2)])
    if way == "fit":
        model = eager_model(base)
        fit_steps(model)
        assert mentioned(model) is not known
    elif way == "step":
        model = eager_model(base)
        model.train_on_batch(*small.data())
        assert bool(model.weight_origin.elsewhere()) is not known
    else:
        model = tfdp.make_private(base, validate=False)
        model.compile("sgd", small.loss, **EAGER)
        release = tfdp.data.release_once(*small.data(), clip_norm=1.0, noise_multiplier=2.0)
        model.fit(release.batches(small.n), verbose=0)
        assert mentioned(model) is not known
        of_run = model.charge_history.notes.assumptions  # also where the weights are gone
        assert any("came from elsewhere" in s for s in of_run) is not known
