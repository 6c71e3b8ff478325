"""Weights that a step reads though no layer of its model has them: their charges are not lost."""

import types

import dp_accounting
import keras
import numpy as np
import pytest
import tensorflow as tf
from eager_steps import EAGER, eager_model, fit_steps
from epsilon_by_hand import assert_one, by_hand, poisson
from small_models import make_data

import tfdp
from tfdp.errors import PrivacyError

DELTA = 1e-3
LOST = "whose training was charged"


class Student(tfdp.models.DPModel):
    """A dense layer on what a function makes of the inputs."""

    def __init__(self, features, tracked=None):
        super().__init__()
        self.dense, self.tracked, self.features = keras.layers.Dense(2), tracked, features

    def call(self, x):
        return self.dense(tf.stop_gradient(self.features(x)))


def by_name(encoder):
    return lambda x: encoder(x)


def by_lambda(encoder):
    return keras.layers.Lambda(lambda x: encoder(x), output_shape=(2,))


def by_object(encoder):
    hidden = types.SimpleNamespace(encoder=encoder)
    return lambda x: hidden.encoder(x)


def by_function(encoder):
    """Traced before, so that no Python code reads the weights any more."""
    function = tf.function(encoder.call, autograph=False).get_concrete_function(
        tf.TensorSpec([None, 3], tf.float32)
    )
    return lambda x: function(x)


def in_a_loop(encoder):
    return lambda x: tf.while_loop(lambda i, _: i < 2, lambda i, h: (i + 1, h + encoder(x)),
                                   (0, encoder(x)))[1]  # fmt: skip


@pytest.fixture
def trained():
    """A dense layer that was trained with privacy."""
    encoder = keras.layers.Dense(2)
    charged(encoder)
    return encoder


def charged(*layers):
    """Trains layers with privacy, in steps that are only there to be charged."""
    model = eager_model(keras.Sequential([keras.Input((3,)), *layers]), noise_multiplier=2.0)
    fit_steps(model, 4)
    return model


def compiled(small, model, loss=None, **engine):
    model.compile(small.optimizer(noise_multiplier=4.0), loss=loss or small.loss, **engine)
    return model


@pytest.mark.thorough_after(2)
@pytest.mark.parametrize("hides", [by_name, by_lambda, by_object, by_function, in_a_loop])
def test_weights_that_were_charged_and_are_in_no_layer_are_refused(hides, small, trained):
    model = compiled(small, Student(hides(trained)))
    with pytest.raises(PrivacyError, match=LOST):
        model.fit(small.poisson(), verbose=0)
    assert model.optimizer.charging.steps_of_run == 0


@pytest.mark.thorough
@pytest.mark.parametrize("engine", [EAGER, {"jit_compile": True}])
def test_they_are_refused_by_every_engine(engine, small, trained):
    model = compiled(small, Student(by_name(trained)), **engine)
    with pytest.raises(PrivacyError, match=LOST):
        model.fit(small.poisson(), verbose=0)


@pytest.mark.thorough
def test_they_are_refused_in_micro_batches(small, trained):
    model = Student(by_name(trained))
    model.compile(small.optimizer(microbatch_size=5), loss=small.loss)
    with pytest.raises(PrivacyError, match=LOST):
        model.fit(small.poisson(), verbose=0)


def distilled(teacher):
    def loss(y, outputs):
        return keras.losses.kl_divergence(tf.nn.softmax(teacher(y)), tf.nn.softmax(outputs))

    return loss


def test_a_teacher_in_the_loss_is_refused_unless_it_is_a_part_of_the_model(small, trained):
    x, _ = make_data()
    data = small.poisson((x, x))
    model = compiled(small, tfdp.make_private(small.base()), distilled(trained))
    with pytest.raises(PrivacyError, match=LOST):
        model.fit(data, verbose=0)
    trained.trainable = False
    before = Student(tf.identity, trained)
    before.compile(small.optimizer(noise_multiplier=4.0), loss=distilled(trained))
    before.fit(data, verbose=0)
    assert len(before.ledger) == 2  # what the teacher cost is in it


@pytest.mark.thorough
def test_weights_that_are_charged_after_the_first_fit_are_refused_at_the_next_one(small):
    encoder = keras.layers.Dense(2)
    encoder.build((None, 3))
    model = compiled(small, Student(by_name(encoder)))
    model.fit(small.poisson(), verbose=0)
    charged(encoder)
    with pytest.raises(PrivacyError, match=LOST):
        model.fit(small.poisson(), verbose=0)


@pytest.mark.thorough
def test_what_was_charged_without_a_step_is_not_lost_either(small):
    encoder = keras.layers.Dense(2)
    other = small.model(keras.Sequential([keras.Input((3,)), encoder]))
    other.charge("counts that its weights were made of", dp_accounting.GaussianDpEvent(2.0))
    model = compiled(small, Student(by_name(encoder)))
    with pytest.raises(PrivacyError, match=LOST):
        model.fit(small.poisson(), verbose=0)


@pytest.mark.thorough
def test_layers_that_the_model_has_are_read_by_any_name(small, trained):
    trained.trainable = False
    model = compiled(small, Student(by_name(trained), trained))
    model.fit(small.poisson(), verbose=0)
    assert len(model.ledger) == 2


def records():
    return tf.data.Dataset.from_tensor_slices(make_data())


def mapped_after(small, encoder):
    return small.poisson().map(lambda x, y, weight: (encoder(x), y, weight)).prefetch(2)


def mapped_by_person(small, encoder):
    ids = {"privacy_ids": np.arange(40), "max_records_per_unit": 1}
    return small.poisson(**ids).map(lambda x, y, weight: (encoder(x), y, weight))


def mapped_by_a_traced_function(small, encoder):
    function = tf.function(encoder.call).get_concrete_function(tf.TensorSpec([None, 3], tf.float32))
    return small.poisson().map(lambda x, y, weight: (function(x), y, weight))


def mapped_before(small, encoder):
    return small.poisson(records().map(lambda x, y: (encoder(x[None])[0], y)))


def mapped_and_declared(small, encoder):
    batches = records().map(lambda x, y: (encoder(x[None])[0], y)).batch(10)
    return tfdp.data.declare_sampling(batches, "poisson", 40, 10)


def student(small, data):
    persons = {"max_records_per_unit": 1} if data is mapped_by_person else {}
    return small.model(small.base(features=2), noise_multiplier=4.0, **persons)


@pytest.mark.thorough_after(3)
@pytest.mark.parametrize(
    "data",
    [
        mapped_after,
        mapped_by_person,
        mapped_by_a_traced_function,
        mapped_before,
        mapped_and_declared,
    ],
)
def test_batches_that_were_made_by_weights_that_were_charged_are_refused(data, small, trained):
    """The student was charged its own 4 steps, ε = 0.29; with the encoder's it is 0.85."""
    model = student(small, data)
    with pytest.raises(PrivacyError, match=LOST):
        model.fit(data(small, trained), verbose=0)
    assert not model.ledger.entries
    model = student(small, data)
    with pytest.raises(PrivacyError, match=LOST):
        next(iter(model.training_batches(data(small, trained))))


@pytest.mark.thorough
def test_batches_may_be_made_by_weights_whose_charges_the_model_has(small, trained):
    trained.trainable = False
    model = compiled(small, Student(tf.identity, trained))
    for data in (mapped_after, mapped_before):
        model.fit(data(small, trained).map(lambda x, y, w: (x, y, w)), verbose=0)
    assert_one(model, by_hand(poisson(2.0, 0.25, 4), poisson(4.0, 0.25, 8)))
    other = small.model(small.base(), noise_multiplier=4.0)
    fresh = keras.layers.Dense(3)
    other.fit(mapped_after(small, fresh), verbose=0)  # nothing was charged for them
    assert_one(other, by_hand(poisson(4.0, 0.25, 4)))


@pytest.mark.thorough
def test_released_batches_that_were_made_by_weights_that_were_charged_are_refused(small, trained):
    release = tfdp.data.release_once(*make_data(), clip_norm=1.0, noise_multiplier=2.0)
    model = tfdp.make_private(small.base(features=2))
    model.compile("sgd", loss=small.loss)
    with pytest.raises(PrivacyError, match=LOST):
        model.fit(release.batches(10).map(lambda x, y: (trained(x), y)), verbose=0)


@pytest.mark.thorough_after(1)
@pytest.mark.parametrize("hides", [by_name, by_function])
def test_weights_that_were_charged_and_then_quantized_are_refused(hides, small):
    """The student was charged its own 4 steps, ε = 0.29; with the encoder's it is 0.85."""
    encoder, frozen = keras.layers.Dense(2, use_bias=False), keras.layers.Dense(3)
    frozen.trainable = False
    charged(frozen, encoder)
    for layer in (encoder, frozen):
        layer.quantize("int8")
    model = compiled(small, Student(hides(encoder)))
    with pytest.raises(PrivacyError, match=LOST):
        model.fit(small.poisson(), verbose=0)
    with pytest.raises(PrivacyError, match=LOST):
        small.model(small.base(features=2)).fit(mapped_after(small, encoder), verbose=0)
    model = compiled(small, Student(hides(frozen)))
    model.fit(small.poisson(), verbose=0)  # it learned nothing
    assert_one(model, by_hand(poisson(4.0, 0.25, 4)))


@pytest.mark.thorough
def test_the_numbers_of_quantized_weights_are_refused_by_themselves(small):
    encoder = keras.layers.Dense(2, use_bias=False)
    charged(encoder)
    encoder.quantize("int8")
    integers = encoder._kernel  # without their scale
    model = compiled(small, Student(lambda x: x @ tf.cast(integers.value, tf.float32)))
    with pytest.raises(PrivacyError, match=LOST):
        model.fit(small.poisson(), verbose=0)


def elsewhere(model):
    return [s for s in model.privacy_statement(DELTA).assumptions if "came from elsewhere" in s]


def test_values_of_unknown_origin_that_are_in_no_layer_are_mentioned(small, tmp_path):
    known, unknown = keras.layers.Dense(2), keras.layers.Dense(2)
    for layer in (known, unknown):
        layer.build((None, 3))
    model = compiled(small, Student(by_name(known)))
    model.fit(small.poisson(), verbose=0)
    assert not elsewhere(model)  # an initializer's

    unknown.kernel.assign(np.full((3, 2), 0.3, np.float32))
    model = compiled(small, Student(by_name(unknown)))
    model.fit(small.poisson(), verbose=0)
    assert unknown.kernel.path in elsewhere(model)[0]
    model.save_weights(tmp_path / "model.weights.h5")  # the file says so, too
    again = compiled(small, Student(by_name(unknown)))
    again.build((None, 3))
    again.load_weights(tmp_path / "model.weights.h5")
    assert elsewhere(again)


@pytest.mark.thorough
def test_weights_of_a_saved_model_that_a_layer_holds_are_mentioned(small, tmp_path):
    exported = charged(keras.layers.Dense(2))
    tfdp.serving.export(exported, str(tmp_path / "exported"), delta=DELTA)
    served = tf.saved_model.load(str(tmp_path / "exported"))
    model = compiled(small, Student(lambda x: served.serve(x)))
    model.fit(small.poisson(), verbose=0)
    assert elsewhere(model)


@pytest.mark.thorough
@pytest.mark.parametrize("engine", [{}, EAGER])
def test_forward_noise_on_weights_that_were_charged_is_refused(engine, small, trained):
    class Noisy(tfdp.models.DPModel):
        def __init__(self):
            super().__init__()
            self.noise = tfdp.layers.DPForwardNoise(noise_multiplier=1.0, clip_norm=1.0)
            self.dense = keras.layers.Dense(2)

        def call(self, x, training=None):
            return self.dense(self.noise(trained(x), training=training))

    model = Noisy()
    model.compile("sgd", loss=small.loss, **engine)
    with pytest.raises(PrivacyError, match=LOST):
        model.fit(small.poisson(), verbose=0)


@pytest.mark.thorough
def test_training_on_released_data_reads_no_weights_that_were_charged(small, trained):
    release = tfdp.data.release_once(*make_data(), clip_norm=1.0, noise_multiplier=2.0)
    unknown = keras.layers.Dense(2)
    unknown.build((None, 3))
    unknown.kernel.assign(np.full((3, 2), 0.3, np.float32))
    model = Student(by_name(unknown))
    model.compile("sgd", loss=small.loss)
    model.fit(release.batches(10), verbose=0)
    assert elsewhere(model)

    model = Student(by_name(trained))
    model.compile("sgd", loss=small.loss)
    with pytest.raises(PrivacyError, match=LOST):
        model.fit(release.batches(10), verbose=0)


@pytest.mark.thorough
def test_what_a_step_reads_of_its_own_is_not_noted(small):
    model = compiled(small, tfdp.make_private(small.base()), metrics=["accuracy"])
    model.fit(small.poisson(), verbose=0)
    assert not model.weight_origin.others


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:These variables get a gradient of exactly zero")
def test_weights_whose_charges_are_joined_are_not_from_elsewhere(small):
    shared, head = keras.layers.Dense(2), keras.layers.Dense(2)
    first = charged(shared, head)
    second = compiled(small, Student(lambda x: head(shared(x)), shared))
    second.fit(small.poisson(), verbose=0)
    assert len(second.ledger) == 2
    assert not elsewhere(second) and not elsewhere(first)


class Relabelled(tfdp.models.DPModel):
    """Takes its labels from a teacher, in a step of its own."""

    def __init__(self, teacher):
        super().__init__()
        self.dense, self.teach = keras.layers.Dense(2), lambda x: teacher(x)

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        return super().train_step(
            (x, tf.cast(tf.argmax(self.teach(x), -1), y.dtype), sample_weight)
        )


class Pulled(Relabelled):
    """Moves its weights towards the teacher's after each step."""

    def __init__(self, teacher):
        super().__init__(tf.identity)
        self.pull = lambda kernel: kernel.assign_add(0.1 * (teacher.kernel - kernel))

    def train_step(self, data):
        results = tfdp.models.DPModel.train_step(self, data)
        self.pull(self.dense.kernel)
        return results


def regularized(layer):
    class Near(keras.regularizers.Regularizer):
        def __call__(self, weights):
            return 0.1 * tf.reduce_sum((weights - layer.kernel) ** 2)

    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, kernel_regularizer=Near())])


def constrained(layer):
    class Near(keras.constraints.Constraint):
        def __call__(self, weights):
            return layer.kernel + tf.clip_by_value(weights - layer.kernel, -0.01, 0.01)

    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, kernel_constraint=Near())])


@pytest.mark.thorough_after(1)
@pytest.mark.parametrize("makes", [Relabelled, Pulled, regularized, constrained])
def test_the_rest_of_a_step_reads_no_weights_that_were_charged_either(makes, small, trained):
    made = makes(trained)
    private = made if isinstance(made, tfdp.models.DPModel) else tfdp.make_private(made)
    model = compiled(small, private)
    with pytest.raises(PrivacyError, match=LOST):
        model.fit(small.poisson(), verbose=0)
    assert model.optimizer.charging.steps_of_run == 0


@pytest.mark.thorough
def test_what_only_the_rest_of_a_step_reads_is_refused_once_it_is_charged(small):
    layer = keras.layers.Dense(2)
    layer.build((None, 3))
    model = compiled(small, tfdp.make_private(regularized(layer)))
    model.fit(small.poisson(), verbose=0)
    charged(layer)
    with pytest.raises(PrivacyError, match=LOST):
        model.fit(small.poisson(), verbose=0)
