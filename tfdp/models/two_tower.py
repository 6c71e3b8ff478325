"""Two towers: vectors of users and of items, whose product says what a user will like."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from tfdp._compat.keras import all_layers
from tfdp.clipping.recording import input_structure
from tfdp.data.provenance import dataset_tags
from tfdp.data.provenance.dataset_tags import origin_of
from tfdp.data.provenance.padding_guard import map_batches
from tfdp.layers.shared_negatives import SharedNegatives
from tfdp.metrics import NDCG, HitRate
from tfdp.models.catalogue import PART, Catalogue, better_and_tied, vectors_of_all
from tfdp.models.endpoint import Endpoint, number_of_best
from tfdp.training.dp_model import DPModel

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from tfdp.data.releases.frequency import FrequencyRelease


@keras.saving.register_keras_serializable(package="tfdp")
class TwoTower(DPModel):
    """Retrieval from catalogues of any size: a tower for users, one for items, shared negatives.

    Trains on pairs of a user's features and the id of an item that it liked, by the softmax of
    `tfdp.layers.SharedNegatives`, which has the formula. The features of users are the input of the
    user tower: a tensor, or a dict of columns. Both towers may hold the same layers.

    Args:
        user_tower: layer or model from the features of users to vectors (B, d).
        item_tower: layer or model from items to vectors (B, d), as for `SharedNegatives`; or a
            `SharedNegatives` around one, which then has the settings.
        num_items, num_negatives, frequencies, item_features, similarity, temperature, noise_at: as
            for `SharedNegatives`.

    Call arguments:
        inputs: (features of users, (B,) ids of their items).

    Returns:
        (B, 1 + N) logits, the own item's first.

    Example:

    ```python
    items = keras.layers.Embedding(num_items, 64)
    history = keras.Input((20,), dtype="int64")
    users = keras.Model(history, keras.layers.GlobalAveragePooling1D()(items(history)))
    model = tfdp.models.TwoTower(users, items, num_items)
    model.compile(tfdp.optimizers.DPOptimizer(
        keras.optimizers.Adam(1e-2), budget=tfdp.PrivacyBudget(3.0, 1e-6)))
    model.fit(tfdp.data.poisson_batches((histories, next_items), 1024), epochs=5)
    model.evaluate(histories, next_items)
    ```
    """

    privacy_unit = "one pair of a user and an item"

    def __init__(
        self,
        user_tower: keras.Layer,
        item_tower: keras.Layer,
        num_items: int | None = None,
        num_negatives: int | None = 1024,
        frequencies: ArrayLike | FrequencyRelease | None = None,
        item_features: dict[str, ArrayLike] | None = None,
        similarity: str = "dot",
        temperature: float = 1.0,
        noise_at: str = "weights",
        **kwargs,
    ):
        super().__init__(**kwargs)
        if not isinstance(item_tower, SharedNegatives):
            item_tower = SharedNegatives(
                item_tower, num_items, num_negatives, frequencies, item_features, similarity,
                temperature, noise_at, name="negatives",
            )  # fmt: skip
        elif num_items not in (None, item_tower.num_items):
            raise ValueError(
                "Argument `num_items` must equal that of the given `SharedNegatives`, "
                f"{item_tower.num_items}. Received: num_items={num_items}"
            )
        self.user_tower = user_tower
        self.negatives = item_tower
        self._user_specification = None
        self.charge_releases()

    @property
    def num_items(self):
        """Number of items of the catalogue."""
        return self.negatives.num_items

    def build(self, input_shape):
        self.built = True

    def call(self, inputs):
        users, items = inputs
        return self.negatives(self._vectors(users), items)

    def _vectors(self, users):
        self._user_specification = tf.nest.map_structure(_specification, users)
        return self.user_tower(users)

    def user_vectors(self, users):
        """(B, d) vectors of users, of norm 1 if the similarity is the cosine."""
        vectors = self._vectors(users)
        cosine = self.negatives.similarity == "cosine"
        return keras.ops.normalize(vectors) if cosine else vectors

    def item_vectors(self, items):
        """(B, d) vectors of items by their ids (B,), of norm 1 if the similarity is the cosine."""
        return self.negatives.item_vectors(items)

    def catalogue(self, part: int = PART) -> np.ndarray:
        """float32 (num_items, d): the vectors of all items, `part` of them at once.

        They are computed from the weights and the item features. You may publish them if you may
        publish both.
        """
        return vectors_of_all(self.item_vectors, self.num_items, part)

    def compile(self, optimizer="rmsprop", loss=None, **kwargs):
        if loss is None:
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        super().compile(optimizer, loss, **kwargs)

    def fit(self, x=None, y=None, *args, **kwargs):
        """As `DPModel.fit`, on batches of (features of users, ids of items), or arrays of them."""
        return super().fit(*_paired(x, y), *args, **kwargs)

    def training_batches(self, batches):
        """As `DPModel.training_batches`, of batches as `fit` takes."""
        return super().training_batches(_paired_batches(batches))

    def evaluate(
        self,
        x: Any,
        y: ArrayLike | None = None,
        k: tuple = (10, 100),
        batch_size: int = 256,
        part: int = PART,
    ) -> dict:
        """Recall and NDCG of the users' own items among all items of the catalogue.

        Ties count as if they were broken at random, in expectation. The results are not private.

        Args:
            x: features of users, or a dataset of batches of (features, ids of items).
            y: (n,) ids of their items, unless x is a dataset.
            k: how many items are recommended; several numbers.
            batch_size: users that are ranked at once.
            part: items that are ranked at once; batch_size × part scores are held.

        Returns:
            Dict of "recall_{k}" and "ndcg_{k}".
        """
        metrics = {f"recall_{n}": HitRate(n, ignore_class=None) for n in k}
        metrics |= {f"ndcg_{n}": NDCG(n, ignore_class=None) for n in k}
        vectors = tf.constant(self.catalogue(part))
        if not isinstance(x, tf.data.Dataset):
            x = tf.data.Dataset.from_tensor_slices((x, y)).batch(batch_size)
        for users, items, *_ in x:
            ranks = better_and_tied(self.user_vectors(users), vectors, items, part)
            for metric in metrics.values():
                metric.update_ranks(*ranks)
        return {name: float(metric.result()) for name, metric in metrics.items()}

    def serving_endpoint(self, k):
        """From features of users to the k best items (`number_of_best`)."""
        k = number_of_best(k, self.num_items)
        specification = self._user_specification
        if specification is None:
            specification = tf.nest.map_structure(_specification, input_structure(self.user_tower))
        catalogue = Catalogue(self.catalogue(), k)
        return Endpoint(
            lambda users: catalogue(self.user_vectors(users)),
            [specification],
            [self, catalogue],
            {
                "user_vectors": (self.user_vectors, [specification]),
                "item_vectors": (self.item_vectors, [tf.TensorSpec([None], tf.int64)]),
            },
        )

    def get_config(self):
        towers = [keras.saving.serialize_keras_object(t) for t in (self.user_tower, self.negatives)]
        shared = self._shared_layers()
        for tower in towers:
            _mark_shared(tower, {layer.name: id(layer) for layer in shared})
        return {
            "user_tower": towers[0],
            "item_tower": towers[1],
            "shared": sorted(layer.name for layer in shared),
            "name": self.name,
            "dtype": keras.saving.serialize_keras_object(self.dtype_policy),
        }

    @classmethod
    def from_config(cls, config, custom_objects=None):
        config = dict(config)
        for name in ("user_tower", "item_tower"):
            config[name] = keras.saving.deserialize_keras_object(
                config[name], custom_objects=custom_objects
            )
        shared = config.pop("shared")
        model = cls(**config)
        if sorted(layer.name for layer in model._shared_layers()) != shared:
            raise ValueError(
                f"The towers share the layers {shared}. Shared layers stay shared when Keras saves "
                "and loads a model, but not when it copies one. Save the model and load it with "
                "`keras.models.load_model`, or build a new model."
            )
        return model

    def _shared_layers(self):
        """The layers that both towers hold."""
        held = {id(layer) for layer in all_layers(self.negatives)}
        return [layer for layer in all_layers(self.user_tower) if id(layer) in held]


def _mark_shared(config, ids):
    """Says in a serialised tower which layers are one with those of the other, by their names.

    Keras' own marks get lost where a functional model copies what its layers gave.
    """
    if isinstance(config, dict):
        if config.get("name") in ids and "class_name" in config:
            config["shared_object_id"] = ids[config["name"]]
        config = list(config.values())
    if isinstance(config, (list, tuple)):
        for part in config:
            _mark_shared(part, ids)


def _specification(tensor):
    return tf.TensorSpec([None, *tensor.shape[1:]], tf.as_dtype(tensor.dtype))


def _pair(users, items, *weights):
    """A batch as the model is called with it: the own item is an input, and stands first."""
    return ((users, items), tf.zeros_like(items, tf.int32), *weights)


def _paired_batches(batches):
    """The same batches as the model is called with them, drawn as they were."""
    paired = map_batches(batches, _pair)
    if not dataset_tags.is_as_sampled(batches):
        return paired
    return dataset_tags.tag(paired, dataset_tags.sampling_of(batches), origin_of(batches))


def _paired(x, y):
    if isinstance(x, tf.data.Dataset):
        return _paired_batches(x), None
    return (x, y), np.zeros(len(y), np.int32)
