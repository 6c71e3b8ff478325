"""Forward noise under any Keras optimizer: what is charged, and what is said not to be covered."""

import math

import dp_accounting
import keras
import numpy as np
import pytest
import slow
import tensorflow as tf
from eager_steps import EAGER, eager_model, fit_steps
from mixing import Function
from scipy import stats

import tfdp
from tfdp.accounting import epsilon
from tfdp.accounting.accountants import compose_accountant, key_of
from tfdp.accounting.events.visible_sampling import VisiblySampledGaussianDpEvent
from tfdp.accounting.losses.truncation import truncation_delta
from tfdp.errors import PrivacyError
from tfdp.layers import DPForwardNoise
from tfdp.training.checks.independence import REPRESENTATIONS

N = 40


class Residual(keras.Model):
    """Adds the raw representation behind the noise, in code that no layer graph shows."""

    def __init__(self):
        super().__init__()
        self.enc, self.head = keras.layers.Dense(4, name="enc"), keras.layers.Dense(2, name="head")
        self.noise = DPForwardNoise(1.0, 2.0)

    def call(self, x, training=None):
        h = self.enc(x)
        return self.head(self.noise(h, training=training) + 0.1 * h)


class Counting(keras.layers.Layer):
    """Hands its input on; keeps how often it was called and, of each example, nothing or a sum."""

    def __init__(self, sees_data, **kwargs):
        super().__init__(**kwargs)
        self.sees_data = sees_data

    def build(self, input_shape):
        def state(name):
            return self.add_weight(shape=(), initializer="zeros", trainable=False, name=name)

        self.calls, self.total = state("calls"), state("total")

    def call(self, x):
        self.calls.assign(self.calls + 1.0)
        if self.sees_data:
            self.total.assign(self.total + tf.reduce_sum(x))
        return x


def network(noise=None, mix=None):
    inputs = keras.Input((3,))
    h = keras.layers.Dense(4, name="enc")(inputs)
    if mix is not None:
        h = mix(h)
    z = (noise or DPForwardNoise(1.0, 2.0, name="noise"))(h)
    return keras.Model(inputs, keras.layers.Dense(2, name="head")(z))


def compiled(base=None, optimizer=None, validate=True, **kwargs):
    """Run eagerly unless told otherwise: a trace takes longer than a few steps."""
    model = tfdp.make_private(network() if base is None else base, validate)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer or keras.optimizers.AdamW(0.01), loss=loss, **(kwargs or EAGER))
    return model


@pytest.fixture(scope="module")
def shuffled(small):
    return tfdp.data.shuffled_epochs(small.data(), 10)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:Gradients do not exist")
@pytest.mark.parametrize("jit_compile", slow.cases([False, True], slow=[True]))
def test_epochs_are_copies_and_the_encoder_gets_no_gradient(small, shuffled, jit_compile):
    model = compiled(jit_compile=jit_compile)
    encoder = [w.numpy() for w in model.get_layer("enc").weights]
    head = model.get_layer("head").get_weights()[0]
    model.fit(shuffled, epochs=2, verbose=0)
    for before, after in zip(encoder, model.get_layer("enc").weights, strict=True):
        np.testing.assert_array_equal(before, after)
    assert np.abs(head - model.get_layer("head").get_weights()[0]).max() > 0
    model.fit(shuffled, epochs=1, verbose=0)
    statement = model.privacy_statement(1e-3)
    three = dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(2.0), 3)
    assert statement.epsilon == pytest.approx(epsilon(three, 1e-3), rel=1e-6)
    assert statement.adjacency == "zero_out" and not statement.unstated
    assert "labels" in str(statement) and "enc" not in "".join(statement.not_covered)
    # arrays are shuffled, too; a step outside `fit` has batches of unknown origin
    x, y = small.data()
    model.fit(x, y, batch_size=15, verbose=0)
    assert model.privacy_statement(1e-3).epsilon > statement.epsilon
    model.train_on_batch(x[:2], y[:2])
    assert model.privacy_statement(1e-3).epsilon == math.inf
    assert model.ledger.epsilon(1e-3) == np.inf


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:Gradients do not exist")
@pytest.mark.filterwarnings("ignore:Skipping variable loading for optimizer")
def test_the_ledger_survives_every_way_of_saving(shuffled, tmp_path):
    model = compiled()
    model.fit(shuffled, verbose=0)
    model.save(tmp_path / "m.keras")
    model.save_weights(tmp_path / "m.weights.h5")
    saved = tf.train.Checkpoint(model=model).save(str(tmp_path / "c"))
    other = keras.models.load_model(tmp_path / "m.keras")
    assert other.ledger == model.ledger and len(model.ledger) == 1
    other.load_weights(tmp_path / "m.weights.h5")
    tf.train.Checkpoint(model=other).restore(saved).expect_partial()
    assert other.ledger == model.ledger  # copies of one history cost once
    for restore in (
        lambda m: m.load_weights(tmp_path / "m.weights.h5"),
        lambda m: tf.train.Checkpoint(model=m).restore(saved).expect_partial(),
    ):
        fresh = compiled()
        restore(fresh)
        assert fresh.ledger == model.ledger


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:Gradients do not exist")
def test_poisson_batches_are_charged_without_amplification(small):
    model = compiled()
    fit_steps(model, 4)
    event = dp_accounting.SelfComposedDpEvent(VisiblySampledGaussianDpEvent(0.25, 2.0), 4)
    stated = model.privacy_statement(1e-3)
    assert stated.epsilon == pytest.approx(epsilon(event, 1e-3, adjacency="zero_out"), rel=1e-3)
    assert stated.epsilon > 1.2 * epsilon(
        dp_accounting.PoissonSampledDpEvent(0.25, dp_accounting.GaussianDpEvent(2.0)), 1e-3
    )


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:Gradients do not exist")
@pytest.mark.parametrize("private_optimizer", [False, True])
def test_batches_that_are_cut_off_cost_their_share_of_delta(small, private_optimizer):
    if private_optimizer:
        model = eager_model(noise_multiplier=4.0)
        event = dp_accounting.PoissonSampledDpEvent(0.25, dp_accounting.GaussianDpEvent(4.0))
    else:
        model = compiled(network(DPForwardNoise(1.0, 4.0)))
        event = VisiblySampledGaussianDpEvent(0.25, 4.0)
    model.fit(small.poisson(max_batch_size=25), verbose=0)
    adjacency = "add_or_remove_one" if private_optimizer else "zero_out"
    composed = compose_accountant(
        *key_of(dp_accounting.SelfComposedDpEvent(event, 4), "pld", adjacency)
    )
    delta, overflow = 1e-4, stats.binom.sf(25, N, 0.25)
    assert 1e-7 < overflow < 1e-5
    for stated in (model.privacy_statement(delta).epsilon, model.ledger.epsilon(delta)):
        for factor, kept in ((1 + 1e-6, True), (0.99, False)):
            e = stated * factor
            spent = composed.get_delta(e) + truncation_delta(e, 4, overflow)
            assert (spent <= delta) == kept


def test_a_release_about_other_records_is_refused(small):
    half = tfdp.data.release_once(np.ones((N // 2, 3), np.float32), np.zeros(N // 2, int), 1.0, 9.0)
    x = keras.Input((3,))
    model = compiled(keras.Model(x, network()(x - half.features.mean(0))))
    with pytest.raises(PrivacyError, match=f"is about num_examples={N // 2}"):
        model.fit(small.poisson(), verbose=0)


@pytest.mark.thorough
def test_replace_one_halves_the_noise_multiplier(shuffled):
    model = compiled(network(DPForwardNoise(1.0, 4.0, "propagate", "replace_one")))
    model.get_layer("enc").trainable = False
    model.compile("sgd", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True), **EAGER)
    model.fit(shuffled, verbose=0)
    statement = model.privacy_statement(1e-3)
    assert statement.adjacency == "replace_one"
    gaussian = dp_accounting.GaussianDpEvent(2.0)
    assert statement.epsilon == pytest.approx(epsilon(gaussian, 1e-3), rel=1e-3)


@pytest.mark.thorough
def test_batches_that_have_no_rule_beside_earlier_ones_are_refused_before_a_step(small, shuffled):
    model = compiled(network(DPForwardNoise(1.0, 4.0, "propagate", "replace_one")))
    model.get_layer("enc").trainable = False
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss=loss, **EAGER)
    model.fit(shuffled, verbose=0)
    before, weights = model.privacy_statement(1e-3), model.get_weights()
    allocated = tfdp.data.allocated_epochs(small.data(), 4)
    for cost in ({"noise_multiplier": 1.0}, {"budget": tfdp.PrivacyBudget(50.0, 1e-3)}):
        model.compile(tfdp.optimizers.DPOptimizer("sgd", **cost), loss=loss, **EAGER)
        with pytest.raises(PrivacyError, match="No accountant has a rule") as raised:
            model.fit(allocated, verbose=0)
        assert "allocated" in str(raised.value) and "shuffled" in str(raised.value)
    for old, new in zip(weights, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)
    assert model.privacy_statement(1e-3).epsilon == before.epsilon


@pytest.mark.thorough
def test_propagate_lists_the_encoder_and_gives_no_epsilon(shuffled):
    model = compiled(network(DPForwardNoise(1.0, 2.0, gradient="propagate")))
    encoder = model.get_layer("enc").get_weights()[0]
    model.fit(shuffled, verbose=0)
    assert np.abs(encoder - model.get_layer("enc").get_weights()[0]).max() > 0
    statement = model.privacy_statement(1e-3)
    listed = " ".join(statement.not_covered)
    assert statement.epsilon == math.inf and statement.unstated
    assert "enc/kernel" in listed and "enc/bias" in listed and "head/" not in listed
    assert model.ledger.epsilon(1e-3) == np.inf


@pytest.mark.filterwarnings("ignore:Gradients do not exist", "ignore:`build()` was called")
@pytest.mark.parametrize("kind", ["functional", "subclass", "loss"])
def test_ways_around_the_noise_are_found_and_listed(kind, shuffled):
    if kind == "functional":
        inner = network()
        h = inner.get_layer("enc").output
        z = keras.layers.Add(name="skip")([inner.get_layer("noise").output, h])
        model = compiled(keras.Model(inner.input, keras.layers.Dense(2, name="head")(z)))
    elif kind == "subclass":
        model = compiled(Residual())
    else:

        class Looking(tfdp.models.DPModel):
            def __init__(self):
                super().__init__()
                self.base = network()

            def call(self, x, training=None):
                return self.base(x, training=training)

            def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
                loss = super().compute_loss(x, y, y_pred, sample_weight, training)
                return loss * (1.0 + tf.reduce_mean(x))

        model = Looking()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("sgd", loss=loss, **EAGER)
    model.fit(shuffled, verbose=0)
    statement = model.privacy_statement(1e-3)
    listed = " ".join(statement.not_covered)
    assert statement.epsilon == math.inf and "head/kernel" in listed
    if kind == "functional":
        assert "inputs -> enc -> skip -> head -> outputs" in listed
    elif kind == "subclass":
        assert "around the noise: inputs -> enc -> head" in listed
    else:
        assert "the loss looks at the raw inputs" in listed


@pytest.mark.thorough_after(1)
@pytest.mark.filterwarnings("ignore:Gradients do not exist")
@pytest.mark.parametrize("sees_data, below", [(True, True), (True, False), (False, True)])
def test_a_state_below_the_noise_that_sees_raw_data_is_not_private(sees_data, below, shuffled):
    counting = Counting(sees_data, name="state")
    if below:
        model = compiled(network(mix=counting))
    else:
        base = network()
        model = compiled(keras.Model(base.input, counting(base.output)))
    model.fit(shuffled, verbose=0)
    statement = model.privacy_statement(1e-3)
    listed = " ".join(statement.not_covered)
    assert float(counting.calls) > 0
    assert ("state/total" in listed) == (sees_data and below) and "state/calls" not in listed
    assert (statement.epsilon == math.inf) == (sees_data and below)


class Masked(keras.layers.Layer):
    """Masks steps of an example where any example of the batch has none."""

    def __init__(self):
        super().__init__()
        self.supports_masking = True

    def call(self, h):
        return h

    def compute_mask(self, h, mask=None):
        return h[..., 0] > keras.ops.min(h[..., 0], 0, keepdims=True)


#: What mixes, and the operation that does; on four rows of these data, most of it changes nothing.
MIXES = {
    "mean": (lambda h: h - keras.ops.mean(h, axis=0, keepdims=True), "Mean"),
    "sums from the first on": (lambda h: keras.ops.cumsum(h, axis=0), "Cumsum"),
    "sums from the last on": (
        lambda h: keras.ops.cumsum(h[::-1], axis=0)[::-1], "StridedSlice"),
    "where any is no number": (
        lambda h: keras.ops.cond(keras.ops.any(keras.ops.isnan(h)), lambda: 0 * h, lambda: h),
        "Any"),
    "largest of all": (
        lambda h: h / keras.ops.maximum(1e6, keras.ops.max(keras.ops.abs(h))), "Max"),
    "a sum where it is large": (
        lambda h: h + keras.ops.relu(keras.ops.sum(h) - 1e6), "Sum"),
    "a mean that is multiplied by 0": (lambda h: h + 0 * keras.ops.mean(h), "Mean"),
    "batches of ten": (
        lambda h: h - keras.ops.mean(h, axis=0) if h.shape[0] == 10 else h, "Mean"),
    "places": (lambda h: h * tf.range(1.0, h.shape[0] + 1)[:, None], "positions"),
}  # fmt: skip


@pytest.mark.thorough_after(3)
@pytest.mark.parametrize("name", MIXES)
def test_representations_that_mix_examples_are_refused_by_layer_and_operation(name, shuffled):
    mix, what = MIXES[name]
    model = compiled(network(mix=Function(mix)))
    with pytest.raises(
        PrivacyError, match=f"Layer 'function.* .*mixes the examples.*{what}"
    ) as said:
        model.fit(shuffled, verbose=0)
    assert "Forward noise clips the representation" in str(said.value)
    assert model.plain_charging.steps_of_run == 0


@pytest.mark.thorough_after(1)
@pytest.mark.parametrize("name", ["mean", "sums from the first on", "sums from the last on"])
def test_what_is_not_to_be_proved_is_looked_at_on_a_few_records(name, shuffled):
    model = compiled(network(mix=Function(MIXES[name][0])), validate=False)
    with pytest.raises(PrivacyError, match="changed by .* when only other examples were"):
        model.fit(shuffled, verbose=0)


@pytest.mark.thorough
def test_masks_that_mix_examples_are_refused():
    inputs = keras.Input((5, 2))
    z = DPForwardNoise(1.0, 2.0)(Masked()(inputs))
    model = compiled(keras.Model(inputs, keras.layers.Dense(2)(keras.layers.Flatten()(z))))
    x = np.random.default_rng(0).normal(size=(N, 5, 2)).astype("float32")
    data = tfdp.data.shuffled_epochs((x, np.zeros(N, int)), 10)
    with pytest.raises(PrivacyError, match="(Layer|Model) '.*mixes the examples.*Min"):
        model.fit(data, verbose=0)


def mlp():
    return network(), np.random.default_rng(0).normal(size=(N, 3)).astype("float32")


def lstm():
    inputs = keras.Input((6,), dtype="int32")
    h = keras.layers.LSTM(4)(keras.layers.Embedding(9, 4, mask_zero=True)(inputs))
    z = DPForwardNoise(1.0, 2.0)(h)
    x = np.random.default_rng(0).integers(0, 9, (N, 6))
    return keras.Model(inputs, keras.layers.Dense(2)(z)), x


def transformer():
    inputs = keras.Input((6,), dtype="int32")
    h = keras.layers.Embedding(9, 4, mask_zero=True)(inputs)
    h = h + keras.layers.MultiHeadAttention(2, 2, dropout=0.1)(h, h)
    h = h + keras.layers.Dense(4, "gelu")(keras.layers.LayerNormalization()(h))
    z = DPForwardNoise(1.0, 2.0)(h)
    head = keras.layers.Dense(2)(keras.layers.Flatten()(z))
    return keras.Model(inputs, head), np.random.default_rng(0).integers(0, 9, (N, 6))


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:Gradients do not exist")
@pytest.mark.parametrize("make, arrays", [(mlp, False), (mlp, True), (lstm, 0), (transformer, 0)])
def test_the_statement_says_what_was_proved_of_representations(make, arrays):
    base, x = make()
    data = x, np.zeros(N, int)
    model = compiled(base)
    model.fit(*(data if arrays else [tfdp.data.shuffled_epochs(data, 10)]), verbose=0)
    statement = model.privacy_statement(1e-3)
    assert REPRESENTATIONS.proved in statement.remarks
    assert not any("each other" in sentence for sentence in statement.assumptions)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:Gradients do not exist")
def test_the_statement_says_what_was_not_proved_of_representations(shuffled):
    def set_diagonal(h):  # by an operation without a rule
        return tf.linalg.set_diag(h[:, :, None] * h[:, None, :], h)[:, 0]

    def stateful(h):
        return h + tf.ensure_shape(tf.numpy_function(lambda a: a, [h], tf.float32), h.shape)

    searched = REPRESENTATIONS.searched.format(operation="MatrixSetDiagV3")
    for validate, sentence in ((True, searched), (False, REPRESENTATIONS.not_checked)):
        model = compiled(network(mix=Function(set_diagonal)), validate=validate)
        model.fit(shuffled, verbose=0)
        statement = model.privacy_statement(1e-3)
        assert sentence in statement.assumptions
        assert REPRESENTATIONS.proved not in statement.remarks
    with pytest.raises(PrivacyError, match="PyFunc.*no rule.*validate=False"):
        compiled(network(mix=Function(stateful))).fit(shuffled, verbose=0)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:Gradients do not exist")
def test_what_was_noised_may_be_mixed(shuffled):
    base = network()
    mixed = keras.layers.Lambda(lambda z: z - keras.ops.mean(z, axis=0))(base.output)
    again = DPForwardNoise(1.0, 2.0)(mixed)
    model = compiled(keras.Model(base.input, keras.layers.Dense(2)(again)))
    model.fit(shuffled, verbose=0)
    assert REPRESENTATIONS.proved in model.privacy_statement(1e-3).remarks


def test_examples_spread_over_rows_are_refused(shuffled):
    inputs = keras.Input((3,))
    rows = keras.layers.Lambda(lambda h: keras.ops.reshape(h, (-1, 1)))(inputs)
    z = keras.layers.Lambda(lambda h: keras.ops.reshape(h, (-1, 3)))(DPForwardNoise(1.0, 2.0)(rows))
    with pytest.raises(PrivacyError, match="clipped as a whole"):
        compiled(keras.Model(inputs, keras.layers.Dense(2)(z))).fit(shuffled, verbose=0)


def test_noise_that_is_added_to_some_batches_only_is_refused(shuffled):
    class Sometimes(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.noise = DPForwardNoise(1.0, 2.0)

        def call(self, h):
            same = tf.reduce_all(h[1:] == h[:1])  # as where the others are copies of the first
            return tf.cond(same, lambda: h, lambda: self.noise(h))

    with pytest.raises(PrivacyError, match="depends on the examples: 1 for some, 0 for others"):
        compiled(keras.Sequential([Sometimes(), keras.layers.Dense(2)])).fit(shuffled, verbose=0)


@pytest.mark.thorough_after(1)
@pytest.mark.parametrize("around", [False, True])
def test_noise_that_a_step_does_not_add_is_not_charged_as_noise(shuffled, around):
    class Inference(tfdp.models.DPModel):
        def __init__(self):
            super().__init__()
            self.below = network() if around else DPForwardNoise(1.0, 2.0)

        def call(self, x):
            return self.below(x, training=False)[:, :2]

    with pytest.raises(PrivacyError, match="adds no noise in a training step"):
        compiled(Inference()).fit(shuffled, verbose=0)


def test_data_of_unknown_origin_are_refused(small):
    model = compiled()
    plain = tf.data.Dataset.from_tensor_slices(small.data()).batch(10)
    for data in (
        plain,
        small.poisson().cache(),
        tfdp.data.shuffled_epochs(small.data(), 10).repeat(),
    ):
        with pytest.raises(PrivacyError, match="how its batches"):
            model.fit(data, verbose=0)
    assert len(model.ledger) == 0
    with pytest.raises(ValueError, match="no privacy"):
        model.privacy_statement()


@pytest.mark.filterwarnings("ignore:Gradients do not exist")
def test_two_noisy_views_and_seeds_are_charged_and_said(shuffled):
    noise = DPForwardNoise(1.0, 2.0, seed=1)
    inputs = keras.Input((3,))
    z = keras.layers.Concatenate()([noise(inputs), noise(inputs)])
    model = compiled(keras.Model(inputs, keras.layers.Dense(2)(z)))
    model.fit(shuffled, verbose=0)
    statement = model.privacy_statement(1e-3)
    twice = dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(2.0), 2)
    assert statement.epsilon == pytest.approx(epsilon(twice, 1e-3), rel=1e-6)
    assert "fixed seed" in " ".join(statement.remarks)


def test_a_dp_optimizer_covers_everything_and_the_noise_costs_nothing(small):
    model = compiled(
        network(DPForwardNoise(1.0, 2.0, gradient="propagate")),
        small.optimizer(noise_multiplier=4.0),
    )
    fit_steps(model, 4)
    statement = model.privacy_statement(1e-3)
    event = dp_accounting.PoissonSampledDpEvent(0.25, dp_accounting.GaussianDpEvent(4.0))
    exact = epsilon(dp_accounting.SelfComposedDpEvent(event, 4), 1e-3)
    assert statement.epsilon == pytest.approx(exact, rel=1e-6)
    assert len(model.ledger) == 1 and "labels" not in " ".join(statement.not_covered)


@pytest.mark.filterwarnings("ignore:Gradients do not exist")
def test_microbatches_are_charged_truthfully_and_refused_by_a_dp_optimizer(small):
    data = tfdp.data.microbatches(small.data(), 10, 2)
    model = small.model()
    with pytest.raises(PrivacyError, match="several times"):
        model.fit(data, verbose=0)
    model = compiled()
    model.fit(data, verbose=0)
    (entry,) = model.ledger.entries  # 4 steps of 2 visible draws at B/(M n)
    assert entry.event == VisiblySampledGaussianDpEvent(0.125, 2.0) and entry.count == 8


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:Gradients do not exist")
def test_freezing_between_fits_holds_without_a_new_compile(shuffled):
    model = compiled(network(DPForwardNoise(1.0, 2.0, gradient="propagate")), run_eagerly=False)
    encoder = model.get_layer("enc")
    before = encoder.get_weights()[0]
    release = tfdp.data.release_once(np.ones((N, 3)), np.zeros(N, int), 1.0, noise_multiplier=9.0)
    data = release.batches(10).map(lambda x, y: (x, tf.cast(y, tf.int32), tf.ones([10])))
    model.fit(data, verbose=0)  # compiles a step that trains the encoder
    assert np.abs(encoder.get_weights()[0] - before).max() > 0
    encoder.trainable = False
    before = encoder.get_weights()[0]
    model.fit(shuffled, verbose=0)
    np.testing.assert_array_equal(before, encoder.get_weights()[0])
    assert model.privacy_statement(1e-3).epsilon < np.inf


def test_features_as_labels_are_refused(small):
    x, _ = small.data()
    model = tfdp.make_private(
        keras.Sequential([keras.Input((3,)), DPForwardNoise(1.0, 2.0), keras.layers.Dense(3)])
    )
    model.compile("sgd", loss="mse")
    with pytest.raises(PrivacyError, match="autoencoder"):
        model.fit(tfdp.data.shuffled_epochs((x, x), 10), verbose=0)


def test_a_dp_optimizer_is_not_left_to_train_an_encoder_by_noise_alone(small):
    model = compiled(optimizer=small.optimizer())
    with pytest.raises(PrivacyError, match="enc/kernel"):
        model.fit(small.poisson(), verbose=0)
