"""Metrics of drawn batches are Keras' own, of the rows that are present: weights and masks too."""

import keras
import numpy as np
import pytest
import slow
import tensorflow as tf
from keras import metrics as m

import tfdp
from tfdp.training.present_rows import accept_no_weights

N, B, T, C = 40, 10, 4, 3
rng = np.random.default_rng(0)
PER_EXAMPLE, PER_POSITION = rng.uniform(1, 9, N), rng.uniform(1, 9, (N, T))


class Hits(m.Metric):
    """A metric of one's own, which takes no weights."""

    def __init__(self):
        super().__init__(name="hits")
        self.hits = self.add_weight(name="hits", initializer="zeros")

    def update_state(self, y_true, y_pred):
        self.hits.assign_add(keras.ops.sum(keras.ops.cast(y_pred < 0.5, "float32")))

    def result(self):
        return self.hits


def smallest(y_true, y_pred):
    """One number for the whole batch, which padding would change."""
    return keras.ops.min(y_pred) + keras.ops.mean(keras.ops.cast(y_true, "float32"))


OF_BINARY = [
    m.AUC, m.Precision, m.Recall, m.TruePositives, m.TrueNegatives, m.FalsePositives,
    m.FalseNegatives, m.BinaryAccuracy, m.BinaryCrossentropy, m.Hinge, m.SquaredHinge,
    lambda: m.PrecisionAtRecall(0.4), lambda: m.RecallAtPrecision(0.4),
    lambda: m.SensitivityAtSpecificity(0.4), lambda: m.SpecificityAtSensitivity(0.4),
    lambda: m.BinaryIoU((0, 1), 0.5), lambda: m.F1Score(threshold=0.5),
]  # fmt: skip
OF_NUMBERS = [
    m.MeanSquaredError, m.MeanAbsoluteError, m.MeanAbsolutePercentageError, m.LogCoshError,
    m.MeanSquaredLogarithmicError, m.RootMeanSquaredError, m.R2Score, m.CosineSimilarity,
    m.Poisson, m.KLDivergence, m.PearsonCorrelation, m.ConcordanceCorrelation,
]  # fmt: skip
OF_CLASSES = [
    m.SparseCategoricalAccuracy, m.SparseCategoricalCrossentropy,
    lambda: m.SparseTopKCategoricalAccuracy(2), lambda: m.MeanIoU(C, sparse_y_pred=False),
    lambda: m.IoU(C, [0, 2], sparse_y_pred=False), lambda: tfdp.metrics.NDCG(2, None),
]  # fmt: skip
OF_ONE_HOT = [
    m.CategoricalAccuracy, m.CategoricalCrossentropy, m.CategoricalHinge, m.AUC,
    lambda: m.TopKCategoricalAccuracy(2), lambda: m.F1Score(average="macro"),
    lambda: m.FBetaScore(beta=2.0), lambda: m.OneHotIoU(C, [1]), lambda: m.OneHotMeanIoU(C),
]  # fmt: skip
IDS = rng.integers(0, 4, (N, T))
NUMBERS = rng.uniform(0.1, 1, (N, 2)).astype("float32")


def dense(units, activation, features=2):
    return keras.Sequential([keras.Input((features,)), keras.layers.Dense(units, activation)])


def sequence(mask):
    table = keras.layers.Embedding(4, C, mask_zero=mask)
    return keras.Sequential(
        [keras.Input((T,), dtype="int32"), table, keras.layers.LSTM(C, return_sequences=True),
         keras.layers.Dense(C, "softmax")]
    )  # fmt: skip


#: Of each kind: model, x, y, loss, metrics, and those of them that Keras weighs.
KINDS = {
    "binary": (lambda: dense(1, "sigmoid"), NUMBERS, rng.integers(0, 2, (N, 1)),
               "binary_crossentropy", [*OF_BINARY, Hits, lambda: smallest], OF_BINARY[:9]),
    "labels": (lambda: dense(T, "sigmoid"), NUMBERS, rng.integers(0, 2, (N, T)),
               "binary_crossentropy", [*OF_BINARY, Hits], OF_BINARY[7:11]),
    "numbers": (lambda: dense(2, "softplus"), NUMBERS, NUMBERS[:, ::-1], "mse",
                [*OF_NUMBERS, lambda: smallest], OF_NUMBERS[:6]),
    "classes": (lambda: dense(C, "softmax"), NUMBERS, rng.integers(0, C, N),
                "sparse_categorical_crossentropy", ["accuracy", *OF_CLASSES], OF_CLASSES[:3]),
    "one hot": (lambda: dense(C, "softmax"), NUMBERS, np.eye(C)[rng.integers(0, C, N)],
                "categorical_crossentropy", ["accuracy", *OF_ONE_HOT], OF_ONE_HOT[:3]),
    "positions": (lambda: sequence(False), IDS, IDS % C, "sparse_categorical_crossentropy",
                  ["accuracy", *OF_CLASSES], OF_CLASSES[:3]),
    "masked": (lambda: sequence(True), IDS, IDS % C, "sparse_categorical_crossentropy",
               ["accuracy", *OF_CLASSES], OF_CLASSES[:3]),
}  # fmt: skip


def compiled(network, loss, metrics, weighted, private=True, **kwargs):
    made = lambda one: one if isinstance(one, str) else one()  # noqa: E731
    metrics, weighted = (keras.tree.map_structure(made, one) for one in (metrics, weighted))
    accept_no_weights(metrics, None)  # plain Keras does not take them
    if not private:
        plain = keras.models.clone_model(network)
        plain.set_weights(network.get_weights())
        plain.compile("sgd", loss, metrics=metrics, weighted_metrics=weighted, run_eagerly=True)
        return plain
    model = tfdp.make_private(network, validate=False)
    optimizer = tfdp.optimizers.DPOptimizer(
        keras.optimizers.SGD(0.0), noise_multiplier=1.0, num_examples=N, expected_batch_size=B,
        microbatch_size=kwargs.pop("microbatch_size", None),
    )  # fmt: skip
    model.compile(optimizer, loss, metrics=metrics, weighted_metrics=weighted, **kwargs)
    return model


def present_rows(batch):
    """The rows of a batch that are no padding."""
    of_record = keras.tree.flatten(batch[2])[0]
    present = np.flatnonzero(np.reshape(of_record, (len(of_record), -1)).any(axis=1))
    assert 0 < len(present) < len(of_record)
    return keras.tree.map_structure(lambda t: np.asarray(t)[present], batch)


def same(found, wanted):
    """Whether results are those of Keras: by their places, as Keras numbers equal names anew."""
    found, wanted = ([v for k, v in one.items() if "loss" not in k] for one in (found, wanted))
    assert len(found) == len(wanted) > 0
    for f, w in zip(found, wanted, strict=True):
        # A mean of numbers around 0 (R2, cosine) is known to their rounding, not to its own.
        np.testing.assert_allclose(f, w, rtol=2e-5, atol=1e-6)


OF_POSITIONS = "positions", "masked"
WEIGHED = [(kind, w) for kind in KINDS for w in ("none", "example")]
WEIGHED += [(kind, "position") for kind in OF_POSITIONS]
# Without weights metrics get those of the rows: as wide as the outputs, which may have a mask.
SLOW = [case for case in WEIGHED if case[1] == "none" and case[0] not in ("numbers", "masked")]
SLOW += [("positions", "example")]  # those with a mask are weighed like them


@pytest.mark.thorough_after(7)
@pytest.mark.parametrize("kind, weights", slow.cases(WEIGHED, slow=SLOW))
def test_metrics_are_those_of_keras_on_the_rows_that_are_present(kind, weights):
    network, x, y, loss, metrics, weighted = KINDS[kind]
    weights = {"none": None, "example": PER_EXAMPLE, "position": PER_POSITION}[weights]
    if kind == "masked" and weights is PER_EXAMPLE:
        weights = np.repeat(PER_EXAMPLE[:, None], T, 1)  # plain Keras takes no others
    network, data = network(), (x, y) if weights is None else (x, y, weights)
    pair = [compiled(network, loss, metrics, weighted, private) for private in (True, False)]
    for batch in tfdp.data.poisson_batches(data, B, steps_per_epoch=2):
        found = pair[0].compute_metrics(*batch[:2], pair[0](batch[0]), batch[2])
        x, y, w = present_rows(batch)
        wanted = pair[1].compute_metrics(x, y, pair[1](x), None if weights is None else w)
        same(found, wanted)


def two_outputs(mask=False):
    ids, x = keras.Input((T,), dtype="int32"), keras.Input((2,))
    table = keras.layers.Embedding(4, C, mask_zero=mask)
    words = keras.layers.Dense(C, "softmax", name="words")(table(ids))
    return keras.Model([ids, x], {"words": words, "click": keras.layers.Dense(
        1, "sigmoid", name="click")(x)})  # fmt: skip


CLICKS = rng.integers(0, 2, (N, 1))
DATA = ((IDS, NUMBERS), {"words": IDS % C, "click": CLICKS},
        {"words": PER_POSITION, "click": PER_EXAMPLE})  # fmt: skip
LOSSES = {"words": "sparse_categorical_crossentropy", "click": "binary_crossentropy"}
ACCURACY = {"words": ["accuracy"], "click": [m.AUC, Hits]}
WEIGHTED = [[lambda: m.BinaryAccuracy(name="b")], [m.SparseCategoricalAccuracy]]  # by name: click


def with_wanted(settings, accuracy=ACCURACY, weighted=WEIGHTED):
    """A private model, batches, and what plain Keras shows of the rows that are present."""
    network = two_outputs(mask=True)
    for layer in network.layers:  # nothing is learned: one layer's noise is enough to trace
        layer.trainable = layer.name == "click"
    model = compiled(network, LOSSES, accuracy, weighted, **settings)
    plain = compiled(network, LOSSES, accuracy, weighted, private=False)
    batches = list(tfdp.data.poisson_batches(DATA, B, steps_per_epoch=2))
    rows = (present_rows(batch) for batch in batches)
    return model, dataset_of(batches), plain.evaluate(rows, verbose=0, return_dict=True)


EXECUTIONS = {"jit_compile": True, "steps_per_execution": 2}


# Below are steps that are compiled, and of micro-batches; eager ones weigh classes.
@pytest.mark.thorough
@pytest.mark.parametrize(
    "settings",
    [{"jit_compile": False},
     *(pytest.param(one, marks=pytest.mark.evidence) for one in (
         {"jit_compile": True}, EXECUTIONS, {"microbatch_size": 4}, {"run_eagerly": True}))],
    ids=str,
)  # fmt: skip
def test_fit_and_evaluate_show_what_keras_shows_however_steps_are_made(settings):
    model, drawn, wanted = with_wanted(settings)
    with pytest.warns(UserWarning):  # that nothing is learned
        trained = model.fit(drawn, validation_data=drawn, verbose=0).history
    same({k: v[-1] for k, v in trained.items() if "val_" not in k}, wanted)
    same({k: v[-1] for k, v in trained.items() if "val_" in k}, wanted)
    same(model.evaluate(drawn, verbose=0, return_dict=True), wanted)


@pytest.mark.thorough_after(1)
@pytest.mark.parametrize("settings", [{"microbatch_size": 4}, EXECUTIONS], ids=str)
def test_fit_shows_what_keras_shows_in_compiled_executions_and_of_micro_batches(settings):
    # XLA compiles these metrics in half of the time that others take. Padding is a true negative.
    weighted = [[lambda: m.TrueNegatives(name="b")], [m.SparseCategoricalAccuracy]]
    accuracy = {"words": ["accuracy"], "click": [m.TrueNegatives, Hits]}
    model, drawn, wanted = with_wanted(settings, accuracy, weighted)
    with pytest.warns(UserWarning):  # that nothing is learned
        trained = model.fit(drawn, verbose=0).history
    same({k: v[-1] for k, v in trained.items()}, wanted)


def dataset_of(batches):
    stacked = tf.nest.map_structure(lambda *parts: tf.stack(parts), *batches)
    drawn = tf.data.Dataset.from_tensor_slices(stacked)
    return tfdp.data.declare_sampling(drawn, "poisson", N, B)


@pytest.mark.thorough
def test_class_weights_move_weighted_metrics_alone():
    network = dense(1, "sigmoid")
    metrics = [m.TruePositives], [m.TruePositives]
    model, plain = (compiled(network, "mse", *metrics, one, run_eagerly=True) for one in (1, 0))
    batches = list(tfdp.data.poisson_batches((NUMBERS, CLICKS), B, steps_per_epoch=2))
    rows = ((x, y, np.where(y[:, 0], 5.0, w)) for x, y, w in map(present_rows, batches))
    wanted = plain.evaluate(rows, verbose=0, return_dict=True)
    with pytest.warns(UserWarning):  # that nothing is learned
        shown = model.fit(dataset_of(batches), class_weight={0: 1.0, 1: 5.0}, verbose=0).history
    same({name: values[-1] for name, values in shown.items()}, wanted)


@pytest.mark.thorough
def test_a_batch_without_examples_changes_no_metric():
    model = compiled(dense(C, "softmax"), "categorical_crossentropy", [m.F1Score], [m.R2Score])
    batch = NUMBERS[:4], np.eye(C, dtype="float32")[[0, 1, 2, 0]]
    before = model.compute_metrics(*batch, model(batch[0]), np.float32([1, 1, 0, 0]))
    after = model.compute_metrics(*batch, model(batch[0]), np.zeros(4, np.float32))
    same(after, before)


def test_a_weighted_metric_that_takes_no_weights_is_refused():
    with pytest.raises(ValueError, match="'hits' is one of `weighted_metrics`.*one of `metrics`"):
        compiled(dense(1, "sigmoid"), "mse", [], [Hits])
