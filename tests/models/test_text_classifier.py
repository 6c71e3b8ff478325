"""The text classifier: strings in, one release, an export that needs no tfdp."""

import json

import dp_accounting
import keras
import numpy as np
import processes
import pytest
import tensorflow as tf
from mixing import Function

import tfdp
from tfdp.accounting import LedgerEntry
from tfdp.data.provenance.origins import Origin, OriginArray
from tfdp.models.text_encoder import small_text_encoder
from tfdp.training.checks.independence import REPRESENTATIONS

pytest.importorskip("tensorflow_text")

WORDS = "[PAD] [UNK] [CLS] [SEP] a charming dull journey film the is bad good ##ly".split()
TEXTS = ["a charming journey", "the film is bad", "a dull film", "good film"] * 25
LABELS = np.array([1, 0, 0, 1] * 25)


def classifier(run_eagerly=False, **kwargs):
    """A compiled classifier; where no backbone is given, one without attention."""
    kwargs = {"noise_multiplier": 0.5, **kwargs}
    if "backbone" not in kwargs:
        kwargs["backbone"] = small_text_encoder(len(WORDS), 8, width=16, depth=0)
    model = tfdp.models.TextClassifier(WORDS, 2, max_length=8, **kwargs)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    adam = keras.optimizers.Adam(0.05)
    model.compile(adam, loss, metrics=["accuracy"], run_eagerly=run_eagerly)
    return model


@pytest.fixture(scope="module")
def trained():
    model = classifier()
    model.fit(TEXTS, LABELS, epochs=10, verbose=0)
    return model


def test_tokens_are_those_of_bert():
    tokenizer = tfdp.layers.TextTokenizer(WORDS, max_length=8)
    found = tokenizer(tf.constant(["A charming goodly journey xyz", "", "bad " * 20]))
    unknown = WORDS.index("[UNK]")
    good = [WORDS.index("good"), WORDS.index("##ly")]
    assert found["token_ids"].numpy().tolist() == [
        [2, 4, 5, *good, 7, unknown, 3], [2, 3, 0, 0, 0, 0, 0, 0], [2, *[11] * 6, 3],
    ]  # fmt: skip
    assert found["padding_mask"].numpy().sum(axis=1).tolist() == [8, 2, 8]
    with pytest.raises(ValueError, match="vocabulary"):
        tfdp.layers.TextTokenizer(["a", "b"])


def test_tokens_of_a_text_are_its_own_whatever_stands_beside_it():
    tokenizer = tfdp.layers.TextTokenizer(WORDS, max_length=6)
    texts = ["", "a", "bad " * 20, "goodly \0 film", "\xff", " charming  journey"]
    together = tokenizer(tf.constant(texts))
    for i, text in enumerate(texts):
        for alone in (tokenizer(tf.constant([text])), tokenizer(tf.constant([[text]]))):
            for name in together:
                np.testing.assert_array_equal(together[name][i : i + 1], alone[name])
    with pytest.raises(ValueError, match="one text for each example.*(2, 2)"):
        tokenizer(tf.constant([["a", "bad"], ["film", "journey"]]))


def mixing_backbone(mix):
    """A backbone behind which a layer mixes the texts of a batch."""
    inner = small_text_encoder(len(WORDS), 8, width=4, depth=0)
    mixed = Function(mix)(inner.output["sequence_output"])
    return keras.Model(inner.input, {"sequence_output": mixed})


@pytest.mark.thorough_after(1)
@pytest.mark.parametrize(
    "mix, what",
    [
        (lambda h: tf.cumsum(h, axis=0), "Cumsum"),
        (lambda h: h / tf.maximum(1e6, tf.reduce_max(tf.abs(h))), "Max"),
        (lambda h: tf.where(tf.reduce_any(tf.math.is_nan(h)), 0.0, h), "Any"),
    ],
)
def test_texts_that_change_each_others_representations_are_refused(mix, what):
    model = classifier(backbone=mixing_backbone(mix))
    for refused in (
        lambda: model.fit(TEXTS, LABELS, verbose=0),
        lambda: model.release(TEXTS, LABELS),
        lambda: model.representations(TEXTS[:1]),
    ):
        with pytest.raises(tfdp.PrivacyError, match=f"Layer 'function.*mixes.*{what}") as said:
            refused()
        assert "Forward noise clips the representation" in str(said.value)
    assert len(model.ledger) == 0


class Running(keras.layers.Layer):
    """Adds the sum of all texts so far, which no graph of one batch shows."""

    def __init__(self):
        super().__init__()
        self.total = tf.Variable(0.0, trainable=False)

    def call(self, h):
        self.total.assign_add(tf.reduce_sum(h))
        return h + self.total


@pytest.mark.thorough
def test_texts_that_change_representations_of_later_batches_are_refused():
    inner = small_text_encoder(len(WORDS), 8, width=4, depth=0)
    mixed = Running()(inner.output["sequence_output"])
    model = classifier(backbone=keras.Model(inner.input, {"sequence_output": mixed}))
    with pytest.raises(tfdp.PrivacyError, match="Assign.*stores or passes on data"):
        model.release(TEXTS, LABELS)


@pytest.mark.thorough
def test_a_tokenizer_that_was_changed_is_not_trusted():
    model = classifier()
    tokens = model.tokenizer.call
    model.tokenizer.call = lambda texts: {k: tf.cumsum(v) for k, v in tokens(texts).items()}
    with pytest.raises(tfdp.PrivacyError, match="Layer .tokenizer. .* may mix"):
        model.representations(TEXTS)


@pytest.mark.thorough
@pytest.mark.parametrize("copies", [1, 2])
def test_the_statement_says_that_representations_are_proved(copies):
    # The encoder that it makes by itself has attention, which must be proved once.
    encoder = {"backbone": None} if copies == 1 else {}
    model = classifier(copies=copies, run_eagerly=True, **encoder)
    texts = np.array(TEXTS, object)
    if copies == 1:
        model.fit(texts, LABELS, verbose=0)
        (release,) = model._releases_by_data.values()
        assert REPRESENTATIONS.proved in release.privacy_statement(1e-3).remarks
    else:
        data = tfdp.data.shuffled_epochs((texts, LABELS), 50)
        model.fit(data, verbose=0)
    statement = model.privacy_statement(1e-3)
    assert REPRESENTATIONS.proved in statement.remarks
    assert not any("each other" in sentence for sentence in statement.assumptions)


@pytest.mark.thorough
def test_representations_that_are_not_to_be_proved_are_listed():
    model = classifier(run_eagerly=True)
    model.validate_independence = False
    model.fit(TEXTS, LABELS, verbose=0)
    statement = model.privacy_statement(1e-3)
    assert REPRESENTATIONS.not_checked in statement.assumptions
    assert REPRESENTATIONS.proved not in statement.remarks


@pytest.mark.thorough
def test_texts_are_released_once_however_often_they_are_fitted(trained):
    before = [w.numpy() for w in trained.backbone.weights]
    trained.fit(TEXTS, LABELS, epochs=2, verbose=0)
    for old, new in zip(before, trained.backbone.weights, strict=True):
        np.testing.assert_array_equal(old, new)
    (entry,) = trained.ledger.entries
    assert entry.count == 1 and entry.event.noise_multiplier == 0.5
    statement = trained.privacy_statement(1e-3)
    assert statement.adjacency == "zero_out" and statement.unit == "one text"
    predicted, again = (trained.predict(tf.constant(TEXTS[:6]), verbose=0) for _ in range(2))
    np.testing.assert_array_equal(predicted, again)  # no noise at inference


def test_what_a_release_depends_on_makes_another_one():
    model = classifier(backbone=small_text_encoder(len(WORDS), 8, width=4, depth=0))
    texts, labels = ["bad\0film", "good"], np.array([1, 0])
    first = model._release_of(texts, labels)
    assert model._release_of(list(texts), labels.tolist()) is first
    known = {id(first)}

    def is_new(texts=texts, labels=labels):
        release = model._release_of(texts, labels)
        return id(release) not in known and not known.add(id(release))

    assert is_new(["bad", "film\0good"])
    assert is_new(labels=labels.astype(np.int8)) and is_new(labels=labels[:, np.newaxis])
    weights = model.backbone.get_weights()
    weights[0][5, 0] += 1.0  # one number of one row
    model.backbone.set_weights(weights)
    assert is_new()
    for name, value in (("pooling", "cls"), ("normalize", False), ("clip_norm", 2.0)):
        setattr(model, name, value)
        assert is_new(), name


@pytest.mark.thorough
def test_another_encoder_is_trained_on_its_own_release_and_both_are_charged():
    model = classifier()
    model.fit(TEXTS, LABELS, verbose=0)
    model.backbone.set_weights([w + 1.0 for w in model.backbone.get_weights()])
    model.fit(TEXTS, LABELS, verbose=0)
    assert sum(entry.count for entry in model.ledger.entries) == 2


@pytest.mark.thorough
def test_texts_in_lists_and_arrays_are_evaluated_as_they_are_fitted(trained):
    labels = np.asarray(LABELS[:6]).tolist()
    wanted = trained.predict(tf.constant(TEXTS[:6]), verbose=0)
    results = []
    for texts in (list(TEXTS[:6]), np.array(TEXTS[:6]), np.array(TEXTS[:6], object)):
        np.testing.assert_array_equal(trained.predict(texts, verbose=0), wanted)
        results.append(np.mean(trained.evaluate(texts, labels, verbose=0)))
    assert len(set(results)) == 1
    logs = trained.fit(TEXTS, LABELS, validation_data=(list(TEXTS[:6]), labels), verbose=0)
    assert "val_loss" in logs.history


def test_fresh_noise_every_epoch_costs_a_copy_each():
    budget = tfdp.PrivacyBudget(3.0, 1e-3)
    model = classifier(run_eagerly=True, noise_multiplier=None, budget=budget, copies=2)
    data = tfdp.data.shuffled_epochs((np.array(TEXTS, object), LABELS), 50)
    model.fit(data, epochs=2, verbose=0)
    assert 2.97 < model.privacy_statement(1e-3).epsilon <= 3
    with pytest.raises(ValueError, match="shuffled_epochs"):
        model.release(TEXTS, LABELS)


def test_a_budget_is_no_more_than_one_release():
    """Of an object that knows its release; one that was loaded does not, nor that of others."""
    budget = tfdp.PrivacyBudget(3.0, 1e-3)
    model = classifier(run_eagerly=True, noise_multiplier=None, budget=budget)
    for _ in range(2):
        model.fit(TEXTS, LABELS, verbose=0, class_weight={0: 1.0, 1: 2.0})
    with pytest.raises(tfdp.BudgetError, match="Another release of texts would raise ε"):
        model.fit(TEXTS[::-1], LABELS[::-1], verbose=0)
    data = tfdp.data.shuffled_epochs((np.array(TEXTS, object), LABELS), 50)
    with pytest.raises(tfdp.BudgetError, match="After 1 more epochs"):
        model.fit(data, verbose=0)
    fresh = classifier(run_eagerly=True, noise_multiplier=None, budget=budget)
    with pytest.raises(tfdp.BudgetError, match="After 5 more epochs"):
        fresh.fit(data, epochs=5, verbose=0)
    fresh.fit(data, verbose=0)
    for statement in (model.privacy_statement(1e-3), fresh.privacy_statement(1e-3)):
        assert 2.97 < statement.epsilon <= 3 and statement.kept
    assert model.privacy_statement(1e-4).epsilon > 3 and model.privacy_statement(1e-4).kept
    for name in ("sample_weight", "validation_split"):
        with pytest.raises(ValueError, match=f"`{name}` cannot be given with texts"):
            model.fit(TEXTS, LABELS, verbose=0, **{name: 0.5})


@pytest.mark.thorough
def test_mixtures_set_the_head_and_are_charged():
    model = classifier()
    h = model.representations(TEXTS)
    release = tfdp.data.release_mixtures(h, LABELS, 2, 1.0, 20, 300, noise_multiplier=0.3)
    model.fit_head(release)
    statement = model.privacy_statement(1e-3)
    assert statement.adjacency == "add_or_remove_one" and 0 < statement.epsilon < np.inf
    assert statement.epsilon == release.privacy_statement(1e-3).epsilon


@pytest.mark.filterwarnings("ignore:Skipping variable loading for optimizer")
def test_a_head_from_a_release_costs_what_the_records_were_made_with(tmp_path):
    model = classifier()
    before = LedgerEntry("vocabulary", dp_accounting.GaussianDpEvent(2.0), 1, {"release": "v"})
    origin = Origin((before,), ("the catalogue is public",))
    h = OriginArray.of(np.asarray(model.representations(TEXTS)), origin)
    release = tfdp.data.release_mixtures(h, LABELS, 2, 1.0, 20, 300, noise_multiplier=0.3)
    assert model.weight_origin.assumption() == ()
    model.fit_head(release)
    model.save(tmp_path / "m.keras")
    for one in (model, keras.models.load_model(tmp_path / "m.keras")):
        assert list(one.ledger.entries) == [before, release.entry]
        said = one.privacy_statement(1e-3).assumptions
        assert "the catalogue is public" in said
        # The head came from the release, and from nowhere else.
        assert not any("came from elsewhere" in sentence for sentence in said)
    random = np.random.default_rng(0)
    model.head.set_weights([random.normal(size=w.shape) for w in model.head.get_weights()])
    model.fit_head(release)
    assert "came from elsewhere" in " ".join(model.privacy_statement(1e-3).assumptions)


def test_saving_keeps_ledger_and_answers(trained, tmp_path):
    trained.save(tmp_path / "t.keras")
    other = keras.models.load_model(tmp_path / "t.keras")
    assert other.ledger == trained.ledger and not other.backbone.trainable
    assert len(other.trainable_variables) == 2
    texts = tf.constant(TEXTS[:4])
    np.testing.assert_allclose(other(texts), trained(texts), rtol=1e-5)


@pytest.mark.thorough
def test_the_export_answers_strings_in_plain_tensorflow(trained, tmp_path):
    tfdp.serving.export(trained, tmp_path / "m")
    statement = json.loads((tmp_path / "m" / "privacy_statement.json").read_text())
    assert statement["adjacency"] == "zero_out" and statement["epsilon"] > 0
    code = (
        "import sys, tensorflow as tf, tensorflow_text\n"
        f"model = tf.saved_model.load({str(tmp_path / 'm')!r})\n"
        "for _ in range(2):\n"
        "    answer = model.serve(tf.constant(['a charming journey']))\n"
        "    print(int(answer['labels'][0]), float(answer['probabilities'][0, 1]))\n"
        "assert 'keras' not in sys.modules or 'tfdp' not in sys.modules\n"
    )
    first, second = processes.run(code).split("\n")[:2]
    expected = tf.nn.softmax(trained(tf.constant(["a charming journey"])))
    assert first == second and int(first.split()[0]) == int(tf.argmax(expected[0]))
    assert float(first.split()[1]) == pytest.approx(float(expected[0, 1]), rel=1e-5)


@pytest.mark.thorough
def test_a_dp_optimizer_trains_all_of_it_and_covers_the_labels():
    model = classifier(noise_multiplier=None, train_backbone=True)
    model.compile(
        tfdp.optimizers.DPOptimizer(
            "adam", noise_multiplier=1.0, num_examples=100, expected_batch_size=10
        ),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        run_eagerly=True,  # a trace takes longer than one step
    )
    data = tfdp.data.poisson_batches((np.array(TEXTS, object), LABELS), 10, steps_per_epoch=1)
    model.fit(data, verbose=0)
    statement = model.privacy_statement()
    assert statement.adjacency == "add_or_remove_one" and statement.epsilon > 0
    assert not any("labels" in text for text in statement.not_covered)


@pytest.mark.thorough
def test_a_keras_hub_backbone_and_a_budget(tmp_path):
    keras_hub = pytest.importorskip("keras_hub")
    backbone = keras_hub.models.BertBackbone(
        vocabulary_size=len(WORDS), num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16,
        max_sequence_length=8,
    )  # fmt: skip
    budget = tfdp.PrivacyBudget(8.0, 5e-3)
    model = classifier(True, backbone=backbone, noise_multiplier=None, budget=budget)
    model.fit(TEXTS, LABELS, epochs=1, verbose=0)
    statement = model.privacy_statement()
    assert statement.delta == 5e-3 and 7.9 < statement.epsilon <= 8.0
    model.save(tmp_path / "m.keras")
    again = keras.saving.load_model(tmp_path / "m.keras")
    assert again.budget == budget and again.ledger == model.ledger
    predicted = [m(tf.constant(TEXTS[:4])) for m in (model, again)]
    np.testing.assert_allclose(*predicted, rtol=1e-5)
    served = tf.saved_model.load(str(tfdp.serving.export(again, tmp_path / "exported")))
    answer = served.serve(tf.constant(TEXTS[:4]))
    np.testing.assert_allclose(answer["probabilities"], tf.nn.softmax(predicted[0]), rtol=1e-4)
