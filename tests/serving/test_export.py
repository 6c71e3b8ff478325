"""What is exported can be served by plain TensorFlow, and says what its training guaranteed."""

import errno
import importlib
import json
import pathlib

import keras
import numpy as np
import processes
import pytest
import tensorflow as tf

import tfdp
from tfdp.models.next_item import newest


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
    tfdp.serving.export(private, tmp_path / "tfdp")
    tf.saved_model.save(private, str(tmp_path / "tensorflow"))
    assert tf.saved_model.load(str(tmp_path / "tensorflow"))
    for way in ("keras", "tfdp"):
        served = tf.saved_model.load(str(tmp_path / way)).signatures["serving_default"]
        (out,) = served(tf.constant(x)).values()
        np.testing.assert_allclose(out, private(x), rtol=1e-6)


@pytest.mark.parametrize("k", [0, 13, 2.5])
def test_k_out_of_range_is_refused_by_name(trained, tmp_path, k):
    with pytest.raises(ValueError, match="`k`"):
        tfdp.serving.export(trained, tmp_path / "m", k=k)


def test_models_without_privacy_are_refused(tmp_path):
    with pytest.raises(ValueError, match="DPModel"):
        tfdp.serving.export(keras.Sequential([keras.layers.Dense(1)]), tmp_path / "m")


def test_releases_at_inference_are_stated_by_the_call(tmp_path):
    inputs = keras.Input((4, 64))
    attention = tfdp.layers.PrivateAttention(
        tfdp.PrivacyBudget(1.0, 1e-5), max_norm=1.0, unit="feature"
    )
    tfdp.serving.export(keras.Model(inputs, attention(inputs)), tmp_path / "m")
    statement = json.loads((tmp_path / "m" / "privacy_statement.json").read_text())
    (release,) = statement["releases_at_inference"]
    assert release == json.loads(attention.privacy_statement().to_json())
