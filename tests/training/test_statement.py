"""The statement of a trained model: true, by hand, of what ran."""

import math

import dp_accounting
import keras
import numpy as np
import pytest
import slow
import tensorflow as tf
from dp_accounting import pld, rdp
from eager_steps import EAGER, eager_model, fit_steps

import tfdp
from tfdp.data.provenance.origins import Origin
from tfdp.training.checks import caveats


def by_hand(accountant, event, delta):
    return accountant.compose(event).get_epsilon(delta)


def training(sigma, q, steps):
    gaussian = dp_accounting.GaussianDpEvent(sigma)
    event = gaussian if q == 1 else dp_accounting.PoissonSampledDpEvent(q, gaussian)
    return dp_accounting.SelfComposedDpEvent(event, steps)


def test_epsilon_equals_dp_accounting_by_hand(small):
    model = small.model(noise_multiplier=4.0)
    model.fit(small.poisson(), epochs=3, verbose=0)
    event = training(4.0, 0.25, 12)
    for delta in (0.0025, 0.02):
        exact = by_hand(pld.PLDAccountant(), event, delta)
        assert model.privacy_statement(delta).epsilon == pytest.approx(exact, rel=1e-6)
        bound = by_hand(rdp.RdpAccountant(), event, delta)
        stated = model.privacy_statement(delta, accountant="rdp").epsilon
        assert stated == pytest.approx(bound, rel=1e-2)
        assert exact <= stated
    assert model.privacy_statement().delta == 0.0025


@pytest.mark.thorough
def test_epsilon_of_several_mechanisms_is_that_of_their_composition(small):
    base = small.base()
    base.layers[0].privacy_releases = [
        tfdp.accounting.LedgerEntry("release", dp_accounting.GaussianDpEvent(6.0))
    ]
    model = eager_model(base, noise_multiplier=4.0)
    fit_steps(model, 2)
    event = dp_accounting.ComposedDpEvent([dp_accounting.GaussianDpEvent(6.0),
                                           training(4.0, 0.25, 2)])  # fmt: skip
    exact = by_hand(pld.PLDAccountant(), event, 0.0025)
    assert model.privacy_statement().epsilon == pytest.approx(exact, rel=1e-6)


@pytest.mark.thorough
def test_full_batches_have_no_amplification(small):
    model = eager_model(expected_batch_size=small.n, noise_multiplier=2.0)
    model.fit(*small.data(), batch_size=64, epochs=3, verbose=0)
    exact = by_hand(pld.PLDAccountant(), training(2.0, 1, 3), 0.0025)
    assert model.privacy_statement().epsilon == pytest.approx(exact, rel=1e-6)


@pytest.mark.thorough
def test_one_line_of_sampling_changes_the_statement(small):
    # Fault 14: the same optimizer, the same number of steps.
    x, y = small.data()
    found = {}
    for name, data in (
        ("poisson", small.poisson(batch=20)),
        ("shuffled", tfdp.data.shuffled_epochs((x, y), 20)),
    ):
        model = eager_model(noise_multiplier=2.0, expected_batch_size=20)
        model.fit(data, epochs=3, verbose=0)
        found[name] = model.privacy_statement()
    poisson, shuffled = found["poisson"], found["shuffled"]
    assert poisson.assumed_epsilon is None and poisson.adjacency == "add_or_remove_one"
    assert shuffled.assumed_epsilon == pytest.approx(poisson.epsilon, rel=1e-9)
    assert shuffled.adjacency == "zero_out" and shuffled.appearances == 3
    exact = by_hand(pld.PLDAccountant(), training(2.0, 1, 3), 0.0025)
    assert shuffled.epsilon == pytest.approx(exact, rel=1e-6)
    assert "Poisson" in str(shuffled) and str(shuffled) != str(poisson)


@pytest.mark.thorough
def test_arrays_are_said_to_be_shuffled(small):
    model = eager_model(expected_batch_size=20)
    model.fit(*small.data(), batch_size=20, epochs=2, verbose=0)
    statement = model.privacy_statement()
    assert statement.sampling.kind == "shuffled" and statement.appearances == 2


@pytest.mark.thorough
def test_passes_that_are_cut_short_count(small):
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = True

    model = eager_model()
    data = tfdp.data.shuffled_epochs(small.data(), 10)
    for _ in range(3):
        model.fit(data, verbose=0, callbacks=[Stop()])
    assert model.optimizer.steps_taken == 3
    assert model.privacy_statement().appearances == 3


class _StopsIteration(keras.callbacks.Callback):
    """Raises StopIteration at one batch of each epoch: to Keras, the end of the data."""

    def __init__(self, at, hook):
        super().__init__()
        self.at = at
        setattr(self, hook, self._count)

    def on_epoch_begin(self, epoch, logs=None):
        self.seen = 0

    def _count(self, batch, logs=None):
        self.seen += 1
        if self.seen == self.at:
            next(iter(()))


PASSES = [("shuffled_epochs", 10), ("allocated_epochs", 4)]
HOOKS = ["on_train_batch_begin", "on_train_batch_end"]
ENDS = [(at, limit, hook, *made) for at, limit in ((3, None), (2, 2), (3, 3), (4, None))
        for hook in HOOKS for made in PASSES]  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize(
    "at, steps_per_epoch, hook, make, size",
    # Of each end and hook one kind of pass; of passes that were complete both.
    slow.cases(ENDS, slow=[end for end in ENDS if end[0] != 4
                           and (end[0] + end[1:2].count(None) + HOOKS.index(end[2])) % 2
                           == (end[3] == "shuffled_epochs")]),
)  # fmt: skip
def test_passes_that_end_by_an_exception_are_not_begun_anew(
    small, at, steps_per_epoch, hook, make, size
):
    model = eager_model()
    data, stop = getattr(tfdp.data, make)(small.data(), size), _StopsIteration(at, hook)

    def train():
        model.fit(data, epochs=2, steps_per_epoch=steps_per_epoch, verbose=0, callbacks=[stop])

    if (at, hook) == (4, "on_train_batch_end"):  # a pass that was complete
        train()
        assert sum(entry.count for entry in model.ledger.entries) == 2
        return
    with pytest.raises(tfdp.PrivacyError, match="StopIteration in epoch 1"):
        train()
    assert sum(entry.count for entry in model.ledger.entries) == 1


@pytest.mark.thorough
@pytest.mark.parametrize(
    "at_once, steps_per_epoch",  # more of the latter are refused
    slow.cases(CUTS := [(a, s) for a in (1, 3, 4) for s in (None, 3, 4)],
               slow=[c for c in CUTS if c not in [(1, 3), (3, None), (4, 3)]]),
)  # fmt: skip
def test_passes_that_epochs_cut_elsewhere_go_on(small, at_once, steps_per_epoch):
    model = eager_model()
    model.steps_per_execution = at_once
    data = tfdp.data.shuffled_epochs(small.data(), 10)
    model.fit(data, epochs=3, steps_per_epoch=steps_per_epoch, verbose=0)
    assert model.privacy_statement().appearances == -(-model.optimizer.steps_taken // 4)


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["train_on_batch", "train_step"])
@pytest.mark.parametrize("fit_first", [False, True])
def test_steps_outside_fit_have_unknown_batches(small, how, fit_first):
    model = eager_model()
    if fit_first:
        fit_steps(model)
    x, y = small.data()
    if how == "train_on_batch":
        model.train_on_batch(x[:1], y[:1])
    else:
        model.train_step((tf.constant(x[:1]), tf.constant(y[:1])))
    statement = model.privacy_statement()
    assert statement.steps == 1 + fit_first
    assert statement.epsilon == math.inf and statement.unstated
    fit_steps(model)
    assert model.privacy_statement().epsilon == model.optimizer.epsilon() == math.inf


def test_declared_sampling_is_listed_as_assumed(small):
    x, y = small.data()
    data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(40).batch(10).take(1)
    tfdp.data.declare_sampling(data, "poisson", small.n, 10)
    model = eager_model()
    model.fit(data, verbose=0)
    statement = model.privacy_statement()
    assert math.isfinite(statement.epsilon)
    assert any("declared" in s for s in statement.assumptions)


def test_statement_names_what_is_not_covered(small):
    model = eager_model()
    callbacks = [keras.callbacks.EarlyStopping("loss"), keras.callbacks.ReduceLROnPlateau("loss")]
    fit_steps(model, callbacks=callbacks)
    text = str(model.privacy_statement())
    assert "EarlyStopping" in text and "ReduceLROnPlateau" in text and "metrics" in text
    model = eager_model()
    fit_steps(model)
    assert "EarlyStopping" not in str(model.privacy_statement())


@pytest.mark.thorough
def test_seeded_batches_are_remarked(small):
    model = eager_model()
    model.fit(small.poisson(seed=1, steps_per_epoch=1), verbose=0)
    assert "seed" in str(model.privacy_statement())


def test_earlier_plain_training_of_the_wrapped_model_is_mentioned(small):
    base = small.base()
    base.compile("sgd", loss=small.loss, **EAGER)
    base.fit(*small.data(), verbose=0)
    model = eager_model(base)
    fit_steps(model)
    statement = model.privacy_statement()
    assert statement.epsilon == math.inf or any("public" in s for s in statement.assumptions)


@pytest.mark.thorough
def test_statement_needs_a_private_optimizer_and_a_small_delta(small):
    model = tfdp.make_private(small.base())
    with pytest.raises(ValueError, match="DPOptimizer"):
        model.privacy_statement()
    model = eager_model()
    fit_steps(model)
    for delta in (0.0, 0.03, 1.0):
        with pytest.raises(ValueError, match="delta"):
            model.privacy_statement(delta)


@pytest.mark.thorough
def test_drawn_sizes_reach_no_log(small):
    """Raw counts are private: equal-sized logs and histories whatever was drawn."""
    model = small.model(compile_kwargs={"metrics": ["accuracy"]})
    seen = []
    watch = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append(dict(logs))
    )
    history = model.fit(small.poisson(), verbose=0, callbacks=[watch]).history
    assert set(history) == {"loss", "accuracy"}
    assert {k for entry in seen for k in entry} == {"loss", "accuracy"}


def test_units_of_privacy(small):
    assert small.model().privacy_unit == "one example"
    model = tfdp.models.SequenceBaseline(5, 4, dim=4)
    assert "user" in model.privacy_unit


@pytest.mark.thorough
def test_noise_multiplier_zero_states_infinity(small):
    model = eager_model(noise_multiplier=0.0)
    fit_steps(model)
    assert model.privacy_statement().epsilon == math.inf
    assert np.isinf(model.optimizer.epsilon())


@pytest.mark.thorough
def test_what_was_taken_from_data_is_listed_as_public_for_any_training(small):
    class OwnNormalization(keras.layers.Normalization):
        pass

    adapted = OwnNormalization(name="own_norm")
    adapted.adapt(small.data()[0])
    noise = tfdp.layers.DPForwardNoise(clip_norm=1.0, noise_multiplier=2.0)
    inner = keras.Sequential([keras.Input((3,)), adapted, noise, keras.layers.Dense(2)])
    model = tfdp.make_private(inner)
    model.compile("sgd", loss=small.loss, **EAGER)
    stop = keras.callbacks.EarlyStopping("val_loss")
    x, y = small.data()
    model.fit(tfdp.data.shuffled_epochs((x, y), 10), verbose=0, callbacks=[stop],
              validation_data=(x, y))  # fmt: skip
    text = " ".join(str(model.privacy_statement()).split())
    assert "EarlyStopping" in text and "the adapted state of layer 'own_norm'" in text


def test_a_vocabulary_is_listed_once():
    texts = np.array(["a b", "b c d"] * 10)
    words = keras.layers.TextVectorization(output_mode="multi_hot", name="words")
    words.adapt(texts)
    model = tfdp.make_private(
        keras.Sequential([keras.Input((), dtype="string"), words, keras.layers.Dense(1)])
    )
    assert [note for note in caveats.of_model(model).assumptions if "adapted" in note] == [
        "the adapted state of layer 'words' (TextVectorization) is public"
    ]


@pytest.mark.parametrize("best_only", [False, True])
def test_only_files_of_the_best_follow_a_metric(best_only):
    """Also of callbacks that write files in another format, as OrbaxCheckpoint does."""

    class OtherFiles(keras.callbacks.Callback):
        monitor, save_best_only = "val_loss", best_only

    of_keras = keras.callbacks.ModelCheckpoint("m.keras", save_best_only=best_only)
    for callback in (of_keras, OtherFiles()):
        found = caveats.of_callbacks([callback]).not_covered
        assert any("which follows 'val_loss'" in one for one in found) == best_only


def test_a_vocabulary_that_was_given_by_hand_is_not_called_adapted():
    given = keras.layers.StringLookup(vocabulary=["a", "b"], output_mode="one_hot", name="words")
    x = keras.Input((1,), dtype="string")
    model = eager_model(keras.Model(x, keras.layers.Dense(2)(given(x))))
    text = " ".join(str(caveats.of_model(model)).split())
    assert "the vocabulary given to layer 'words' (StringLookup) is public" in text
    assert "adapted" not in text


@pytest.mark.parametrize("scale, offset", [(1 / 255, 0.0), ([0.5, 2.0], 0.0), (1.0, [-3.0, 0.1])])
def test_numbers_of_each_feature_that_a_layer_scales_by_are_listed_as_public(scale, offset):
    """Many are means and deviations of the records; one number for all is 1/255."""
    layer = keras.layers.Rescaling(scale, offset, name="scaled")
    model = eager_model(keras.Sequential([keras.Input((2,)), layer, keras.layers.Dense(2)]))
    listed = "the scale and offset given to layer 'scaled' (Rescaling) are public"
    assert (listed in str(caveats.of_model(model))) == (scale != 1 / 255)


@pytest.mark.thorough
def test_a_number_of_items_that_was_read_from_the_data_is_listed_as_public():
    sequences = [np.arange(1, 6)] * 30
    texts = []
    for num_items in (None, 5):
        data = tfdp.data.leave_one_out_split(sequences, 4, num_items)
        model = tfdp.models.SequenceBaseline(5, 4, dim=2)
        model.compile(
            tfdp.optimizers.DPOptimizer(
                "sgd", noise_multiplier=1.0, num_examples=30, expected_batch_size=10
            ),
            run_eagerly=True,
        )
        batches = tfdp.data.poisson_batches(data.train, 10, steps_per_epoch=1)
        model.fit(batches, verbose=0)
        texts.append(" ".join(str(model.privacy_statement()).split()))
    assert "largest id in the data, is public" in texts[0]
    assert "largest id" not in texts[1]


MEANS = np.array([0.3, -1.2, 0.7], np.float32)


def centred_in_the_graph():
    x = keras.Input((3,))
    return keras.Model(x, keras.layers.Dense(2)(x - MEANS)), "operation 'subtract"


def centred_by_a_lambda():
    centred = keras.layers.Lambda(lambda t: t - MEANS)
    return keras.Sequential([keras.Input((3,)), centred, keras.layers.Dense(2)]), "`<lambda>`"


def centred_by_a_tensor():
    means = tf.constant(MEANS)
    centred = keras.layers.Lambda(lambda t: t - means)
    return keras.Sequential([keras.Input((3,)), centred, keras.layers.Dense(2)]), "`<lambda>`"


COUNTS = np.array([7, 1, 90, 3, 3] * 4)


def of_place(function):
    """A model of the numbers that a function gives for the places of three values."""
    x = keras.Input((3,))
    h = function(keras.ops.cast(x > 0, "int64") + np.array([0, 5, 17]))
    return keras.Model(x, keras.layers.Dense(2)(keras.ops.cast(h, "float32")))


def counted_in_the_graph():
    return of_place(lambda ids: keras.ops.take(COUNTS, ids)), "operation 'take"


def counted_by_a_lambda():
    counted = keras.layers.Lambda(lambda ids: tf.gather(COUNTS, ids), output_shape=(3,))
    return of_place(counted), "`<lambda>`"


def public_numbers():
    """A mask, one number for all, positions, and what Keras' own layers compute with."""
    x = keras.Input((3,))
    h = keras.layers.Lambda(lambda t: tf.gather(t, [2, 0, 1], axis=1))(x)
    h = h * np.array([1, 0, 1], np.float32) + np.arange(3, dtype=np.float32) / 3
    h = keras.layers.Lambda(lambda t: t + tf.constant([0.5, 0.5, 0.5]))(h)
    return keras.Model(x, keras.layers.Dense(2, "gelu")(keras.layers.GaussianDropout(0.1)(h))), None


ARRAYS = [centred_in_the_graph, centred_by_a_lambda, centred_by_a_tensor, counted_in_the_graph,
          counted_by_a_lambda, public_numbers]  # fmt: skip


@pytest.mark.thorough_after(5)
@pytest.mark.parametrize(
    "make, eagerly",
    # What finds an array is the same for all of them, of a trace and of an eager step.
    slow.cases([(make, eagerly) for make in ARRAYS for eagerly in (False, True)],
               slow=[(centred_by_a_lambda, False), (centred_by_a_tensor, False),
                     (counted_in_the_graph, False), (counted_by_a_lambda, True)]),
)  # fmt: skip
def test_arrays_that_a_model_computes_with_are_listed_as_assumed(small, make, eagerly):
    """Means, or counts, of the records went into every file, and no sentence said so."""
    base, place = make()
    model = small.model(base, compile_kwargs={"run_eagerly": eagerly})
    fit_steps(model)
    text = " ".join(str(model.privacy_statement()).split())
    assert ("the array of shape (" in text) == (place is not None)
    if place is not None:
        shape = "(20,)" if "counted" in make.__name__ else "(3,)"
        assert f"{shape} in {'' if 'op' in place else 'the code of '}{place}" in text
        assert "is no function of the records" in text


def test_look_up_tables_that_the_code_of_a_model_reads_are_listed_as_assumed(small):
    """The share of clicks of each item, say; the table of a Keras layer is listed as its state."""
    means = tf.lookup.KeyValueTensorInitializer(tf.range(3, dtype=tf.int64), MEANS)
    table = tf.lookup.StaticHashTable(means, 0.0)
    own = keras.layers.Lambda(lambda ids: table.lookup(ids % 3), output_shape=(3,))
    of_keras = keras.layers.IntegerLookup(vocabulary=[0, 5, 17, 18])
    for layer, listed in ((own, True), (of_keras, False)):
        model = small.model(of_place(layer))
        fit_steps(model)
        text = " ".join(str(model.privacy_statement()).split())
        assert ("the look-up table in the code of `<lambda>` (test_statement.py)" in text) == listed


def test_arrays_that_a_loss_computes_with_are_listed_as_assumed(small):
    weights = np.array([0.3, 1.9, 0.7], np.float32)

    def weighted(y, logits):
        return keras.ops.mean(keras.ops.square(logits - y) * weights, axis=-1)

    model = small.model(small.base(classes=3), weighted)
    x, _ = small.data()
    model.fit(tfdp.data.poisson_batches((x, x), 10, steps_per_epoch=1), verbose=0)
    listed = "the array of shape (3,) in the code of `weighted` (test_statement.py)"
    assert listed in " ".join(str(model.privacy_statement()).split())


@keras.saving.register_keras_serializable("test_statement")
class Centred(keras.layers.Layer):
    """Subtracts means that it holds."""

    def __init__(self, means, **kwargs):
        super().__init__(**kwargs)
        self.held = {"means": [means]}

    def call(self, x):
        return x - self.held["means"][0]

    def get_config(self):
        means = keras.saving.serialize_keras_object(self.held["means"][0])
        return {**super().get_config(), "means": means}

    @classmethod
    def from_config(cls, config):
        means = keras.saving.deserialize_keras_object(config.pop("means"))
        return cls(means, **config)


@pytest.mark.thorough
@pytest.mark.parametrize("place", ["graph", "whole numbers", "attribute", "initializer"])
def test_an_array_of_a_release_that_a_model_holds_is_charged(small, place, tmp_path):
    h = Origin(assumptions=("the scale is public",)).on(np.ones((small.n, 3), np.float32))
    release = tfdp.data.release_once(h, np.zeros(small.n, int), 1.0, 9.0, adjacency="zero_out")
    x, means = keras.Input((3,)), release.features.mean(0)
    initial = keras.initializers.Constant(means)
    centred = {
        "graph": lambda: x - means,
        "whole numbers": lambda: x - np.round(means).astype(int),
        "attribute": lambda: Centred(means)(x),
        "initializer": lambda: keras.layers.Dense(3, bias_initializer=initial)(x),
    }[place]()
    model = eager_model(keras.Model(x, keras.layers.Dense(2)(centred)))
    _assert_release_is_stated(model)
    model.save(tmp_path / "model.keras")
    _assert_release_is_stated(keras.models.load_model(tmp_path / "model.keras"))


def _assert_release_is_stated(model):
    assert [entry.label for entry in model.ledger.entries] == ["released representations"]
    stated = " ".join(str(model.privacy_statement()).split())
    assert "the scale is public" in stated
    assert "no function of the records" not in stated and "came from elsewhere" not in stated
