"""A text classifier of keras_hub with LoRA: trained, saved in every way, exported; ε stays."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp

keras_hub = pytest.importorskip("keras_hub")
pytestmark = pytest.mark.filterwarnings("ignore")

WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] a good bad film charming dull and ,".split()
TEXTS = ["a good film", "a bad film", "good , charming", "dull and bad"] * 25
LABELS = np.array([1, 0, 1, 0] * 25)


def with_lora(rank=2):
    backbone = keras_hub.models.BertBackbone(
        vocabulary_size=len(WORDS), num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16,
        max_sequence_length=8,
    )  # fmt: skip
    backbone.enable_lora(rank)
    return keras_hub.models.BertTextClassifier(backbone, num_classes=2, preprocessor=None)


@pytest.fixture(scope="module")
def tokens():
    made = tfdp.layers.TextTokenizer(WORDS, max_length=8)(tf.constant(TEXTS))
    return {name: ids.numpy() for name, ids in made.items()}


@pytest.fixture(scope="module")
def before():
    return {}


@pytest.fixture(scope="module")
def trained(tokens, before):
    """A private model; `before` gets the values that its frozen and trained weights had."""
    model = tfdp.make_private(with_lora())
    before.update({v.path: v.numpy() for v in model.weights})
    model.compile(
        tfdp.optimizers.DPOptimizer(
            keras.optimizers.Adam(1e-2), budget=tfdp.PrivacyBudget(8, 1e-3)
        ),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        run_eagerly=True,  # a trace takes longer than two steps
    )
    batches = tfdp.data.poisson_batches((tokens, LABELS), 20, steps_per_epoch=2)
    model.fit(batches, epochs=1, verbose=0)
    return model


def moved(model, before):
    return {
        v.path.split("layer/")[-1] for v in model.weights
        if "seed_generator" not in v.path and not np.array_equal(v.numpy(), before[v.path])
    }  # fmt: skip


@pytest.mark.evidence
def test_only_lora_biases_beside_it_and_the_head_are_trained(trained, before, tokens):
    names = {"lora_kernel_a", "lora_kernel_b", "bias"}
    expected = {f"{part}/{name}" for part in ("query", "value") for name in names}
    # The first step leaves A where it is, as B is zero: two steps move both.
    assert moved(trained, before) == {*expected, "logits/kernel", "logits/bias"}
    assert np.isfinite(trained.evaluate(tokens, LABELS, return_dict=True, verbose=0)["loss"])
    statement = trained.privacy_statement()
    assert 7.9 < statement.epsilon <= 8 and not statement.assumptions


@pytest.mark.evidence
def test_a_file_brings_the_charges_and_keras_hub_adds_lora_to_the_kernels(
    trained, tokens, tmp_path
):
    trained.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    expected = trained.predict(tokens, verbose=0)
    np.testing.assert_allclose(again.predict(tokens, verbose=0), expected, atol=1e-6)
    assert again.ledger == trained.ledger
    # What the page says: LoRA is on again only when it is asked for again.
    assert not any("lora" in v.path for v in again.variables)
    trained.save_weights(tmp_path / "model.weights.h5")
    other = tfdp.make_private(with_lora())
    other.load_weights(tmp_path / "model.weights.h5")
    np.testing.assert_allclose(other.predict(tokens, verbose=0), expected, atol=1e-6)
    assert other.ledger == trained.ledger


def charged():
    """A model that was charged for a release, without the time that a training takes."""
    model = tfdp.make_private(with_lora())
    vectors = np.random.default_rng(0).normal(size=(100, 4))
    release = tfdp.data.release_once(vectors, np.zeros(100, int), 1.0, noise_multiplier=2.0)
    model.join_histories()
    model.charge_history.charge(release.entry)
    return model


def check_preset(model, folder):
    """The classifier of a local preset, and a new one around its backbone alone, are charged."""
    model.model.save_to_preset(folder)
    again = keras_hub.models.BertTextClassifier.from_preset(folder, preprocessor=None)
    backbone = keras_hub.models.BertBackbone.from_preset(folder)
    backbone.enable_lora(2)
    new = keras_hub.models.BertTextClassifier(backbone, num_classes=3, preprocessor=None)
    assert tfdp.make_private(again).ledger == tfdp.make_private(new).ledger == model.ledger
    assert len(model.ledger.entries) == 1
    return again


@pytest.mark.thorough
def test_a_preset_brings_the_charges_to_the_classifier_and_to_whatever_takes_its_backbone(tmp_path):
    check_preset(charged(), str(tmp_path / "preset"))


@pytest.mark.evidence
def test_a_preset_of_a_trained_model_predicts_as_the_model(trained, tokens, tmp_path):
    again = check_preset(trained, str(tmp_path / "preset"))
    expected = trained.predict(tokens, verbose=0)
    np.testing.assert_allclose(again.predict(tokens, verbose=0), expected, atol=1e-6)


@pytest.mark.evidence
def test_an_export_answers_as_the_model_and_states_its_epsilon(trained, tokens, tmp_path):
    path = tfdp.serving.export(trained, tmp_path / "exported")
    served = tf.saved_model.load(str(path))
    few = {name: ids[:3] for name, ids in tokens.items()}
    answer = served.serve({name: tf.constant(ids) for name, ids in few.items()})
    np.testing.assert_allclose(answer, trained.predict(few, verbose=0), atol=1e-6)
    stated = json.loads((path / "privacy_statement.json").read_text())
    assert stated["epsilon"] == trained.privacy_statement().epsilon
