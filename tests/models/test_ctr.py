"""pCTR: architecture, shared and multi-valued features, training, files, export."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdp.data import CRITEO_VOCABULARY_SIZES, poisson_batches, synthetic_clicks
from tfdp.models import CategoricalFeature, PrivateCTR
from tfdp.optimizers import DPOptimizer, RowAdagrad
from tfdp.selection import AdaFEST
from tfdp.serving import export

SIZES = (50, 700, 3)


def optimizer(**kwargs):
    settings = {"noise_multiplier": 1.0, "num_examples": 180, "expected_batch_size": 16}
    return DPOptimizer(
        keras.optimizers.Adam(0.01), selection=AdaFEST(3.0), embedding_optimizer=RowAdagrad(0.1),
        **{**settings, **kwargs},
    )  # fmt: skip


@pytest.fixture(scope="module")
def trained():
    data = synthetic_clicks(200, SIZES)
    model = PrivateCTR(data.vocabulary_sizes, hidden_units=(8, 4))
    model.compile(optimizer(), run_eagerly=True)  # a trace takes longer than one step
    history = model.fit(poisson_batches(data.train, 16, steps_per_epoch=1), verbose=0)
    return model, data, history.history


@pytest.mark.thorough
def test_the_architecture_is_the_paper_s():
    names = [f"C{i + 1}" for i in range(26)]
    model = PrivateCTR(dict(zip(names, CRITEO_VOCABULARY_SIZES, strict=True)))
    tables = [model.get_layer(name) for name in names]
    assert [t.input_dim for t in tables] == list(CRITEO_VOCABULARY_SIZES)
    assert [t.output_dim for t in tables] == [int(2 * v**0.25) for v in CRITEO_VOCABULARY_SIZES]
    dense = [layer.units for layer in model.model.layers if isinstance(layer, keras.layers.Dense)]
    assert dense == [598, 598, 598, 598, 1]
    width = 13 + sum(t.output_dim for t in tables)
    assert model.get_layer("dense_0").kernel.shape == (width, 598)


@pytest.mark.thorough
def test_trains_privately_and_shows_auc_gradient_size_and_its_unit(trained):
    model, data, history = trained
    assert {"auc", "gradient_size", "loss"} <= set(history)
    dims = [int(2 * v**0.25) for v in SIZES]
    assert 0 < history["gradient_size"][0] <= sum(v * d for v, d in zip(SIZES, dims, strict=True))
    statement = model.privacy_statement()
    assert statement.epsilon > 0 and statement.unit == "one impression"
    assert model.evaluate(*data.test, verbose=0, return_dict=True)["auc"] >= 0


def test_counts_enter_as_logarithms():
    model = PrivateCTR({"a": 5}, num_integers=2, hidden_units=())
    dense = model.get_layer("logit")
    kernel = np.zeros(dense.kernel.shape, "float32")
    kernel[:2, 0] = [1.0, 10.0]
    dense.kernel.assign(kernel)
    x = {"a": np.array([1, 1]), "integers": np.array([[np.e - 1, 0.0], [-2.0, 99.0]], "float32")}
    np.testing.assert_allclose(model(x)[:, 0], [1.0, 10 * np.log(100)], rtol=1e-5)


@pytest.mark.thorough
def test_survives_a_file_and_exports_with_integer_ids(trained, tmp_path):
    model, data, _ = trained
    x = {name: values[:5] for name, values in data.test[0].items()}
    expected = model.predict(x, verbose=0)
    model.save(tmp_path / "m.keras")
    again = keras.saving.load_model(tmp_path / "m.keras")
    np.testing.assert_array_equal(again.predict(x, verbose=0), expected)
    assert again.ledger == model.ledger and again.get_config() == model.get_config()
    served = tf.saved_model.load(str(export(again, tmp_path / "exported")))
    found = served.serve({name: tf.constant(values) for name, values in x.items()})
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_features_may_be_multivalued_and_share_a_table():
    shared = {"multivalued": True, "mask_zero": True, "table": "words"}
    model = PrivateCTR(
        {"query": CategoricalFeature(9, 4, **shared), "title": CategoricalFeature(9, 4, **shared)},
        num_integers=0, hidden_units=(4,),
    )  # fmt: skip
    assert [v.shape for v in model.trainable_variables][0] == (9, 4)
    assert len(model.trainable_variables) == 5
    x = {"query": np.array([[1, 2, 0], [3, 0, 0]]), "title": np.array([[1, 2], [4, 4]])}
    table = model.get_layer("words").embeddings.numpy()
    hidden = keras.Model(model.input, model.get_layer("dense_0").input)(x)
    np.testing.assert_allclose(hidden[0, :4], table[1:3].mean(0), rtol=1e-5)
    np.testing.assert_allclose(hidden[1, 4:], table[4], rtol=1e-5)
    model.compile(optimizer(num_examples=10, expected_batch_size=2), run_eagerly=True)
    model.train_on_batch(x, np.ones((2, 1)))


def test_what_is_public_in_the_data_is_in_the_statement():
    model = PrivateCTR({"a": 5}, 0, (), privacy_assumptions=["the vocabulary is public"])
    model.compile(optimizer())
    assert "the vocabulary is public" in str(model.privacy_statement())


@pytest.mark.parametrize(
    "features, message",
    [({}, "features"), ([3], "features"), ({"a": 0}, "vocabulary_size"),
     ({"a": CategoricalFeature(3, table="t"), "b": CategoricalFeature(4, table="t")}, "share")],
)  # fmt: skip
def test_features_that_make_no_sense_are_refused(features, message):
    with pytest.raises(ValueError, match=message):
        PrivateCTR(features)
