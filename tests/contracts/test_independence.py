"""What mixes the examples of a batch is refused by an ordinary `fit`, and nothing else is."""

import keras
import numpy as np
import pytest
import slow
import tensorflow as tf
from keras import layers

import tfdp
from tfdp.errors import PrivacyError
from tfdp.training import compared_runs

N, D = 64, 4
MIXES = "mixes the examples.*sampled for each example"


def data(n=N, seed=0):
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(n, D)).astype(np.float32)
    return x, generator.normal(size=(n, 1)).astype(np.float32)


def check(base, loss, x=None, y=None, batch=32, validate=True):
    """What a first step would meet, without making it."""
    model = tfdp.make_private(base, validate) if not isinstance(base, tfdp.models.DPModel) else base
    compiled(model, loss, batch, run_eagerly=True)
    if x is None:
        x, y = data()
    model.fit(x, y, batch_size=batch, verbose=0)
    assert model.optimizer.charging.steps > 0
    return model


def compiled(model, loss, batch, n=N, **kwargs):
    optimizer = tfdp.optimizers.DPOptimizer(
        keras.optimizers.SGD(0.1), noise_multiplier=1.0, num_examples=n, expected_batch_size=batch
    )
    model.compile(optimizer, loss=loss, **kwargs)
    return model


def refused(base, loss="mse", x=None, y=None, match=MIXES, **kwargs):
    with pytest.raises(PrivacyError, match=match):
        check(base, loss, x, y, **kwargs)


def examine(base, x, y, loss="mse"):
    """The check alone, without a step."""
    model = compiled(tfdp.make_private(base), loss, len(x), len(x))
    return tfdp.training.preflight.check_examples_do_not_mix(model, x, y)


def sequential(*stack, shape=(D,)):
    return keras.Sequential([keras.Input(shape), *stack])


class Function(layers.Layer):
    """A layer without a name that says what it does."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def call(self, x):
        return self.function(x)


class BatchNormalising(layers.Layer):
    def call(self, x):
        mean, variance = tf.nn.moments(x, 0)
        return (x - mean) / tf.sqrt(variance + 1e-3)


class OwnMixUp(layers.Layer):
    """Not a subclass of Keras', and another order and other weights in each step."""

    def build(self, shape):
        self.seeds = keras.random.SeedGenerator()

    def call(self, x):
        order = keras.random.shuffle(tf.range(tf.shape(x)[0]), seed=self.seeds)
        weight = keras.random.beta((tf.shape(x)[0], 1), 0.2, 0.2, seed=self.seeds)
        return weight * x + (1 - weight) * tf.gather(x, order)


class SortedAndBack(layers.Layer):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def call(self, x):
        order = tf.argsort(x[:, 0])
        return tf.gather(self.inner(tf.gather(x, order)), tf.argsort(order))


@pytest.mark.parametrize(
    "mixer, name",
    [
        (lambda: Function(lambda h: h - tf.reduce_mean(h, axis=0)), "Function"),
        (lambda: Function(lambda h: h - tf.stop_gradient(tf.reduce_mean(h, 0))), "Function"),
        (lambda: Function(lambda h: tf.roll(h, 1, axis=0)), "Function"),
        (lambda: Function(lambda h: tf.nn.softmax(h, axis=-2)), "Function"),
        (lambda: Function(tf.cumsum), "Function"),
        (BatchNormalising, "BatchNormalising"),
        (lambda: SortedAndBack(layers.Dense(3)), "before layer 'dense"),
        (lambda: layers.Softmax(axis=-2), "Softmax"),
        (lambda: layers.LayerNormalization(axis=-2, scale=False, center=False), "LayerNorm"),
    ],
    ids=["mean", "constant mean", "roll", "softmax", "sum", "batch", "sort", "Softmax", "norm"],
)
def test_layers_that_mix_examples_are_found_and_named(mixer, name):
    refused(sequential(layers.Dense(3), mixer(), layers.Dense(1)), match=f"{name}.*{MIXES}|"
            f"{MIXES}|mixes the examples of a batch, {name}")  # fmt: skip


def _by_parity(h):
    odd = tf.range(tf.shape(h)[0]) % 2 == 1
    return tf.where(odd[:, tf.newaxis], -h, h)


@pytest.mark.parametrize("batch", [32, 256])
def test_what_depends_on_the_place_in_a_batch_is_found_in_every_try(batch):
    """Without one record the others stand in other places: all of their gradients would change."""
    base = sequential(layers.Dense(3), Function(_by_parity), layers.Dense(1))
    model = compiled(tfdp.make_private(base), "mse", batch, 256)
    for seed in range(8):
        with pytest.raises(PrivacyError, match=f"Function.*{MIXES}"):
            model.fit(*data(256, seed), batch_size=batch, verbose=0)
    refused(
        sequential(layers.Dense(1)),
        lambda y, outputs: tf.square(_by_parity(outputs) - y)[:, 0],
    )


def test_gradients_that_depend_on_the_place_alone_are_found_and_rounding_is_not():
    def half(h):  # the same numbers, and half of the gradients
        odd = tf.range(tf.shape(h)[0]) % 2 == 1
        return tf.where(odd[:, tf.newaxis], tf.stop_gradient(h), h)

    for _ in range(8):
        refused(sequential(layers.Dense(3), Function(half), layers.Dense(1)))

    @tf.custom_gradient
    def rounded(h):
        places = tf.cast(tf.range(tf.shape(h)[0]), h.dtype)[:, tf.newaxis]
        return tf.identity(h), lambda upstream: upstream * (1 + 1e-3 * tf.sin(places))

    check(sequential(layers.Dense(3), Function(rounded), layers.Dense(1)), "mse")


class Seeded(layers.Layer):
    """Dropout by a generator of its own."""

    def build(self, shape):
        self.seeds = keras.random.SeedGenerator(3)

    def call(self, x):
        return keras.random.dropout(x, 0.5, seed=self.seeds)


def test_random_numbers_of_the_places_in_a_batch_are_refused():
    by_place = (
        lambda h: keras.random.dropout(h, 0.5, seed=42),
        lambda h: h * tf.random.stateless_uniform(tf.shape(h), [1, 2]),
        lambda h: h + tf.random.stateless_normal([tf.shape(h)[0], 1], [1, 2]),
    )
    for function in by_place:
        refused(sequential(Function(function), layers.Dense(1)), match="by a fixed seed.*SeedGen")
    weights = Function(lambda h: h * tf.random.stateless_uniform(tf.shape(h)[1:], [1, 2]))
    for layer in (weights, Seeded(), layers.Dropout(0.5, seed=1), layers.GaussianNoise(0.1)):
        check(sequential(layer, layers.Dense(1)), "mse")


def test_weights_that_a_loss_reads_are_refused():
    dense = layers.Dense(1, kernel_regularizer="l2")
    check(sequential(dense), "mse")  # a penalty is no part of an example's loss
    dense = layers.Dense(1)

    def loss(y, outputs):
        return tf.square(outputs - y)[:, 0] * tf.reduce_sum(dense.kernel)

    refused(sequential(dense), loss, match="reads the trained variable .*kernel")


def test_mixed_inputs_are_found_in_every_try():
    mixer = OwnMixUp()
    model = compiled(tfdp.make_private(sequential(mixer, layers.Dense(1))), "mse", N)
    for seed in range(8):
        keras.utils.set_random_seed(seed)
        mixer.seeds.state.assign([seed, 0])  # another order, and other weights
        with pytest.raises(PrivacyError, match=MIXES):
            tfdp.training.preflight.check_examples_do_not_mix(model, *data())


@pytest.mark.parametrize("batch", [32, 256])
def test_in_batch_negatives_are_found_in_every_try(batch):
    def in_batch(y, vectors):
        return -tf.linalg.diag_part(tf.nn.log_softmax(tf.matmul(vectors, y, transpose_b=True)))

    def by_rows(y, vectors):  # no tensor with the batch size twice in its shape
        scores = tf.vectorized_map(lambda v: tf.linalg.matvec(y, v), vectors)
        own = tf.reduce_sum(y * vectors, axis=1)
        return tf.reduce_logsumexp(scores + 0 * vectors[:, :1], axis=1) - own

    for loss, seeds in ((in_batch, 8), (by_rows, 2)):
        model = compiled(tfdp.make_private(sequential(layers.Dense(D))), loss, batch, 256)
        for seed in range(seeds):
            keras.utils.set_random_seed(seed)
            x, y = data(256, seed)[0], data(256, seed + 100)[0]
            with pytest.raises(PrivacyError, match=MIXES):
                model.fit(x, y, batch_size=batch, verbose=0)
            assert model.optimizer.charging.steps == 0


class Towers(keras.Model):
    """A score for each pair of a query and a candidate of the batch."""

    def __init__(self):
        super().__init__()
        self.query, self.candidate = layers.Dense(3), layers.Dense(3)

    def call(self, x):
        return tf.matmul(self.query(x[:, :2]), self.candidate(x[:, 2:]), transpose_b=True)


def test_two_towers_with_in_batch_negatives_are_refused():
    def softmax(y, scores):
        return keras.losses.sparse_categorical_crossentropy(
            tf.range(tf.shape(scores)[0]), scores, from_logits=True
        )

    refused(Towers(), softmax)
    inputs = keras.Input((D,))
    scores = keras.ops.matmul(layers.Dense(3)(inputs), keras.ops.transpose(layers.Dense(3)(inputs)))
    refused(keras.Model(inputs, scores), softmax)


class Squares(keras.losses.Loss):
    def call(self, y_true, y_pred):
        return tf.square(y_true - y_pred)


def test_losses_that_mix_examples_are_refused():
    x, y = data()
    dense = lambda: sequential(layers.Dense(1))  # noqa: E731
    refused(dense(), Squares(), x, y[:, 0], match=f"loss .*{MIXES}")  # (B,) against (B, 1)
    refused(dense(), lambda y, p: tf.square(p - tf.reduce_mean(y)) + 0 * p)  # only labels mix
    refused(dense(), lambda y, p: tf.square(p - y) / tf.reduce_mean(tf.square(tf.stop_gradient(p))))
    for circle in (keras.losses.Circle(), "circle"):  # by its name, before there are data
        refused(
            sequential(layers.Dense(3)),
            circle,
            x,
            y,
            match="Circle compares.*sampled for each example",
        )
    keras_rs = pytest.importorskip("keras_rs")
    flat = sequential(layers.Dense(1), layers.Reshape(()))
    refused(flat, keras_rs.losses.PairwiseHingeLoss(), x, (y[:, 0] > 0).astype("float32"))


def test_rare_labels_are_among_those_that_are_looked_at():
    x, y = data()
    y[:] = 0.0
    y[40] = 1.0
    for loss in (
        lambda y, p: tf.square(p - y) * tf.reduce_mean(y),  # others with a rare label matter
        lambda y, p: tf.square(p - y) + y * tf.reduce_mean(p),  # only who has one is mixed
        lambda y, p: tf.square(p - y) + y * tf.stop_gradient(tf.reduce_mean(p)),
        lambda y, p: tf.square(p - y) + tf.where(y > 0, p - tf.stop_gradient(p), 0.0)
        * tf.stop_gradient(tf.reduce_mean(p)),
    ):  # fmt: skip
        model = compiled(tfdp.make_private(sequential(layers.Dense(1))), loss, N)
        for _ in range(3):
            with pytest.raises(PrivacyError, match=MIXES):
                tfdp.training.preflight.check_examples_do_not_mix(model, x, y)


def test_xlnet_mixes_examples_of_which_some_are_padded():
    hub = pytest.importorskip("keras_hub")
    backbone = hub.models.XLNetBackbone(7, 1, 2, 8, 8, dropout=0.0)
    ids, mask = keras.Input((5,), dtype="int32"), keras.Input((5,), dtype="int32")
    h = backbone({"token_ids": ids, "padding_mask": mask, "segment_ids": keras.ops.zeros_like(ids)})
    base = keras.Model([ids, mask], layers.Dense(1)(h[:, 0]))
    generator = np.random.default_rng(0)
    lengths = generator.integers(1, 6, (N, 1))
    x = [generator.integers(1, 7, (N, 5)), (np.arange(5) < lengths).astype("int32")]
    refused(base, "mse", x, data()[1])


class Own(tfdp.models.DPModel):
    def __init__(self):
        super().__init__()
        self.one, self.other = layers.Dense(3), layers.Dense(1)

    def call(self, x):
        h = self.one(x)
        return self.other(h - tf.reduce_mean(h, axis=0))


def test_subclasses_of_dp_model_are_checked_and_in_steps_outside_of_fit_too():
    refused(Own())
    model = compiled(Own(), "mse", N)
    with pytest.raises(PrivacyError, match=MIXES):
        model.train_on_batch(*data())


def test_without_the_check_the_statement_lists_independence_as_assumed():
    class Unchecked(Own):
        validate_independence = False

    plain = sequential(layers.Dense(1))
    for base in (Unchecked(), tfdp.make_private(plain, validate=False)):
        assert "do not depend on each other" in str(check(base, "mse").privacy_statement())
    again = check(tfdp.make_private(sequential(layers.Dense(1))), "mse")  # other weights
    assert "do not depend on each other" not in str(again.privacy_statement())


def test_results_that_cannot_be_repeated_are_listed_as_assumed():
    drawn = tf.random.Generator.from_seed(1)
    noisy = Function(lambda h: h + drawn.normal(tf.shape(h)))
    model = check(sequential(layers.Dense(3), noisy, layers.Dense(1)), "mse")
    assert "draw random numbers of their own" in str(model.privacy_statement())
    refused(sequential(layers.Dense(3), noisy, Function(tf.cumsum), layers.Dense(1)))


@pytest.mark.parametrize("steps, traced", [(3, False), (60, True)])
def test_recurrent_models_are_checked(steps, traced):
    x, y = np.random.default_rng(0).normal(size=(N, steps, 2)).astype(np.float32), data()[1]
    recurrent = layers.LSTM(2)
    good = sequential(recurrent, layers.Dense(1), shape=(steps, 2))
    loop_steps = tfdp.clipping.planning.make_clipping_plan(good, x).loop_steps
    assert loop_steps == steps and traced == (loop_steps > tfdp.training.independence._EAGER_STEPS)
    assert not examine(good, x, y).assumptions
    for mixer, name in ((tf.cumsum, "Function"), (gradient_of_the_batch, "Model")):
        bad = sequential(recurrent, Function(mixer), layers.Dense(1), shape=(steps, 2))
        with pytest.raises(PrivacyError, match=f"{name}.*{MIXES}"):
            examine(bad, x, y)


@tf.custom_gradient
def gradient_of_the_batch(h):
    """Nothing but the gradient mixes, and by a factor: it stays 0 where it was 0."""
    return tf.identity(h), lambda g: g * (1.0 + tf.reduce_sum(tf.abs(g)))


@tf.custom_gradient
def clipped(h):
    return tf.identity(h), lambda g: tf.clip_by_value(g, -0.01, 0.01)


def test_gradients_of_an_own_making():
    for loss in (
        lambda y, p: tf.square(p - y) + (p - tf.stop_gradient(p)) * tf.reduce_mean(y),
        lambda y, p: tf.square(p - y) + tf.reverse(p - tf.stop_gradient(p), [0]),
    ):
        refused(sequential(layers.Dense(1)), loss)
    refused(sequential(layers.Dense(3), Function(gradient_of_the_batch), layers.Dense(1)))
    check(sequential(layers.Dense(3), Function(clipped), layers.Dense(1)), "mse")


def test_no_tolerance_hides_gradients_at_other_examples():
    x, y = data()
    refused(sequential(layers.Dense(1)), lambda y, p: tf.square(p - y) + 1e-7 * tf.reduce_mean(p),
            match="loss .*must be 0")  # fmt: skip
    slightly = Function(lambda h: h + 1e-7 * tf.reduce_mean(h, axis=0))
    with pytest.raises(PrivacyError, match="must be 0"):
        examine(sequential(layers.Dense(3), slightly, layers.Dense(1)), x, y)


@pytest.mark.parametrize("n", slow.cases([2, 3, 4, 9, 14], slow=[4, 9]))
def test_a_few_examples_are_enough(n):
    def stack(mixer):
        return sequential(layers.Dense(3), Function(mixer), layers.Dense(1))

    assert not examine(stack(clipped), *data(n)).assumptions
    with pytest.raises(PrivacyError, match=MIXES):
        examine(stack(tf.cumsum), *data(n))


def test_the_check_changes_nothing_of_the_model():
    base = sequential(layers.Dense(3, kernel_regularizer="l2"), layers.Dropout(0.5),
                      layers.Dense(1))  # fmt: skip
    model = compiled(tfdp.make_private(base), "mse", N, metrics=["mae"])
    before = [keras.ops.convert_to_numpy(v) for v in model.variables]
    tfdp.training.preflight.check_examples_do_not_mix(model, *data())
    assert len(model.variables) == len(before)
    for variable, value in zip(model.variables, before, strict=True):
        np.testing.assert_array_equal(variable, value)
    assert model.checked_independence and model.optimizer.charging.steps == 0


def by_mean_of_others(y, p):
    """Only a rare label's gradient is changed, and by as much as the others' mean."""
    rare = tf.where(y > 0, p - tf.stop_gradient(p), 0.0)
    return tf.square(p - y) + rare * tf.stop_gradient(tf.reduce_mean(p))


@pytest.mark.parametrize("unseen", ["first", "first that stays"])
def test_what_one_draw_does_not_show_another_one_does(unseen, monkeypatch):
    # The first of all draws; or the first of those in which rows do not move, and a change that
    # is small enough for rounding in the others.
    calls, changed = [], compared_runs._changed

    def seen(*args):
        calls.append(args[2])
        still = np.array_equal(*args[2].stay)
        small = args[4] == compared_runs._OF_STEPS
        first_still = still and sum(np.array_equal(*rows.stay) for rows in calls) == 1
        hidden = len(calls) == 1 if unseen == "first" else first_still or small
        return None if hidden else changed(*args)

    monkeypatch.setattr(compared_runs, "_changed", seen)
    x, y = data()
    y[:] = 0.0
    y[40] = 1.0
    model = compiled(tfdp.make_private(sequential(layers.Dense(1))), by_mean_of_others, N)
    with pytest.raises(PrivacyError, match=MIXES):
        tfdp.training.preflight.check_examples_do_not_mix(model, x, y)
