"""A text classifier from raw strings, private by forward noise."""

import hashlib
import os
from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

from tfdp import accounting
from tfdp._compat.keras import all_layers
from tfdp._validate import one_of
from tfdp.accounting.budget import PrivacyBudget
from tfdp.data.provenance.origins import Origin
from tfdp.data.releases.representations import released_once
from tfdp.errors import BudgetError
from tfdp.layers import DPForwardNoise
from tfdp.layers.text_tokenizer import TextTokenizer
from tfdp.models.endpoint import Endpoint
from tfdp.models.released_head import release_head
from tfdp.models.text_encoder import POOLINGS, encode, small_text_encoder
from tfdp.training.checks.noise_inputs import proved_function
from tfdp.training.dp_model import DPModel
from tfdp.training.plain_training import change_by_release


def _texts(x):
    """Lists and arrays of strings as a tensor, which is what Keras takes; the rest as it is."""
    given = isinstance(x, (list, tuple, np.ndarray)) and len(x) > 0
    if given and np.asarray(x).dtype.kind in "USO":
        texts = tf.constant(np.asarray(x, object).tolist())
        texts.origin = Origin.of(x)
        return texts
    return x


def _labels(y):
    return Origin.of(y).on(np.asarray(y)) if isinstance(y, (list, tuple)) else y


@keras.saving.register_keras_serializable(package="tfdp")
class TextClassifier(DPModel):
    """Raw strings to class logits: tokenizer, encoder, pooling, forward noise, linear head.

    There are three ways to train, depending on the argument of `fit`:

    - texts and labels: every text's noisy representation is released *once*, and the head is
      trained on the release for as many epochs as you want, at the cost of one Gaussian. This is
      the default, and the cheapest. If the encoder's weights change, another release is made.
    - `tfdp.data.shuffled_epochs((texts, labels), batch_size)`: fresh noise in every epoch, and one
      more copy of every text in the ledger each time. Give `copies` with a budget.
    - a `tfdp.data.Release`'s `.batches(...)`, made by `release` or loaded from its file. Or call
      `fit_head(release)`, which removes the noise from the moments and needs no training.

    With a `DPOptimizer` and without forward noise, it trains by DP-SGD, including the encoder if
    `train_backbone`. Labels are then covered.

    Formal guarantees: those of `DPForwardNoise` and `release_once`: the texts are covered, the
    labels are not, and the encoder must not have learned from these texts before.

    Args:
        vocabulary: path of a WordPiece vocabulary file, or the list of its tokens; public.
        num_classes: number of classes.
        backbone: a keras-hub backbone (`keras_hub.models.BertBackbone.from_preset(...)`), or None
            for a small transformer of random weights.
        max_length: T, number of tokens.
        pooling: "mean" or "cls".
        normalize: whether to scale representations to norm `clip_norm`, in training and at
            inference. Without it, long representations are clipped in training only, and at
            inference the head sees norms that it never saw before.
        clip_norm: C, the largest norm of a representation.
        noise_multiplier: σ/C of the forward noise.
        budget: `tfdp.PrivacyBudget` to which the noise is calibrated, in place of
            `noise_multiplier`. With neither there is no forward noise.
        copies: number of times that each text will be released: 1 for a release, E for E epochs.
        gradient, adjacency: as for `DPForwardNoise`.
        train_backbone: whether the encoder's weights are trainable.

    Call arguments:
        inputs: string tensor (batch,), or float representations (batch, d) that are released.

    Returns:
        Logits (batch, num_classes).

    Raises:
        ValueError: if an argument is out of range.

    Example:

    ```python
    model = tfdp.models.TextClassifier(
        "vocab.txt", num_classes=2, backbone=keras_hub.models.BertBackbone.from_preset(folder),
        budget=tfdp.PrivacyBudget(3, 1e-5))
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(texts, labels, epochs=20)
    print(model.privacy_statement())
    tfdp.serving.export(model, "exported/")
    ```
    """

    privacy_unit = "one text"

    def __init__(
        self,
        vocabulary: str | os.PathLike | Sequence[str],
        num_classes: int,
        backbone: keras.Model | None = None,
        max_length: int = 64,
        pooling: str = "mean",
        normalize: bool = True,
        clip_norm: float = 1.0,
        noise_multiplier: float | None = None,
        budget: PrivacyBudget | None = None,
        copies: int = 1,
        gradient: str = "stop",
        adjacency: str = "zero_out",
        train_backbone: bool = False,
        **kwargs,
    ):
        super().__init__(**kwargs)
        one_of("pooling", pooling, POOLINGS)
        if budget is not None and noise_multiplier is not None:
            raise ValueError(
                "At most one of the arguments `budget` and `noise_multiplier` must be given. "
                f"Received: budget={budget}, noise_multiplier={noise_multiplier}"
            )
        self.budget = budget
        if budget is not None:
            noise_multiplier = accounting.calibrate_forward_noise(budget, copies, adjacency)
        self.tokenizer = TextTokenizer(vocabulary, max_length, name="tokenizer")
        if backbone is None:
            backbone = small_text_encoder(self.tokenizer.vocabulary_size, max_length)
        self.backbone = backbone
        self.pooling = pooling
        self.normalize = normalize
        self.clip_norm = float(clip_norm)
        self.noise = None
        if noise_multiplier is not None:
            self.noise = DPForwardNoise(
                clip_norm, noise_multiplier, gradient, adjacency, name="forward_noise"
            )
        self.head = keras.layers.Dense(num_classes, name="head")
        self.num_classes = num_classes
        self.copies = copies
        self._releases_by_data = {}
        self(tf.constant(["a text"]))
        # One by one: a layer that was saved as frozen does not tell those that it makes itself.
        for layer in all_layers(backbone):
            layer.trainable = train_backbone

    def represent(self, inputs, training=False):
        """(batch, d) representations of texts, before any noise. They are as private as the texts.

        Args:
            inputs: string tensor (batch,).
            training: whether dropout is active.
        """
        h = encode(self.backbone, self.tokenizer(inputs), self.pooling, training)
        return self.clip_norm * keras.ops.normalize(h, axis=-1) if self.normalize else h

    def call(self, inputs, training=False):
        if inputs.dtype != tf.string:
            return self.head(inputs)
        h = self.represent(inputs, training=training)
        if self.noise is not None:
            h = self.noise(h, training=training)
        return self.head(h)

    def release(self, texts, labels, path=None, batch_size=256):
        """Releases every text's noisy representation once; training on it costs nothing more.

        Args:
            texts: sequence of n strings.
            labels: n labels, which are *not* private.
            path: file to keep the release in; must not exist.
            batch_size: texts encoded at once.

        Returns:
            A `tfdp.data.Release`.

        Raises:
            ValueError: if the model has no forward noise, or fresh noise in every epoch, or its
                encoder is trained.
        """
        if self.noise is None or self.copies != 1 or self.backbone.trainable:
            raise ValueError(
                "A release needs forward noise, one noisy copy of each text, and an encoder that "
                "is not trained. Pass `noise_multiplier` or `budget`, `copies=1` and "
                "`train_backbone=False`. Or train without a release: fit on "
                "`tfdp.data.shuffled_epochs((texts, labels), batch_size)`. Received: "
                f"noise={self.noise}, copies={self.copies}, "
                f"train_backbone={self.backbone.trainable}"
            )
        h, notes = self._represented(texts, batch_size)
        noise = self.noise
        return released_once(
            h, labels, noise.clip_norm, noise.noise_multiplier, None, noise.adjacency, path, notes
        )

    def representations(self, texts, batch_size=256):
        """float32 (n, d): `represent` of many texts, each alone, without dropout."""
        return self._represented(texts, batch_size)[0]

    def _represented(self, texts, batch_size):
        """Representations, and the `Notes` of what was proved of them."""
        origin, texts = Origin.of(texts), np.asarray(texts, object).tolist()
        size = max(2, min(batch_size, len(texts)))
        spec = tf.TensorSpec([size], tf.string)
        encoder, notes = proved_function(self, self.represent, spec)
        full = texts + [""] * (-len(texts) % size)
        starts = range(0, len(full), size)
        parts = [encoder(tf.constant(full[i : i + size])).numpy() for i in starts]
        return origin.on(np.concatenate(parts)[: len(texts)]), notes

    def fit(self, x=None, y=None, batch_size=None, epochs=1, verbose="auto", callbacks=None, **kw):
        """As `DPModel.fit`. Plain texts are released once, at the first fit on them."""
        is_text = not isinstance(x, tf.data.Dataset) and x is not None
        if is_text and self.noise is not None and self.copies == 1:
            for name in ("sample_weight", "validation_split"):
                if kw.get(name) is not None and np.any(kw[name]):
                    raise ValueError(
                        f"Argument `{name}` cannot be given with texts that are released once, "
                        "because the release determines the batches. You may pass "
                        "`class_weight`, or `validation_data` of other texts. Received: "
                        f"{name}={kw[name]!r}"
                    )
            release = self._release_of(x, y)
            # One of equal data that was made before may not know what these were made with.
            self.charge_releases(Origin.of((x, y)).releases)
            balanced = np.issubdtype(release.targets.dtype, np.integer)
            x, y, batch_size = release.batches(batch_size or 32, balanced), None, None
        else:
            x, y = _texts(x), _labels(y)
        if isinstance(kw.get("validation_data"), (list, tuple)):
            first, *rest = kw["validation_data"]
            kw["validation_data"] = (_texts(first), *map(_labels, rest))
        return super().fit(x, y, batch_size, epochs, verbose, callbacks, **kw)

    def evaluate(self, x=None, y=None, *args, **kwargs):
        """As `keras.Model.evaluate`; texts may be a list or an array of strings."""
        return super().evaluate(_texts(x), _labels(y), *args, **kwargs)

    def predict(self, x, *args, **kwargs):
        """As `keras.Model.predict`; texts may be a list or an array of strings."""
        return super().predict(_texts(x), *args, **kwargs)

    def _release_of(self, texts, labels):
        """The release of these data by this object; another object's would be another draw."""
        digest = hashlib.sha256()
        for part in self._parts_of_release(texts, labels):
            digest.update(b"%d:" % len(part))  # no other parts join to the same bytes
            digest.update(part)
        known = self._releases_by_data
        if digest.digest() not in known:
            known[digest.digest()] = self._within_budget(self.release(texts, labels))
        return known[digest.digest()]

    def _within_budget(self, release):
        """The release; one that is refused was seen by nobody, and costs nothing."""
        if self.budget is None:
            return release
        ledger = accounting.Ledger([*self.ledger.entries, *release.privacy_releases])
        spent = ledger.epsilon(self.budget.delta)
        if spent > self.budget.epsilon:
            raise BudgetError(
                f"Another release of texts would raise ε to {spent:.4g} at δ = "
                f"{self.budget.delta:.3g}, beyond the budget, which an earlier release has used. "
                "Keep one release, `model.release(texts, labels, path)`, and fit on its batches: "
                "`tfdp.data.Release.load(path).batches(32)` costs once, in any process. "
                f"Received: budget={self.budget}"
            )
        return release

    def _parts_of_release(self, texts, labels):
        """Byte strings of all that a release of these data depends on."""
        tokenizer, noise, weights = self.tokenizer, self.noise, self.backbone.weights
        yield repr(
            (len(weights), tokenizer.vocabulary, tokenizer.max_length, tokenizer.lower_case)
            + (self.pooling, self.normalize, self.clip_norm)
            + (noise.clip_norm, noise.noise_multiplier, noise.adjacency)
        ).encode()
        # Whole, not some rows: a release of another encoder must not pass for this one's.
        for value in (labels, *(weight.value for weight in weights)):
            array = np.asarray(value)
            yield repr((array.dtype.str, array.dtype.name, array.shape)).encode()
            # The bytes of objects are their addresses.
            yield repr(array.tolist()).encode() if array.dtype.hasobject else array.tobytes()
        for text in texts:
            yield text.encode() if isinstance(text, str) else bytes(text)

    def fit_head(self, release, ridge=0.01):
        """Sets the head from a release without training, and charges the release.

        Args:
            release: a `tfdp.data.Release` of this model's `representations`.
            ridge: as for `release_head`.
        """
        weights = release_head(release, ridge)
        change_by_release(self, release, lambda: self.head.set_weights(weights))

    def serving_endpoint(self, k):
        """From raw strings to labels and probabilities; loading it needs `tensorflow_text`."""

        def serve(sentences):
            probabilities = tf.nn.softmax(tf.cast(self(sentences, training=False), tf.float32))
            return {
                "labels": tf.argmax(probabilities, axis=-1, output_type=tf.int32),
                "probabilities": probabilities,
            }

        signature = [tf.TensorSpec([None], tf.string, name="sentences")]
        # Not the model: Keras would trace it once more, on floats.
        return Endpoint(serve, signature, [self.tokenizer, self.backbone, self.head])

    def get_config(self):
        noise = self.noise
        return {
            "vocabulary": self.tokenizer.vocabulary,
            "num_classes": self.num_classes,
            "backbone": keras.saving.serialize_keras_object(self.backbone),
            "max_length": self.tokenizer.max_length,
            "pooling": self.pooling,
            "normalize": self.normalize,
            "clip_norm": self.clip_norm,
            "noise_multiplier": noise.noise_multiplier if noise and not self.budget else None,
            "budget": [self.budget.epsilon, self.budget.delta] if self.budget else None,
            "copies": self.copies,
            "gradient": "stop" if noise is None else noise.gradient,
            "adjacency": "zero_out" if noise is None else noise.adjacency,
            "train_backbone": self.backbone.trainable,
            "name": self.name,
        }

    @classmethod
    def from_config(cls, config, custom_objects=None):
        config = dict(config)
        if config["budget"] is not None:
            config["budget"] = accounting.PrivacyBudget(*config["budget"])
        config["backbone"] = keras.saving.deserialize_keras_object(
            config["backbone"], custom_objects=custom_objects
        )
        return cls(**config)
