"""What is exported can be served by plain TensorFlow, and says what its training guaranteed."""

import errno
import importlib
import itertools
import json
import pathlib

import dp_accounting
import keras
import numpy as np
import processes
import pytest
import slow
import tensorflow as tf

import tfdp
from tfdp.accounting.charges.mechanisms import ForwardNoise
from tfdp.accounting.release_series import release_epsilon
from tfdp.models.next_item import newest
from tfdp.runtime.external_table import ExternalTable


@pytest.fixture(scope="module")
def trained():
    data = tfdp.data.synthetic_sequences(num_users=60, num_items=12, max_length=6, min_length=3)
    model = tfdp.models.DPFormer(data.num_items, data.max_length, dim=8, num_blocks=1)
    model.compile(
        tfdp.optimizers.DPOptimizer(
            keras.optimizers.Adam(1e-2),
            noise_multiplier=1.0,
            num_examples=60,
            expected_batch_size=20,
        ),
        run_eagerly=True,  # a trace takes longer than one step
    )
    model.fit(tfdp.data.poisson_batches(data.train, 20, steps_per_epoch=1), verbose=0)
    return model


@pytest.fixture(scope="module")
def exported(trained, tmp_path_factory):
    """Folder of what was trained, exported to answer with its three best items."""
    return tfdp.serving.export(trained, tmp_path_factory.mktemp("exported") / "m", k=3)


def exported_statement(model, folder):
    tfdp.serving.export(model, folder)
    return json.loads((folder / "privacy_statement.json").read_text())


@pytest.fixture
def stated(monkeypatch, tmp_path):
    """Function (model) -> the statement of its export.

    The SavedModel is left out: writing it takes longer than all that a statement needs.
    """
    module = importlib.import_module("tfdp.serving.export")
    monkeypatch.setattr(module, "_write", lambda endpoint, path: path.mkdir())
    return lambda model: exported_statement(model, tmp_path / "m")


@pytest.mark.thorough
def test_signature_takes_raw_sequences_and_returns_the_models_own_top_items(trained, exported):
    served = tf.saved_model.load(str(exported))
    raw = tf.constant([[0, 3, 5, 0], [1, 2, 3, 4]], tf.int64)
    answer = served.serve(raw)
    aligned = np.array([[0, 0, 0, 0, 3, 5], [0, 0, 1, 2, 3, 4]])
    scores = trained.score_next(aligned).numpy()
    best = -np.sort(-scores, axis=1)[:, :3]
    np.testing.assert_allclose(answer["scores"], best, rtol=1e-4, atol=1e-6)
    named = np.take_along_axis(scores, answer["items"].numpy(), axis=1)
    np.testing.assert_allclose(named, best, rtol=1e-4, atol=1e-6)
    assert np.all(answer["items"].numpy() > 0)  # padding is never recommended


def test_longer_histories_than_the_model_knows_keep_the_newest_items():
    sequences = tf.constant([[9, 0, 1, 2, 3, 4], [0, 0, 0, 0, 0, 7], [0] * 6], tf.int64)
    expected = [[2, 3, 4], [0, 0, 7], [0, 0, 0]]
    np.testing.assert_array_equal(newest(sequences, 3), expected)


@pytest.mark.thorough
def test_statement_lies_beside_the_model(trained, exported):
    statement = json.loads((exported / "privacy_statement.json").read_text())
    assert statement["epsilon"] == trained.privacy_statement().epsilon
    assert statement["unit"] == "one user (one training sequence)"


@pytest.mark.parametrize("fails", ["_write", "replace"])
def test_an_export_that_fails_leaves_no_statement_of_another_model(
    trained, tmp_path, monkeypatch, fails
):
    old = tmp_path / "m" / "privacy_statement.json"
    old.parent.mkdir()
    old.write_text('{"epsilon": 0.1}')

    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    module = importlib.import_module("tfdp.serving.export")
    monkeypatch.setattr(module, "_write", full if fails == "_write" else lambda *args: None)
    if fails == "replace":  # the model was written, its statement is not
        monkeypatch.setattr(pathlib.Path, "replace", full)
    with pytest.raises(OSError, match="No space"):
        tfdp.serving.export(trained, tmp_path / "m", k=2)
    assert not old.exists()


@pytest.mark.thorough
def test_plain_tensorflow_serves_it_without_tfdp(exported, tmp_path):
    code = (
        "import sys, tensorflow as tf\n"
        f"served = tf.saved_model.load({str(exported)!r})\n"
        "out = served.signatures['serving_default'](sequences=tf.constant([[1, 2]], tf.int64))\n"
        "assert out['items'].shape == (1, 3)\n"
        "assert not any(name.startswith('tfdp') for name in sys.modules)\n"
    )
    processes.run(code, cwd=tmp_path)


def test_export_holds_no_training_state(exported):
    names = [n for n, _ in tf.train.list_variables(str(exported / "variables/variables"))]
    forbidden = ("noise", "optimizer", "momentum", "velocity", "history_state", "seed_generator")
    assert not [n for n in names if any(word in n for word in forbidden)], names


@pytest.mark.thorough
def test_other_models_export_what_keras_exports(tmp_path):
    private = tfdp.make_private(
        keras.Sequential([keras.Input((3,)), keras.layers.Dropout(0.5), keras.layers.Dense(2)])
    )
    private.compile(
        tfdp.optimizers.DPOptimizer(
            "sgd", noise_multiplier=1.0, num_examples=10, expected_batch_size=5
        ),
        loss="mse",
    )
    tfdp.serving.export(private, tmp_path / "m")
    x = np.ones((2, 3), np.float32)
    served = tf.saved_model.load(str(tmp_path / "m"))
    np.testing.assert_allclose(served.serve(x), private(x), rtol=1e-6)


@pytest.mark.thorough
def test_augmentation_is_left_out_of_what_is_exported(tmp_path):
    """Keras' own export serves images that are flipped at random."""
    flips = keras.layers.RandomFlip("horizontal", seed=1)
    private = tfdp.make_private(keras.Sequential([keras.Input((4, 4, 3)), flips]))
    tfdp.serving.export(private, tmp_path / "m")
    x = np.random.default_rng(0).normal(size=(16, 4, 4, 3)).astype(np.float32)
    served = tf.saved_model.load(str(tmp_path / "m"))
    np.testing.assert_array_equal(served.serve(x), x)


@pytest.mark.thorough
def test_forward_noise_under_any_optimizer_is_stated(tmp_path, small, monkeypatch):
    # The SavedModel is left out: the statement is what matters here.
    monkeypatch.setattr(keras.Model, "export", lambda self, path, **_: pathlib.Path(path).mkdir())
    private = tfdp.make_private(
        keras.Sequential(
            [keras.Input((3,)), tfdp.layers.DPForwardNoise(1.0, 2.0), keras.layers.Dense(2)]
        )
    )
    private.compile("sgd", loss=small.loss)
    drawn = tfdp.data.sampling_of(tfdp.data.shuffled_epochs(small.data(), 10))
    history = private.charge_history
    history.count(history.start(ForwardNoise(2.0, "zero_out", drawn)), 4)  # as `fit` does
    exported = tfdp.serving.export(private, tmp_path / "m", delta=1e-3)
    statement = json.loads((exported / "privacy_statement.json").read_text())
    one_copy = release_epsilon(dp_accounting.GaussianDpEvent(2.0), 1e-3)
    assert statement["epsilon"] == pytest.approx(one_copy, rel=1e-3)


def test_tables_in_a_tpu_embedding_are_refused_before_anything_is_written(tmp_path, small):
    base = small.base()
    # As a SparseEmbedding(placement="tpu") has it on a TPU.
    base.layers[0].external_table = ExternalTable("one", (4, 2))
    with pytest.raises(RuntimeError, match=r"\['one'\].* are in a TPU embedding"):
        tfdp.serving.export(small.model(base), tmp_path / "m")
    assert not (tmp_path / "m").exists()


@pytest.mark.thorough
def test_every_way_of_exporting_works_after_a_step(tmp_path):
    private = tfdp.make_private(keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]))
    private.compile(
        tfdp.optimizers.DPOptimizer(
            "sgd", noise_multiplier=1.0, num_examples=10, expected_batch_size=5
        ),
        loss="mse",
    )
    x = np.ones((2, 3), np.float32)
    private.train_on_batch(x, x[:, :2])
    private.export(str(tmp_path / "keras"), verbose=False)
    with pytest.warns(UserWarning, match="no finite epsilon. tfdp does not know how the batches"):
        tfdp.serving.export(private, tmp_path / "tfdp")
    tf.saved_model.save(private, str(tmp_path / "tensorflow"))
    assert tf.saved_model.load(str(tmp_path / "tensorflow"))
    for way in ("keras", "tfdp"):
        served = tf.saved_model.load(str(tmp_path / way)).signatures["serving_default"]
        (out,) = served(tf.constant(x)).values()
        np.testing.assert_allclose(out, private(x), rtol=1e-6)


def test_a_model_without_noise_is_exported_with_a_warning(stated):
    private = tfdp.make_private(keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]))
    private.compile(
        tfdp.optimizers.DPOptimizer("sgd", noise_multiplier=0.0), loss="mse", run_eagerly=True
    )
    x = np.ones((10, 3), np.float32)
    private.fit(tfdp.data.poisson_batches((x, x[:, :2]), 5, steps_per_epoch=1), verbose=0)
    with pytest.warns(UserWarning, match="no finite epsilon. Its training is not private"):
        stated(private)


@pytest.mark.parametrize("k", [0, 13, 2.5])
def test_k_out_of_range_is_refused_by_name(trained, tmp_path, k):
    with pytest.raises(ValueError, match="`k`"):
        tfdp.serving.export(trained, tmp_path / "m", k=k)


def test_without_k_the_ten_best_are_returned_or_all_where_there_are_fewer(trained):
    few = tfdp.models.SequenceBaseline(4, 3, cell="gru", dim=4)
    few.build((None, 3))
    for model, expected in ((trained, 10), (few, 4)):
        answer = model.serving_endpoint(None).function(tf.constant([[1, 2]], tf.int64))
        assert answer["items"].shape == (1, expected)


def test_models_without_privacy_are_refused(tmp_path):
    with pytest.raises(ValueError, match="DPModel"):
        tfdp.serving.export(keras.Sequential([keras.layers.Dense(1)]), tmp_path / "m")


def feature_attention(delta=1e-5, **kwargs):
    budget = tfdp.PrivacyBudget(1.0, delta)
    return tfdp.layers.PrivateAttention(
        budget, 0.5, "feature", mechanism="gaussian_noise", **kwargs
    )


def test_releases_at_inference_are_stated_by_the_call_and_by_the_request(tmp_path):
    inputs, attention = keras.Input((4, 4096)), feature_attention()
    model = keras.Model(inputs, [attention(inputs), attention(inputs)])
    statement = exported_statement(model, tmp_path / "m")
    (release,) = statement["releases_at_inference"]
    by_the_call = json.loads(attention.privacy_statement().to_json())
    assert release == {**by_the_call, "layer": attention.name, "calls_in_one_request": 2}
    request = statement["release_of_one_request"]
    two = dp_accounting.SelfComposedDpEvent(attention.event(), 2)
    assert request["epsilon"] == release_epsilon(two, 1e-5) > 1.4
    assert request["delta"] == 1e-5 and request["unit"] == release["unit"]


def one_input():
    """The input of a model for requests of one size, which are traced once less."""
    return keras.Input((4, 4096), batch_size=1)


@pytest.mark.thorough
def test_one_request_adds_up_layers_of_one_unit(stated):
    inputs, one, two = one_input(), feature_attention(), feature_attention(2e-5)
    outputs = [one(inputs), two(inputs), two(inputs)]
    request = stated(keras.Model(inputs, outputs))["release_of_one_request"]
    both = dp_accounting.ComposedDpEvent([one.event(), two.event(), two.event()])
    assert request["delta"] == pytest.approx(3e-5)
    assert request["epsilon"] == pytest.approx(release_epsilon(both, request["delta"]))


def test_layers_of_different_units_are_not_totalled(stated):
    inputs, other = one_input(), feature_attention(neighbor_distance=0.1)
    outputs = [feature_attention()(inputs), other(inputs)]
    request = stated(keras.Model(inputs, outputs))["release_of_one_request"]
    assert "epsilon" not in request and "have no total" in request["remarks"][0]


class CallsOf(keras.layers.Layer):
    """Calls a layer as a function of the layer and its input says."""

    def __init__(self, layer, how):
        super().__init__()
        self.layer, self.how = layer, how

    def build(self, shape):
        if not self.layer.built:
            self.layer.build(shape)

    def call(self, x):
        return self.how(self.layer, x)

    def compute_output_shape(self, shape):
        return (None, 4, 4)


def by_inner_function(layer, x):
    inner = tf.function(lambda x: layer(x))  # traced once
    return inner(x) + inner(x)


def by_branch(layer, x):
    return tf.cond(tf.reduce_sum(x) > 0, lambda: layer(x) + layer(x), lambda: layer(x))


def by_loop(layer, x):
    return tf.map_fn(layer, x[tf.newaxis])[0]


@pytest.mark.thorough
@pytest.mark.parametrize("how, calls", [(by_inner_function, 2), (by_branch, 2), (by_loop, None)])
def test_calls_of_one_request_are_those_of_the_graph(stated, how, calls):
    inputs, attention = one_input(), feature_attention()
    statement = stated(keras.Model(inputs, CallsOf(attention, how)(inputs)))
    (release,) = statement["releases_at_inference"]
    assert release["calls_in_one_request"] == calls
    request = statement["release_of_one_request"]
    if calls is None:
        assert "epsilon" not in request and attention.name in request["remarks"][0]
    else:
        assert request["epsilon"] > 1.4


@pytest.mark.thorough
def test_turns_that_are_written_out_are_counted(stated):
    inputs = keras.Input((2, 4, 4096))
    outputs = keras.layers.TimeDistributed(feature_attention())(inputs)
    (release,) = stated(keras.Model(inputs, outputs))["releases_at_inference"]
    assert release["calls_in_one_request"] == 2


def windows(x):
    """(2 batch, 4, 4096): two windows of each input, Swin's way."""
    return tf.reshape(x, [-1, 4, 4096])


def by_windows(layer, x):
    return layer(windows(x))


def by_windows_of_all_inputs(layer, x):
    """The first windows of all inputs, then the second ones."""
    shape = [2 * tf.shape(x)[0], 4, 4096]
    return layer(tf.reshape(tf.transpose(tf.reshape(x, [-1, 2, 4, 4096]), [1, 0, 2, 3]), shape))


def by_windows_in_a_function(layer, x):
    return tf.function(lambda x: layer(x))(windows(x))


def by_windows_and_input(layer, x):
    layer(x[:, :4])
    return layer(windows(x))


def by_windows_in_a_branch(layer, x):
    return tf.cond(tf.reduce_sum(x) > 0, lambda: layer(windows(x)), lambda: windows(x)[..., :4])


def by_windows_in_a_loop(layer, x):
    return tf.map_fn(lambda x: layer(windows(x)), x[tf.newaxis])[0]


def by_half(layer, x):
    return layer(tf.reshape(x[: tf.shape(x)[0] // 2], [-1, 4, 4096])[::2])


def by_first(layer, x):
    return layer(x[:1, :4])


def by_some(layer, x):
    return layer(tf.boolean_mask(x[:, :4], tf.reduce_sum(x, [1, 2]) > 0))


def by_any_number(layer, x):
    """A function that is traced for any number of inputs."""
    spec = tf.TensorSpec([None, 4, 4096])
    return tf.function(lambda x: layer(x), input_signature=[spec])(windows(x))


def by_known_number(layer, x):
    """Python that makes another graph where it knows the number of inputs."""
    return layer(x[:, :4]) if x.shape[0] is not None else layer(x[:, :4]) + layer(x[:, 4:])


WINDOWS = {
    by_windows: 2,
    by_windows_of_all_inputs: 2,
    by_windows_in_a_function: 2,
    by_windows_in_a_branch: 2,
    by_windows_and_input: 3,
    by_windows_in_a_loop: None,
}
MECHANISMS = "gaussian_noise", "gaussian_sampling"
ALL_WINDOWS = list(itertools.product(WINDOWS, MECHANISMS, [None, 3]))
# Each way once, each mechanism and each kind of batch with the plainest way.
WINDOWS_OF_ALL_DAYS = [
    (by_windows, "gaussian_noise", None),
    (by_windows, "gaussian_sampling", 3),
    (by_windows_of_all_inputs, "gaussian_noise", None),
    (by_windows_in_a_function, "gaussian_sampling", None),
    (by_windows_in_a_branch, "gaussian_noise", 3),
    (by_windows_and_input, "gaussian_noise", 3),
    (by_windows_in_a_loop, "gaussian_sampling", None),
]
SLOW = [case for case in ALL_WINDOWS if case not in WINDOWS_OF_ALL_DAYS]
THOROUGH = WINDOWS_OF_ALL_DAYS[1:3] + WINDOWS_OF_ALL_DAYS[4:5]


@pytest.mark.parametrize("how, mechanism, batch_size", slow.cases(ALL_WINDOWS, SLOW, THOROUGH))
def test_each_window_of_an_input_is_one_release_about_it(stated, how, mechanism, batch_size):
    """Two windows were stated as one call, ε = 1; they cost 1.45."""
    inputs = keras.Input((8, 4096), batch_size=batch_size)
    attention = tfdp.layers.PrivateAttention(
        tfdp.PrivacyBudget(1.0, 1e-5), 0.5, "feature", mechanism=mechanism
    )
    attention.build((None, 4, 4096))
    statement = stated(keras.Model(inputs, CallsOf(attention, how)(inputs)))
    (release,) = statement["releases_at_inference"]
    calls = WINDOWS[how]
    assert release["calls_in_one_request"] == calls
    if calls is not None:
        all_calls = dp_accounting.SelfComposedDpEvent(attention.event(), calls)
        expected = release_epsilon(all_calls, 1e-5)
        assert statement["release_of_one_request"]["epsilon"] == expected > 1.4


@pytest.mark.thorough_after(3)
@pytest.mark.parametrize(
    "how",
    # A half of the inputs is a number that differs, as one input is.
    slow.cases([by_half, by_first, by_some, by_any_number, by_known_number], slow=[by_half]),
)
def test_calls_on_a_number_of_inputs_that_is_not_known_are_refused(tmp_path, how):
    inputs, attention = keras.Input((8, 4096)), feature_attention()
    attention.build((None, 4, 4096))
    model = keras.Model(inputs, CallsOf(attention, how)(inputs))
    with pytest.raises(tfdp.PrivacyError, match="cannot count what one request releases"):
        tfdp.serving.export(model, tmp_path / "m")
    assert not (tmp_path / "m").exists()


class Averaged(tfdp.layers.PrivateAttention):
    """The mean of two releases: each of them costs."""

    def call(self, query, key=None, **kwargs):
        return (super().call(query, key, **kwargs) + super().call(query, key, **kwargs)) / 2


def test_a_call_that_draws_more_than_once_is_refused(tmp_path):
    """It was stated as one call, ε = 1; it costs 1.45."""
    inputs = one_input()
    attention = Averaged(tfdp.PrivacyBudget(1.0, 1e-5), 0.5, "feature", mechanism="gaussian_noise")
    model = keras.Model(inputs, attention(inputs))
    with pytest.raises(tfdp.PrivacyError, match="must draw its noise once.* 2 draws"):
        tfdp.serving.export(model, tmp_path / "m")
    assert not (tmp_path / "m").exists()


class Tower(keras.layers.Layer):
    """Vectors (B, 16) of released attention, of the `calls` first windows of the input."""

    def __init__(self, calls):
        super().__init__()
        self.attention, self.calls = feature_attention(), calls

    def call(self, x):
        x = x["item"] if isinstance(x, dict) else x
        released = [self.attention(x[:, 4 * i : 4 * i + 4]) for i in range(self.calls)]
        return keras.ops.reshape(sum(released), (-1, 16))


@pytest.mark.thorough
def test_calls_of_every_signature_are_counted(stated):
    """The items' attention was stated as never called, though "item_vectors" calls it."""
    features = {"item": np.ones((12, 8, 4096), np.float32)}
    model = tfdp.models.TwoTower(Tower(1), Tower(2), 12, num_negatives=4, item_features=features)
    model((np.ones((2, 8, 4096), np.float32), np.arange(2)))
    statement = stated(model)
    calls = {r["layer"]: r["calls_in_one_request"] for r in statement["releases_at_inference"]}
    of_users, of_items = model.user_tower.attention, model.negatives.item_tower.attention
    assert calls == {of_users.name: 1, of_items.name: 2}
