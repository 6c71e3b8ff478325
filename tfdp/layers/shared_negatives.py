"""A softmax over each example's own item and negatives that all examples share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras
import numpy as np
import tensorflow as tf

from tfdp import _validate, accounting
from tfdp.accounting.charges.participant import PrivacyParticipant
from tfdp.data.provenance.origins import Origin
from tfdp.layers.accounted_weights import add_constant
from tfdp.layers.shared_scores import NoisedVectors, SharedScores, precise
from tfdp.runtime import ordering

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from tfdp.data.releases.frequency import FrequencyRelease

SIMILARITIES = ("dot", "cosine")
NOISE_AT = ("weights", "vectors")
# The logit of a negative that is the example's own item: exp of it is 0, and it has no gradient.
_NEVER = -1e9
_PUBLIC_LIST = "the list of items is public"
_PUBLIC_LAW = "the distribution that negatives are drawn from is public"
_PUBLIC_FEATURES = "the features of the items are public"


@keras.saving.register_keras_serializable(package="tfdp")
class SharedNegatives(PrivacyParticipant, keras.layers.Layer):
    """Scores each user's own item, and N negatives that are drawn once a step for all users.

    Train its logits with `keras.losses.SparseCategoricalCrossentropy(from_logits=True)`, the
    labels being 0: with u the user's vector, v_y that of its item, s their similarity over τ,

        ℓ = −s(u, v_y) + log( e^{s(u, v_y)} + Σ_{n ≠ y} e^{s(u, v_n) − log(N·q_n)} )

    whose last sum estimates that over all other items without bias.

    Formal guarantees: a user's loss depends only on their own record, the weights and the draw. No
    record changes the draw, and each gradient is clipped separately (MATH.md section 14).

    Args:
        item_tower: layer or model from items to vectors (B, d): from ids (B,), or with
            `item_features` from a dict of their columns.
        num_items: number of items M; ids are integers in [0, M). Public.
        num_negatives: N; `None` takes all items as negatives, draws nothing, and corrects nothing.
        frequencies: negatives are drawn in proportion to these: (M,) numbers that the caller
            declares public, or a `tfdp.data.private_frequency(...)` release of M − 1 items, which
            is charged. With a release, item 0 (its padding) is never drawn. `None` draws uniformly.
        item_features: dict of name to array (M, ...) of numbers: columns that `item_tower` takes
            in place of ids. Public.
        similarity: "dot", or "cosine".
        temperature: τ, positive.
        noise_at: where the negatives' part of the gradients is clipped and noised. "weights" does
            so at the item tower's weights, like all other gradients. "vectors" does so at the
            vectors of the items, N·d numbers. The item tower's own backward pass then reads no
            example, and takes as long as in a plain step, however deep the tower is. The gradients
            of the users' own items are noised at the vectors with `num_negatives=None`, and
            otherwise at the weights. "vectors" declares public everything that the tower knows of
            items apart from its weights. Small towers train better with noise at their weights.
        seed: of the draws, which are public.

    Call arguments:
        users: (B, d) vectors of the users.
        items: (B,) ids of their items.

    Returns:
        (B, 1 + N) logits of at least float32, the own item's first. A negative that is the own item
        has −1e9.

    Raises:
        ValueError: for arguments out of range.

    Example:

    ```python
    users, items = keras.Input((16,)), keras.Input((), dtype="int64")
    tower = keras.layers.Embedding(1_000_000, 64)
    logits = tfdp.layers.SharedNegatives(tower, 1_000_000)(keras.layers.Dense(64)(users), items)
    model = tfdp.make_private(keras.Model([users, items], logits))
    ```
    """

    def __init__(
        self,
        item_tower: keras.Layer,
        num_items: int,
        num_negatives: int | None = 1024,
        frequencies: ArrayLike | FrequencyRelease | None = None,
        item_features: dict[str, ArrayLike] | None = None,
        similarity: str = "dot",
        temperature: float = 1.0,
        noise_at: str = "weights",
        seed: int | None = None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.item_tower = item_tower
        self.num_items = _validate.count("num_items", num_items)
        self.num_negatives = num_negatives
        if num_negatives is not None:
            self.num_negatives = _validate.count("num_negatives", num_negatives)
        elif frequencies is not None:
            raise ValueError(
                "Argument `frequencies` must be None with `num_negatives=None`, which takes all "
                "items and draws none."
            )
        self.similarity = _validate.one_of("similarity", similarity, SIMILARITIES)
        self.temperature = _validate.positive("temperature", temperature)
        self.scores = SharedScores(name="scores")
        self.noise_at = _validate.one_of("noise_at", noise_at, NOISE_AT)
        self.seed = seed
        self.seed_generator = keras.random.SeedGenerator(seed)
        self.privacy_assumptions = [_PUBLIC_LIST]
        self.privacy_releases = []
        self.cumulative = self.columns = None
        if frequencies is not None:
            self._take_frequencies(frequencies)
        if item_features is not None:
            self._take_features(item_features)
        self.noised_vectors = None
        if noise_at == "vectors":
            self._note([], [_PUBLIC_FEATURES])
            self.noised_vectors = NoisedVectors(
                self.item_vectors, item_tower, num_negatives is None, name="noised_vectors"
            )

    def _take_frequencies(self, frequencies):
        is_release = hasattr(frequencies, "privacy_releases")
        origin = Origin.of(frequencies)
        values = np.asarray(frequencies.probabilities if is_release else frequencies, np.float64)
        if is_release:
            values = np.concatenate([[0.0], values[1:]])
            self._note(frequencies.privacy_releases, frequencies.privacy_assumptions)
        else:
            self._note(origin.releases, [*origin.assumptions, _PUBLIC_LAW])
        if values.shape != (self.num_items,) or not (
            np.all(np.isfinite(values) & (values >= 0)) and values.sum() > 0
        ):
            raise ValueError(
                f"Argument `frequencies` must hold {self.num_items} numbers of at least 0, one for "
                "each item (in a release of num_items − 1 items, the first is padding), with a "
                f"positive sum. Received: shape {values.shape}, from {np.min(values)} to "
                f"{np.max(values)}"
            )
        cumulative = np.cumsum(values / values.sum())
        self.cumulative = add_constant(self, "cumulative", cumulative, "float64")

    def _take_features(self, features):
        arrays = {name: np.asarray(values) for name, values in features.items()}
        for name, array in arrays.items():
            if array.shape[:1] != (self.num_items,) or array.dtype.kind not in "biuf":
                raise ValueError(
                    f"Argument `item_features` must hold arrays of numbers of {self.num_items} "
                    "rows; turn texts into ids first, as `keras.layers.StringLookup` does. "
                    f"Received: {name!r} of shape {array.shape}, dtype {array.dtype}"
                )
        origin = Origin.of(features)
        self._note(origin.releases, [*origin.assumptions, _PUBLIC_FEATURES])
        self.columns = {
            name: add_constant(
                self, f"feature_{name}", array, "float32" if array.dtype.kind == "f" else "int64"
            )
            for name, array in arrays.items()
        }

    def _note(self, releases, assumptions):
        self.privacy_releases += [e for e in releases if e not in self.privacy_releases]
        self.privacy_assumptions += [a for a in assumptions if a not in self.privacy_assumptions]

    def build(self, users_shape, items_shape):
        count = self.num_negatives or self.num_items
        items = keras.KerasTensor((count,), "int64")
        if self.columns is not None:
            items = {
                name: keras.KerasTensor((count, *v.shape[1:]), v.dtype)
                for name, v in self.columns.items()
            }
        vectors = self.item_tower(items)  # which makes the weights of what it is made of
        self.scores.build(users_shape, vectors.shape)
        if self.noised_vectors is not None:
            shape = (self.num_items, vectors.shape[1])
            self.noised_vectors.make_table(f"{self.name}/vectors", shape)

    def call(self, users, items):
        items = tf.cast(items, tf.int64)
        ids, correction = self.draw()
        of_shared = self.noised_vectors or self.item_vectors
        of_own = of_shared if self.num_negatives is None else self.item_vectors
        own, shared = of_own(items), of_shared(ids)
        users = precise(users)
        if self.similarity == "cosine":
            users = keras.ops.normalize(users)
        own = tf.reduce_sum(users * own, axis=1, keepdims=True) / self.temperature
        scores = self.scores(users, shared) / self.temperature
        scores -= tf.cast(correction, scores.dtype)
        hits = tf.equal(items[:, tf.newaxis], ids)
        return tf.concat([own, tf.where(hits, _NEVER, scores)], axis=1)

    def draw(self):
        """Negatives of a step: (N,) int64 ids and (N,) float32 log(N·q) of each."""
        if self.num_negatives is None:
            ids = tf.range(self.num_items, dtype=tf.int64)
            return ids, tf.zeros([self.num_items])
        shape, seed = (self.num_negatives,), self.seed_generator
        if self.cumulative is None:
            ids = keras.random.randint(shape, 0, self.num_items, dtype="int64", seed=seed)
            each = self.num_negatives / self.num_items
            return ids, tf.fill(shape, tf.constant(np.log(each), tf.float32))
        cumulative = tf.convert_to_tensor(self.cumulative.value)
        # Below the last sum, which rounding may have left under 1.
        uniform = keras.random.uniform(shape, 0.0, 1.0, dtype="float64", seed=seed)
        ids = ordering.search(cumulative, uniform * cumulative[-1], side="right")
        ids = tf.minimum(ids, self.num_items - 1)
        before = tf.where(ids > 0, tf.gather(cumulative, tf.maximum(ids - 1, 0)), 0.0)
        probability = tf.gather(cumulative, ids) - before
        return ids, tf.cast(tf.math.log(self.num_negatives * probability), tf.float32)

    def item_vectors(self, ids):
        """(B, d) vectors of items (B,), of norm 1 if the similarity is the cosine."""
        items = ids if self.columns is None else self.features(ids)
        vectors = precise(self.item_tower(items))
        return keras.ops.normalize(vectors) if self.similarity == "cosine" else vectors

    def features(self, ids):
        """Dict of the columns of items (B,)."""
        return {name: tf.gather(column.value, ids) for name, column in self.columns.items()}

    def compute_output_shape(self, users_shape, items_shape):
        return (users_shape[0], 1 + (self.num_negatives or self.num_items))

    def get_config(self):
        columns = self.columns and {
            name: (list(v.shape), v.dtype) for name, v in self.columns.items()
        }
        return {
            **super().get_config(),
            "item_tower": keras.saving.serialize_keras_object(self.item_tower),
            "num_items": self.num_items,
            "num_negatives": self.num_negatives,
            "frequencies": self.cumulative is not None,
            "item_features": columns,
            "similarity": self.similarity,
            "temperature": self.temperature,
            "noise_at": self.noise_at,
            "seed": self.seed,
            "releases": accounting.Ledger(self.privacy_releases).to_json(),
            "assumptions": self.privacy_assumptions,
        }

    @classmethod
    def from_config(cls, config):
        config = dict(config)
        releases = accounting.Ledger.from_json(config.pop("releases")).entries
        assumptions = config.pop("assumptions")
        config["item_tower"] = keras.saving.deserialize_keras_object(config["item_tower"])
        # The numbers are in the file of weights.
        num_items, columns = config["num_items"], config["item_features"]
        config["frequencies"] = np.ones(num_items) if config["frequencies"] else None
        config["item_features"] = columns and {
            name: np.zeros(shape, dtype) for name, (shape, dtype) in columns.items()
        }
        layer = cls(**config)
        layer.privacy_releases, layer.privacy_assumptions = list(releases), list(assumptions)
        return layer
