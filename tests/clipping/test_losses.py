"""An example's loss is its own: from its own positions, divided by its own count."""

import keras
import numpy as np
import pytest
import slow
import tensorflow as tf

import tfdp
from tfdp._compat.keras import set_mask
from tfdp.clipping import crossentropy
from tfdp.clipping.losses import PerExampleLoss, example_mask_of
from tfdp.runtime.xla import compiling

GENERATOR = np.random.default_rng(0)


def test_mean_over_own_positions():
    y = np.array([[1, 2, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0]])
    logits = GENERATOR.normal(size=(3, 4, 3)).astype(np.float32)
    own = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)
    values = PerExampleLoss(own)(y, tf.constant(logits)).numpy()
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    for i, count in ((0, 2), (1, 4)):
        wanted = -sum(log_p[i, t, y[i, t]] for t in range(4) if y[i, t]) / count
        assert values[i] == pytest.approx(wanted, rel=1e-5)
    assert values[2] == 0
    total = PerExampleLoss(own, "sum")(y, tf.constant(logits)).numpy()
    np.testing.assert_allclose(total, values * [2, 4, 0], rtol=1e-5)


@pytest.mark.parametrize("name", ["mse", "mae", "huber", "log_cosh"])
def test_another_example_changes_nothing(name):
    y, p = GENERATOR.normal(size=(2, 3, 4, 2)).astype(np.float32)
    before = PerExampleLoss(name)(y, tf.constant(p)).numpy()
    p[1:] = np.nan
    after = PerExampleLoss(name)(y, tf.constant(p)).numpy()
    assert before.shape == (3,) and after[0] == before[0]


def test_matches_keras_for_one_example():
    y, p = GENERATOR.integers(0, 2, (2, 1, 5)).astype(np.float32)
    p = 0.1 + 0.8 * p
    keras_value = float(keras.losses.BinaryCrossentropy()(y, p))
    assert float(PerExampleLoss("binary_crossentropy")(y, p)[0]) == pytest.approx(keras_value)


def test_weights_multiply_and_masks_select():
    y, p = GENERATOR.normal(size=(2, 2, 3)).astype(np.float32)
    squares = np.square(y - p)
    predictions = tf.constant(p[..., None])
    predictions._keras_mask = tf.constant([[True, True, False], [True, False, False]])
    y[0, 2] = np.inf  # an invalid position may be anything
    values = PerExampleLoss("mse")(y[..., None], predictions, np.array([2.0, 3.0])).numpy()
    np.testing.assert_allclose(values, [squares[0, :2].mean() * 2, squares[1, 0] * 3], rtol=1e-5)
    positions = np.array([[1, 0, 0], [0, 4, 0]], np.float32)
    y[0, 2] = 0
    values = PerExampleLoss("mse")(y[..., None], tf.constant(p[..., None]), positions).numpy()
    np.testing.assert_allclose(values, [squares[0, 0] / 3, 4 * squares[1, 1] / 3], rtol=1e-5)


def test_functions_of_the_user():
    def loss(y_true, y_pred):
        return tf.abs(y_true - y_pred)

    y, p = GENERATOR.normal(size=(2, 4, 3)).astype(np.float32)
    values = PerExampleLoss(loss)(y, tf.constant(p)).numpy()
    np.testing.assert_allclose(values, np.abs(y - p).mean(1), rtol=1e-6)


def test_scalar_losses_are_refused():
    with pytest.raises(ValueError, match="scalar"):
        PerExampleLoss(lambda y, p: tf.reduce_mean(y - p))(tf.zeros(3), tf.zeros(3))
    with pytest.raises(ValueError, match="scalar"):
        PerExampleLoss(keras.losses.Dice())(tf.zeros((3, 2)), tf.zeros((3, 2)))


def test_a_loss_without_a_reduction_is_reduced_as_the_optimizer_says():
    y, p = tf.zeros((2, 3, 1)), tf.reshape(tf.range(6.0), (2, 3, 1))
    none = PerExampleLoss(keras.losses.MeanSquaredError(reduction="none"))
    np.testing.assert_array_equal(none(y, p), PerExampleLoss("mse")(y, p))


def test_a_mask_that_a_loss_has_no_positions_for_is_named():
    output = tf.zeros((2, 3, 1))
    set_mask(output, tf.ones((2, 3), tf.bool))
    loss = PerExampleLoss(lambda y, p: tf.reduce_mean(y - p, axis=[1, 2]))
    with pytest.raises(ValueError, match="outputs have a mask.*Return the losses of all"):
        loss(output, output)


def test_reductions_that_contradict_are_refused():
    with pytest.raises(ValueError, match="reduction"):
        PerExampleLoss(keras.losses.MeanSquaredError(reduction="sum"))
    with pytest.raises(ValueError, match="per_example_reduction"):
        PerExampleLoss("mse", "batch")


def test_presence():
    assert example_mask_of(None, 3).numpy().all()
    np.testing.assert_array_equal(
        example_mask_of(tf.constant([0.0, 2.0, -1.0]), 3), [False, True, True]
    )
    positions = tf.constant([[0.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    np.testing.assert_array_equal(example_mask_of(positions, 3), [False, True, True])
    several = {"a": tf.constant([0.0, 1.0, 0.0]), "b": tf.constant([0.0, 0.0, 3.0]), "c": None}
    np.testing.assert_array_equal(example_mask_of(several, 3), [False, True, True])


def test_low_precision_predictions_are_compared_in_float32():
    y = tf.constant([[1.0], [2.0]])
    values = PerExampleLoss("mse")(y, tf.cast([[1.01], [2.5]], tf.bfloat16))
    assert values.dtype == tf.float32


def test_configuration_round_trip():
    loss = PerExampleLoss(keras.losses.SparseCategoricalCrossentropy(from_logits=True), "sum")
    other = keras.losses.deserialize(keras.losses.serialize(loss))
    y, p = np.array([1, 0]), GENERATOR.normal(size=(2, 3)).astype(np.float32)
    np.testing.assert_array_equal(loss(y, p), other(y, p))


def crossentropy_cases():
    logits = 30 * GENERATOR.normal(size=(6, 5, 7)).astype(np.float32)
    y = GENERATOR.integers(0, 7, (6, 5))
    logits[1, 2, (y[1, 2] + 1) % 7] = -np.inf  # an item that is ruled out
    logits[2, 0] += 1e4
    logits[3, 1, 4] = np.nan
    y[3, 1] = 0
    logits[4, 3, 2] = np.nan
    y[4, 3] = 2
    y[5, 0] = 7  # unknown
    return y, logits


@pytest.mark.parametrize(
    ("more_axes", "ignore_class"),
    slow.cases([(0, None), (0, 0), (1, None), (1, 0)], slow=[(0, 0), (1, None)]),
)
def test_crossentropy_under_xla_is_the_one_of_keras(ignore_class, more_axes):
    y, logits = crossentropy_cases()
    if ignore_class is not None:
        y[0, :] = ignore_class  # an example with nothing that counts
    own = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=ignore_class)
    loss = PerExampleLoss(own)
    weights = GENERATOR.uniform(0.5, 2, 6).astype(np.float32)
    labels = tf.constant(y.reshape(*y.shape, *[1] * more_axes), tf.int32)

    @tf.function(jit_compile=True, autograph=False)
    def values_and_gradient(x, in_step):
        with compiling(in_step), tf.GradientTape() as tape:
            tape.watch(x)
            values = loss(labels, x, weights)
        return values, tape.gradient(values, x)

    values, z = (t.numpy() for t in values_and_gradient(tf.constant(logits), True))
    keras_values, keras_z = (t.numpy() for t in values_and_gradient(tf.constant(logits), False))
    np.testing.assert_allclose(values, keras_values, rtol=1e-6)
    np.testing.assert_allclose(z, keras_z, rtol=1e-5, atol=1e-6)
    if ignore_class is not None:  # whatever the logits are
        np.testing.assert_array_equal(z[y == ignore_class], 0.0)
    bad = [4, 5] if ignore_class == 0 else [3, 4, 5]
    np.testing.assert_array_equal(np.nonzero(np.isnan(values))[0], bad)
    good = [1, 2]
    x = logits[good].astype(np.float64)
    p = np.exp(x - x.max(-1, keepdims=True))
    counts = (y[good] != 0) if ignore_class == 0 else np.ones((2, 5))
    wanted = p / p.sum(-1, keepdims=True) - np.eye(7)[y[good]]
    wanted *= (counts * (weights[good] / counts.sum(1))[:, None])[..., None]
    np.testing.assert_allclose(z[good], wanted, rtol=2e-6, atol=1e-7)


@pytest.mark.thorough_after(2)
@pytest.mark.parametrize("ignore_class", [None, 0])
@pytest.mark.parametrize("static", [True, False])
def test_crossentropy_of_many_classes_is_the_one_of_keras(ignore_class, static, monkeypatch):
    y, logits = crossentropy_cases()
    y[5, 0] = 3  # known: others are refused
    own = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=ignore_class)
    loss = PerExampleLoss(own)
    weights = GENERATOR.uniform(0.5, 2, 6).astype(np.float32)
    shape = logits.shape if static else [None, None, 7]

    def values_and_gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            values = loss(tf.constant(y), x, weights)
        return values, tape.gradient(values, x)

    def by(classes):
        monkeypatch.setattr(crossentropy, "_MANY_CLASSES", classes)
        function = tf.function(values_and_gradient, autograph=False)
        return function.get_concrete_function(tf.TensorSpec(shape))

    theirs, ours = by(8), by(7)
    used = [{op.type for op in f.graph.get_operations()} for f in (theirs, ours)]
    assert ["SparseSoftmaxCrossEntropyWithLogits" in types for types in used] == [True, False]
    for mine, other in zip(ours(tf.constant(logits)), theirs(tf.constant(logits)), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("label", [-1, 7])
def test_labels_out_of_range_are_refused(label, monkeypatch):
    monkeypatch.setattr(crossentropy, "_MANY_CLASSES", 7)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"valid range of \[0, 7\)"):
        PerExampleLoss(loss)(tf.constant([[0, label]]), tf.zeros([1, 2, 7]))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=label)
    value = PerExampleLoss(loss)(tf.constant([[0, label]]), tf.zeros([1, 2, 7]))
    np.testing.assert_allclose(value, [np.log(7) / 1], rtol=1e-6)


@pytest.mark.parametrize(
    ("own", "y", "x"),
    [
        (keras.losses.SparseCategoricalCrossentropy(), [[1], [0]], [[0.3, 0.7], [0.4, 0.6]]),
        (keras.losses.SparseCategoricalCrossentropy(from_logits=True), [[1.7], [0.2]],
         [[0.3, 0.7], [0.4, 0.6]]),
        (keras.losses.CategoricalCrossentropy(from_logits=True), [[0.0, 1.0], [1.0, 0.0]],
         [[0.3, 0.7], [0.4, 0.6]]),
    ],
)  # fmt: skip
def test_other_losses_are_those_of_keras_under_xla(own, y, x):
    y, x = tf.constant(y), tf.constant(x)
    with compiling(True):
        inside = PerExampleLoss(own)(y, x)
    np.testing.assert_array_equal(inside, PerExampleLoss(own)(y, x))


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16", "uint32"])
@pytest.mark.parametrize("compiled", [True, False])
def test_labels_may_be_of_a_small_type_with_many_rows_and_classes(dtype, compiled, monkeypatch):
    # As images come: labels in one byte, and more rows than it can count.
    monkeypatch.setattr(crossentropy, "_MANY_CLASSES", 5)
    y = GENERATOR.integers(0, 5, (300,)).astype(dtype)
    logits = tf.constant(GENERATOR.normal(size=(300, 300)), tf.float32)
    loss = PerExampleLoss(keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    with compiling(compiled):
        values = loss(y, logits)
    wanted = tf.nn.sparse_softmax_cross_entropy_with_logits(y.astype("int64"), logits)
    np.testing.assert_allclose(values, wanted, rtol=1e-5)


@pytest.mark.thorough
def test_a_step_that_the_user_compiles_is_one_that_xla_can_compile():
    """The loss, the look-ups and the norms have other forms where XLA does not compile them."""
    generator = np.random.default_rng(3)
    ids, y = generator.integers(0, 50, (4, 120)), generator.integers(0, 300, 4)
    keras.utils.set_random_seed(5)
    model = tfdp.make_private(
        keras.Sequential([keras.Input((120,), dtype="int32"), keras.layers.Embedding(50, 4),
                          keras.layers.GlobalMaxPooling1D(), keras.layers.Dense(300)])
    )  # fmt: skip
    optimizer = tfdp.optimizers.DPOptimizer(
        keras.optimizers.SGD(1.0), noise_multiplier=0.0, num_examples=10, expected_batch_size=4
    )
    model.compile(optimizer, loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    optimizer.build(model.trainable_variables)
    start, results = model.get_weights(), []
    for step in model.train_step, tf.function(model.train_step, jit_compile=True, autograph=False):
        model.set_weights(start)
        step((tf.constant(ids, tf.int32), tf.constant(y, tf.int32), tf.ones([4])))
        results.append(model.get_weights())
    for plain, compiled in zip(*results, strict=True):
        np.testing.assert_allclose(compiled, plain, rtol=1e-4, atol=1e-6)
