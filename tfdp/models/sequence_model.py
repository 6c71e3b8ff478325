"""What every next-item model shares: a tied embedding, a causal encoder, a full-softmax head."""

import keras
import tensorflow as tf

from tfdp._validate import count
from tfdp.layers.item_embedding import LearnedPositions, PopularityPrior
from tfdp.layers.transition_prior import TransitionPrior
from tfdp.models.next_item import NextItemModel, without_padding


class SequenceModel(NextItemModel):
    """Next-item prediction over sequences of item ids (B, T), right-aligned, 0 is padding.

    Returns logits (B, T, num_items + 1): position t scores every item as the next one. Index 0
    is padding and never a target. Compiled without a loss it takes the cross-entropy over all
    items, ignoring padding.

    Args:
        num_items: number of items; ids run from 1. Public.
        max_length: T. Public.
        dim: width d of embeddings and activations.
        dropout: rate.
        tied: whether look-up and output head share one table.
        embedding_stddev: standard deviation of the initial embeddings.
        popularity_prior: item frequencies (as `item_frequency` of `DPFormer`) whose logarithm is
            added to the logits as a constant: what is already known about popularity need not be
            learned from noisy gradients. `None` adds nothing.
        transitions: a `tfdp.data.TransitionRelease`, or a `tfdp.layers.TransitionPrior` around
            one, whose log-probabilities are added to the logits: the encoder learns what the
            release does not say. It knows popularity, too: `popularity_prior` must be `None`.
    """

    def __init__(
        self,
        num_items,
        max_length,
        dim=64,
        dropout=0.2,
        tied=True,
        embedding_stddev=0.02,
        popularity_prior=None,
        transitions=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.num_items = count("num_items", num_items)
        self.max_length = count("max_length", max_length)
        self.dim = dim
        self.dropout = dropout
        self.tied = tied
        self.embedding_stddev = embedding_stddev
        self.embedding = keras.layers.ReversibleEmbedding(
            self.num_items + 1,
            dim,
            tie_weights=tied,
            embeddings_initializer=keras.initializers.RandomNormal(stddev=embedding_stddev),
            name="items",
        )
        self.embedding_dropout = keras.layers.Dropout(dropout)
        if popularity_prior is not None and not isinstance(popularity_prior, PopularityPrior):
            popularity_prior = PopularityPrior(self.num_items, popularity_prior, name="popularity")
        self.popularity_prior = popularity_prior
        if transitions is not None and not isinstance(transitions, TransitionPrior):
            transitions = TransitionPrior(transitions, name="transitions")
        if transitions is not None and popularity_prior is not None:
            raise ValueError(
                "At most one of the arguments `transitions` and `popularity_prior` must be "
                "given: transitions contain the popularity of items. Received: "
                f"popularity_prior={popularity_prior}, transitions={transitions}"
            )
        if transitions is not None and transitions.num_items != self.num_items:
            raise ValueError(
                f"Argument `transitions` must be about num_items={self.num_items} items. "
                f"Received: transitions of {transitions.num_items} items"
            )
        self.transitions = transitions

    def build(self, input_shape):
        self.embedding.build()
        self.build_encoder((*input_shape, self.dim))

    def call(self, inputs, training=None):
        ids = _integers(inputs)
        logits = self.score(self.encode(ids, training))
        return logits if self.transitions is None else self.transitions(logits, ids)

    def score(self, hidden):
        """(B, T, d) representations to logits (B, T, num_items + 1)."""
        logits = self.embedding(hidden, reverse=True)
        return logits if self.popularity_prior is None else self.popularity_prior(logits)

    def encode(self, ids, training):
        """(B, T) ids to (B, T, d) representations of the positions."""
        raise NotImplementedError

    def build_encoder(self, shape):
        raise NotImplementedError

    def score_next(self, ids):
        ids = _integers(ids)
        hidden = self.encode(ids, False)[:, -1:]
        scores = tf.cast(self.score(hidden)[:, 0], tf.float32)
        if self.transitions is not None:
            scores += self.transitions.gate * self.transitions.next_log_probabilities(ids)
        return without_padding(scores)

    def compile(self, optimizer="rmsprop", loss=None, **kwargs):
        if loss is None:
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)
        super().compile(optimizer, loss, **kwargs)

    def compute_output_shape(self, input_shape):
        return (*input_shape, self.num_items + 1)

    def get_config(self):
        return {
            "num_items": self.num_items,
            "max_length": self.max_length,
            "dim": self.dim,
            "dropout": self.dropout,
            "tied": self.tied,
            "embedding_stddev": self.embedding_stddev,
            "popularity_prior": keras.saving.serialize_keras_object(self.popularity_prior),
            "transitions": keras.saving.serialize_keras_object(self.transitions),
            "name": self.name,
            "dtype": keras.saving.serialize_keras_object(self.dtype_policy),
        }

    @classmethod
    def from_config(cls, config, custom_objects=None):
        config = dict(config)
        for name in ("popularity_prior", "item_frequency", "transitions"):
            if isinstance(config.get(name), dict):
                config[name] = keras.saving.deserialize_keras_object(
                    config[name], custom_objects=custom_objects
                )
        return cls(**config)


def _integers(ids):
    """Ids of a type that look-ups take, and none narrower than theirs: 2³² + 1 is not item 1."""
    ids = tf.convert_to_tensor(ids)
    return ids if ids.dtype == tf.int32 else tf.cast(ids, tf.int64)


def positions(max_length, stddev):
    """Learned positions, as small at the start as the embeddings."""
    return LearnedPositions(
        max_length, initializer=keras.initializers.RandomNormal(stddev=stddev), name="positions"
    )


def causal_mask(ids):
    """(B, T, T): earlier positions and the position itself, padding excluded.

    A position of padding may look at itself, so that no row of the mask is empty.
    """
    length = ids.shape[1]
    index = tf.range(length)
    causal = index[:, tf.newaxis] >= index[tf.newaxis]
    itself = index[:, tf.newaxis] == index[tf.newaxis]
    return (causal & tf.not_equal(ids, 0)[:, tf.newaxis]) | itself
