"""Layers that train past the model's optimizer are refused before anything is trained."""

import types

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tfdp.clipping.plan import refusals
from tfdp.clipping.plan.planning import make_clipping_plan
from tfdp.errors import PrivacyError

IDS, Y = np.ones((4, 3), "int64"), np.ones((4, 1), "float32")
WAY_OUT = r"SparseEmbedding\(\.\.\., placement=\"tpu\"\)"


class TPUEmbedding:
    """Stands in for `TPUEmbeddingV2`, which can be built under a TPUStrategy only."""

    applied = []

    def __init__(self, *args, **kwargs):
        self.table = tf.Variable(tf.ones((9, 4)), trainable=False)

    def build(self):
        pass

    def __call__(self, inputs, weights=None):
        return {k: tf.reduce_mean(tf.gather(self.table, v), 1) for k, v in inputs.items()}, None

    def apply_gradients(self, gradients, preserved_outputs=None):
        self.applied.append(tf.nest.map_structure(lambda g: g.shape, gradients))


@pytest.fixture
def sparse_core(monkeypatch):
    """As keras_rs finds things under a TPUStrategy; gives the shapes of applied gradients."""
    pytest.importorskip("keras_rs")
    from keras_rs.src.layers.embedding.tensorflow import distributed_embedding as module

    monkeypatch.setattr(TPUEmbedding, "applied", [])
    monkeypatch.setattr(tf.tpu.experimental.embedding, "TPUEmbeddingV2", TPUEmbedding)
    monkeypatch.setattr(module.DistributedEmbedding, "_is_tpu_strategy", lambda *args: True)
    monkeypatch.setattr(
        tf.distribute.get_strategy().extended, "tpu_hardware_feature",
        types.SimpleNamespace(embedding_feature=module.EMBEDDING_FEATURE_V2), raising=False,
    )  # fmt: skip
    yield TPUEmbedding.applied


def distributed_embedding(placement="sparsecore"):
    import keras_rs

    table = keras_rs.layers.TableConfig("items", 9, 4, placement=placement)
    feature = keras_rs.layers.FeatureConfig("ids", table, (None, 3), (None, 4))
    return keras_rs.layers.DistributedEmbedding({"ids": feature}, name="tables")


def model_of(layer, base=keras.Model):
    """A model that calls a layer, or one that `layer()` makes when the model is built."""

    class Model(base):
        def __init__(self):
            super().__init__()
            if isinstance(layer, keras.layers.Layer):
                self.features = layer
            self.head = keras.layers.Dense(1)

        def build(self, shape):
            if not isinstance(layer, keras.layers.Layer):
                self.features = layer()

        def call(self, ids):
            return self.head(self.features({"ids": ids})["ids"])

    return Model()


def dp_optimizer():
    return tfdp.optimizers.DPOptimizer(
        "sgd", noise_multiplier=1.0, num_examples=100, expected_batch_size=4
    )


@pytest.mark.thorough
def test_the_stand_in_has_the_trap(sparse_core, monkeypatch):
    model = model_of(distributed_embedding())
    model.compile("sgd", "mse", run_eagerly=True)
    model.train_on_batch(IDS, Y)
    assert {"ids": (4, 4)} in sparse_core
    # And without the refusal a private step springs it, with one example's own gradient.
    sparse_core.clear()
    monkeypatch.setattr(refusals, "_updates_itself", lambda thing: False)
    model = tfdp.make_private(model_of(distributed_embedding()))
    model.compile(dp_optimizer(), "mse", run_eagerly=True)
    model.train_on_batch(IDS, Y)
    assert {"ids": (1, 4)} in sparse_core


@pytest.mark.thorough
@pytest.mark.parametrize("placement", ["sparsecore", "auto"])
def test_tables_on_the_sparse_core_are_refused_wherever_they_show(sparse_core, placement):
    with pytest.raises(PrivacyError, match=rf"'tables' \(DistributedEmbedding\).*{WAY_OUT}"):
        tfdp.make_private(model_of(distributed_embedding(placement)))
    for optimizer in (dp_optimizer(), "adam"):
        model = model_of(distributed_embedding(placement), tfdp.models.DPModel)
        with pytest.raises(PrivacyError, match=WAY_OUT):
            model.compile(optimizer, "mse")
    frozen = distributed_embedding(placement)
    frozen.trainable = False
    with pytest.raises(PrivacyError, match=WAY_OUT):
        make_clipping_plan(model_of(frozen), IDS)
    assert sparse_core == []


def test_a_model_that_puts_them_there_when_it_is_built_is_refused_at_its_first_step(sparse_core):
    model = model_of(distributed_embedding, tfdp.models.DPModel)
    model.compile(dp_optimizer(), "mse")
    with pytest.raises(PrivacyError, match=WAY_OUT):
        model.train_on_batch(IDS, Y)
    # Under forward noise, too, where every optimizer may train.
    noise = tfdp.layers.DPForwardNoise(1.0, 1.0)
    model = model_of(distributed_embedding, tfdp.models.DPModel)
    model.head = keras.Sequential([noise, model.head])
    model.compile("sgd", "mse")
    with pytest.raises(PrivacyError, match=WAY_OUT):
        model.fit(IDS, Y, batch_size=4, verbose=0)
    assert sparse_core == []


def test_the_trap_and_the_embedding_are_each_enough_to_be_refused(sparse_core):
    class Trapped(keras.layers.Layer):
        def __init__(self):
            super().__init__(name="trapped")
            self.dummy = self.add_weight(shape=(1,), name="_gradient_trap_dummy")

    class Holding(keras.layers.Layer):
        def __init__(self):
            super().__init__(name="holding")
            self.engine = TPUEmbedding()

    for layer in (Trapped(), Holding()):
        with pytest.raises(PrivacyError, match=layer.name):
            tfdp.make_private(model_of(layer))


def test_tables_on_the_default_device_are_not_refused():
    pytest.importorskip("keras_rs")
    assert tfdp.make_private(model_of(distributed_embedding("default_device")))


# The class hierarchy of tf_keras, which need not be installed.
Layer = type("Layer", (tf.Module,), {"__module__": "tf_keras.src.engine.base_layer"})
Keras2Model = type("Model", (Layer,), {"__module__": "tf_keras.src.engine.training"})
TfrsEmbedding = type(
    "TPUEmbedding", (Layer,),
    {"__module__": "tensorflow_recommenders.layers.embedding.tpu_embedding_layer"},
)  # fmt: skip


def test_models_of_tf_keras_are_refused_with_the_way_out():
    with pytest.raises(PrivacyError, match=r"`model` is a tf_keras.*Keras 3.*SparseEmbedding"):
        tfdp.make_private(Keras2Model())


@pytest.mark.parametrize("held", [lambda x: x, lambda x: [x], lambda x: {"table": x}])
def test_layers_of_tf_keras_inside_a_keras_model_are_refused(held):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, name="outer")])
    model.layers[0].inner = held(TfrsEmbedding())
    message = "'outer' .*holds tensorflow_recommenders.*TPUEmbedding.*SparseEmbedding"
    with pytest.raises(PrivacyError, match=message):
        tfdp.make_private(model)
