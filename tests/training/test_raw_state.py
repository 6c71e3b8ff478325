"""Raw data that a model keeps from step to step, or changes outside of its gradients."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from eager_steps import EAGER, eager_model, fit_steps
from epsilon_by_hand import DELTA
from small_models import Small

import tfdp
from tfdp.errors import PrivacyError


class Own(tfdp.models.DPModel):
    """A dense layer, a metric of the user's, and a weight that nothing trains."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(2)
        self.running = keras.metrics.Mean("running")
        self.kept = self.add_weight(shape=(3,), initializer="zeros", trainable=False, name="kept")

    def call(self, x):
        return self.dense(x)


class ReadsInLoss(Own):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        losses = super().compute_loss(x, y, y_pred, sample_weight, training)
        scale = tf.cond(tf.reduce_sum(self.running.count) > 1.0, self.running.result, lambda: 1.0)
        self.running.update_state(losses)
        return losses / scale


class ReadsInCall(Own):
    def call(self, x):
        return self.dense(x - tf.convert_to_tensor(self.running.result()))


class KeepsInMetrics(Own):
    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        self.kept.assign(0.9 * self.kept + 0.1 * tf.reduce_mean(x, axis=0))
        return super().compute_metrics(x, y, y_pred, sample_weight)


class KeepsByAFunction(Own):
    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        tf.function(lambda: self.kept.assign(tf.reduce_mean(x, axis=0)))()
        return super().compute_metrics(x, y, y_pred, sample_weight)


class KeepsByABranch(Own):
    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        mean = tf.reduce_mean(x, axis=0)
        tf.cond(mean[0] < 9.0, lambda: self.kept.assign(mean), lambda: self.kept.value)
        return super().compute_metrics(x, y, y_pred, sample_weight)


class SetsTheRate(Own):
    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        self.optimizer.inner_optimizer.learning_rate.assign(tf.reduce_mean(tf.abs(x)))
        return super().compute_metrics(x, y, y_pred, sample_weight)


class Keeping(keras.metrics.Mean):
    """A metric that has a weight of the model for its own."""

    def __init__(self, kept):
        super().__init__("keeping")
        self.kept = kept

    def update_state(self, y, y_pred, sample_weight=None):
        self.kept.assign(tf.reduce_mean(y_pred) + tf.zeros([3]))
        return super().update_state(y, sample_weight)


def fit(model, metrics=(), **kwargs):
    model.compile(Small.optimizer(), Small.loss, metrics=list(metrics), **kwargs)
    model.fit(Small.poisson(), verbose=0)
    return model


@pytest.mark.thorough
@pytest.mark.parametrize("made", [ReadsInLoss, ReadsInCall])
def test_results_do_not_follow_metrics(made):
    with pytest.raises(PrivacyError, match="state of a metric"):
        fit(made())


@pytest.mark.thorough
@pytest.mark.parametrize("eagerly", [False, True])
@pytest.mark.parametrize("made", [KeepsInMetrics, KeepsByAFunction, KeepsByABranch, SetsTheRate])
def test_metrics_write_to_no_weight(made, eagerly):
    with pytest.raises(PrivacyError, match="changes a weight"):
        fit(made(), run_eagerly=eagerly)


def test_a_metric_that_has_a_weight_for_its_own_writes_to_none():
    model = Own()
    model(tf.zeros([1, 3]))
    with pytest.raises(PrivacyError, match="changes a weight"):
        fit(model, [Keeping(model.kept)])


class Reads(keras.metrics.Mean):
    """Reads a weight in a function, a branch and a loop, and looks at the whole batch."""

    def __init__(self, kernel):
        super().__init__("reads")
        self.kernel = kernel

    def update_state(self, y, y_pred, sample_weight=None):
        norm = tf.function(lambda: tf.norm(tf.convert_to_tensor(self.kernel)))()
        norm += tf.cond(norm > 0.0, lambda: tf.norm(tf.convert_to_tensor(self.kernel)), lambda: 0.0)
        norm += tf.while_loop(
            lambda i, _: i < 2,
            lambda i, a: (i + 1, a + tf.norm(tf.convert_to_tensor(self.kernel))),
            (0, 0.0),
        )[1]
        close, _ = tf.math.top_k(y_pred @ tf.transpose(y_pred), k=1)
        return super().update_state(norm + tf.reduce_mean(close))


@pytest.mark.thorough
def test_metrics_may_read_weights_and_the_whole_batch():
    model = Own()
    model(tf.zeros([1, 3]))
    fit(model, [Reads(model.dense.kernel)])


@pytest.mark.thorough
def test_metrics_that_run_eagerly_may_use_numpy():
    class ByNumpy(keras.metrics.Mean):
        def update_state(self, y, y_pred, sample_weight=None):
            return super().update_state(np.median(y_pred.numpy()))

    fit(Own(), [ByNumpy("by_numpy")], run_eagerly=True)


def test_a_loss_does_not_follow_a_metric_that_is_given_to_compile():
    metric = keras.metrics.SparseCategoricalAccuracy()
    entropy = keras.losses.sparse_categorical_crossentropy

    def loss(y, y_pred):
        return entropy(y, y_pred, from_logits=True) * (1.0 + tf.convert_to_tensor(metric.total))

    model = Own()
    model.compile(Small.optimizer(), loss, metrics=[metric])
    with pytest.raises(PrivacyError, match="state of a metric"):
        model.fit(Small.poisson(), verbose=0)


@pytest.mark.thorough
def test_a_weight_that_a_metric_has_too_is_not_written_by_a_loss():
    class Writes(Own):
        def __init__(self):
            super().__init__()
            self.keeping = Keeping(self.kept)

        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            self.kept.assign(tf.reduce_mean(x, axis=0))
            return super().compute_loss(x, y, y_pred, sample_weight, training)

    with pytest.raises(PrivacyError, match="AssignVariableOp"):
        fit(Writes())


@pytest.mark.thorough
def test_metrics_keep_what_is_shown_in_variables_of_their_own():
    class Shows(Own):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            losses = super().compute_loss(x, y, y_pred, sample_weight, training)
            self.running.update_state(losses)
            return losses

    fit(Shows(), ["accuracy", keras.metrics.SparseTopKCategoricalAccuracy(1)])


@pytest.mark.filterwarnings("ignore:The object being serialized includes a `lambda`")
def test_what_acts_on_weights_past_the_noise_is_listed():
    def towards_public_values(w):
        return tf.reduce_sum((w - 1.0) ** 2)

    class Half(keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step):
            return 0.5

        def get_config(self):
            return {}

    class Kept(keras.constraints.Constraint):
        def __call__(self, w):
            return w

    class Descent(keras.optimizers.SGD):
        pass

    def said(layer, inner):
        model = eager_model(keras.Sequential([keras.Input((3,)), layer]), inner=inner)
        fit_steps(model)
        return model.privacy_statement(DELTA).assumptions

    layer = keras.layers.Dense(2, kernel_regularizer=towards_public_values, bias_constraint=Kept())
    found = said(layer, Descent(Half()))
    for part in (
        "regularizer towards_public_values does not use the records",
        "constraint Kept does not use the records",
        "optimizer Descent uses the records only through their noised gradients",
        "the schedule Half does not follow losses or metrics",
    ):
        assert part in found, found
    plain = keras.layers.Dense(2, kernel_regularizer="l2", bias_constraint="non_neg")
    cosine = keras.optimizers.schedules.CosineDecay(0.1, 10)
    found = said(keras.layers.Dense(2), keras.optimizers.SGD(lambda: 0.1))
    assert any("schedule <lambda> does not follow" in s for s in found)
    assert [s for s in said(plain, keras.optimizers.SGD(cosine)) if "not checked" not in s] == []


def test_what_changed_between_runs_is_checked_again(small):
    class Switched(Own):
        mixes = False

        def call(self, x):
            return self.dense(x - tf.reduce_mean(x, axis=0) if self.mixes else x)

    model = fit(Switched())
    model.mixes = True
    with pytest.raises(PrivacyError, match="mixes"):
        model.fit(small.poisson(max_batch_size=23), verbose=0)

    class SwitchedLoss(Own):
        centred = False

        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            losses = super().compute_loss(x, y, y_pred, sample_weight, training)
            return losses - tf.reduce_mean(losses) if self.centred else losses

    model = fit(SwitchedLoss())
    model.centred = True
    model.fit(small.poisson(), verbose=0)  # the step that was proved runs on, as in Keras
    with pytest.raises(PrivacyError, match="mixes"):
        model.fit(small.poisson(max_batch_size=23), verbose=0)
    model = fit(Switched(), run_eagerly=True)
    model.mixes = True
    with pytest.raises(PrivacyError, match="mixes"):
        model.fit(small.poisson(), verbose=0)


@pytest.mark.thorough
@pytest.mark.parametrize("part", ["call", "loss"])
def test_what_changed_is_traced_again_where_nothing_else_is_checked(small, part):
    class Switched(Own):
        validate_independence = False
        reads = False

        def call(self, x):
            return self.dense(x + self._total() if part == "call" else x)

        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            losses = super().compute_loss(x, y, y_pred, sample_weight, training)
            return losses + self._total() if part == "loss" else losses

        def _total(self):
            return tf.convert_to_tensor(self.running.total) if self.reads else 0.0

    model = fit(Switched(), run_eagerly=True)
    model.reads = True
    with pytest.raises(PrivacyError, match="state of a metric"):
        model.fit(small.poisson(), verbose=0)


@pytest.mark.parametrize("change", ["twice", "fewer"])
def test_a_step_of_a_subclass_hands_on_the_rows_that_it_got(change):
    class Changes(Own):
        def train_step(self, data):
            rows = {"twice": lambda t: tf.concat([t, t], 0), "fewer": lambda t: t[:2]}[change]
            return super().train_step(tf.nest.map_structure(rows, data))

    with pytest.raises(PrivacyError, match="passes on"):
        fit(Changes())


@pytest.mark.thorough_after(1)
@pytest.mark.parametrize("twice", [False, True])
def test_rows_of_unknown_number_are_counted_in_the_step(twice):
    class Hides(Own):
        def train_step(self, data):
            def hidden(t):
                t = tf.concat([t, t], 0) if twice else t
                return tf.raw_ops.PlaceholderWithDefault(input=t, shape=[None, *t.shape[1:]])

            return super().train_step(tf.nest.map_structure(hidden, data))

    if not twice:
        fit(Hides())
        return
    with pytest.raises(tf.errors.InvalidArgumentError, match="passes on another number of rows"):
        fit(Hides())


@pytest.mark.thorough
def test_a_step_that_looks_like_another_one_is_charged():
    class Raw(Own):
        @functools.wraps(tfdp.models.DPModel.train_step)
        def train_step(self, data):
            self.dense.kernel.assign_add(tf.ones_like(self.dense.kernel))
            return {"loss": tf.reduce_mean(self(data[0]))}

    class Twice(Own):
        def train_step(self, data):
            return super().train_step(data)

    fit(Twice())

    class Inherits(Own):
        @functools.wraps(Twice.train_step)
        def train_step(self, data):
            self.dense.kernel.assign_add(tf.ones_like(self.dense.kernel))
            return {"loss": tf.reduce_mean(self(data[0]))}

    for made in (Raw, Inherits):
        assert fit(made()).ledger.epsilon(DELTA) == np.inf


@pytest.mark.thorough_after(1)
@pytest.mark.parametrize("other", ["private", "plain"])
def test_another_optimizer_needs_another_compilation(small, other):
    model = eager_model()
    fit_steps(model)
    model.optimizer = small.optimizer() if other == "private" else keras.optimizers.SGD(0.1)
    with pytest.raises(PrivacyError, match="assigned to the model"):
        fit_steps(model)


def test_a_loss_that_reads_a_weight_with_a_penalty_is_refused():
    class Tied(Own):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(2, kernel_regularizer="l2")

        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            decoded = y_pred @ tf.transpose(tf.convert_to_tensor(self.dense.kernel))
            return tf.reduce_mean((decoded - x) ** 2, axis=1)

    with pytest.raises(PrivacyError, match="reads the trained variable"):
        fit(Tied())


@pytest.mark.thorough
@pytest.mark.parametrize("wrapped", [False, True])
def test_subclasses_may_be_built_by_their_shape(small, wrapped):
    class Plain(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(2)

        def call(self, x):
            return self.dense(x)

    model = Plain() if wrapped else Own()
    model.build((None, 3))
    fit(tfdp.make_private(model))


def test_losses_and_models_that_would_be_half_ignored_are_refused(small):
    class Scaled(keras.losses.MeanSquaredError):
        def __call__(self, y, y_pred, sample_weight=None):
            return 100.0 * super().__call__(y, y_pred, sample_weight)

    with pytest.raises(ValueError, match="__call__"):
        eager_model(loss=Scaled())

    class Predicts(keras.Model):
        def predict_step(self, data):
            return super().predict_step(data) * 100.0

    with pytest.raises(ValueError, match="predict_step"):
        tfdp.make_private(Predicts())


@pytest.mark.thorough_after(1)
@pytest.mark.parametrize("weights", [{-1: 5.0, 1: 1.0}, {}, {"a": 1.0}, {0.5: 1.0}, [1.0]])
def test_class_weights_are_of_classes(small, weights):
    with pytest.raises(ValueError, match="class_weight"):
        eager_model().fit(small.poisson(), class_weight=weights, verbose=0)


def test_class_weights_are_listed_as_assumed(small):
    """Weights of classes are often made of their counts, which are raw data."""
    given = {10: 2, np.int64(1): np.float32(0.5), False: 1.0}
    wanted = "the class weights are no function of the records: 0 by 1, 1 by 0.5, 10 by 2"
    x, y = small.data()
    noised = tfdp.make_private(
        keras.Sequential(
            [
                keras.Input((3,)),
                tfdp.layers.DPForwardNoise(1.0, noise_multiplier=5.0),
                keras.layers.Dense(11),
            ]
        )
    )
    plain = tfdp.make_private(small.base(classes=11))
    for model in (noised, plain):
        model.compile("sgd", small.loss, **EAGER)
    released = tfdp.data.release_once(x, y, clip_norm=1.0, noise_multiplier=5.0).batches(10)
    private = eager_model(small.base(classes=11))
    for model, data in (
        (private, (small.poisson(),)),
        (private, (x, y, 10)),
        (noised, (small.poisson(),)),
        (plain, (released,)),
    ):
        model.fit(*data, class_weight=given, verbose=0)
        assert wanted in model.privacy_statement(DELTA).assumptions

    counts = tfdp.data.private_frequency(
        tfdp.data.leave_one_out_split([[1, 2, 1]] * small.n, 3, num_items=2).train, epsilon=0.5
    ).probabilities
    balanced = {label: 0.5 / counts[label] for label in (1, 2)}
    for weights, wanted in ((balanced, ""), ({0: 2.0, **balanced}, ": 0 by 2")):
        model = eager_model(small.base(classes=3))
        fit_steps(model, class_weight=weights)
        found = [s for s in model.privacy_statement(DELTA).assumptions if "class weights" in s]
        assert bool(found) == bool(wanted) and all(s.endswith(wanted) for s in found)


def test_sample_weights_are_listed_as_assumed(small):
    """Those of classes, given to each record, are made of the same counts as class weights."""
    x, y = small.data()
    wanted = "each sample weight was computed from its own record alone"
    counts = tfdp.data.private_frequency(
        tfdp.data.leave_one_out_split([[1, 2, 1]] * small.n, 3, num_items=2).train, epsilon=0.5
    ).probabilities
    for weights, is_listed in (
        (None, False),
        ((y > 0).astype(np.float32), False),  # leaves records out
        (np.where(y > 0, 0.7, 2.1), True),
        (0.5 / counts[1 + y % 2], False),  # is charged
    ):
        for given in (
            {"x": tfdp.data.poisson_batches((x, y, weights), 10, steps_per_epoch=1)},
            {"x": x, "y": y, "batch_size": 10, "sample_weight": weights},
        ):
            model = eager_model()
            model.fit(**given, verbose=0)
            assert (wanted in model.privacy_statement(DELTA).assumptions) == is_listed


def test_a_step_of_a_subclass_may_run_eagerly_on_arrays(small):
    class Twice(Own):
        def train_step(self, data):
            return super().train_step(data)

    model = Twice()
    model.compile(small.optimizer(), small.loss, **EAGER)
    x, y = small.data()
    model.train_on_batch(x, y)
    assert model.ledger.epsilon(DELTA) == np.inf


def test_truth_values_are_classes(small):
    model = eager_model()
    model.fit(small.poisson(), class_weight={False: 1.0, np.True_: 2.0}, verbose=0)


@pytest.mark.thorough
def test_losses_of_another_model_may_be_given(small):
    model = eager_model(loss=eager_model().loss)
    fit_steps(model)


def test_a_validation_of_a_subclass_is_assumed_to_learn_nothing(small):
    class Steps(Own):
        def test_step(self, data):
            self.kept.assign(tf.ones([3]))
            return super().test_step(data)

    class Wrapped(Own):
        test_step = functools.wraps(keras.Model.test_step)(Steps.test_step)

    class Makes(Own):
        def make_test_function(self, force=False):
            return super().make_test_function(force)

    class Evaluates(Own):
        def evaluate(self, *args, **kwargs):
            self.kept.assign(tf.ones([3]))
            return super().evaluate(*args, **kwargs)

    made = {Own: [], Steps: ["test_step"], Wrapped: ["test_step"], Makes: ["make_test_function"],
            Evaluates: ["evaluate"]}  # fmt: skip
    for model, steps in made.items():
        assumptions = fit(model(), run_eagerly=True).privacy_statement(DELTA).assumptions
        said = [s.split("`")[1] for s in assumptions if " of " + model.__name__ in s]
        assert said == steps


@pytest.mark.thorough
def test_a_layer_that_is_never_called_may_stay_unbuilt(small):
    class Spare(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.used, self.spare = keras.layers.Dense(2), keras.layers.Dense(5)

        def call(self, x):
            return tf.reduce_mean(self.used(x), axis=1)

    tokens = keras.Input((None, 3))
    model = tfdp.make_private(keras.Model(tokens, Spare()(tokens)))
    model.compile(small.optimizer(), small.loss)
    x, y = small.data()
    batches = small.poisson((np.repeat(x[:, None], 4, axis=1), y))
    model.fit(batches.map(lambda x, y, w: (x, y, w)), verbose=0)
