"""Encoders of token ids for the text classifier."""

import keras
import tensorflow as tf

from tfdp.layers.item_embedding import LearnedPositions

POOLINGS = ("mean", "cls")


def small_text_encoder(vocabulary_size, max_length, width=64, depth=2, num_heads=2, dropout=0.1):
    """A small transformer encoder with the inputs and output of a keras-hub backbone.

    Args:
        vocabulary_size: number of token ids.
        max_length: T.
        width: d, of the representations.
        depth: number of blocks.
        num_heads: of the attention.
        dropout: rate.

    Returns:
        A `keras.Model` from "token_ids" and "padding_mask", int32 (batch, T), to "sequence_output"
        (batch, T, d).
    """
    ids = keras.Input((max_length,), dtype="int32", name="token_ids")
    mask = keras.Input((max_length,), dtype="int32", name="padding_mask")
    x = keras.layers.Embedding(vocabulary_size, width, embeddings_initializer=_initial())(ids)
    x = LearnedPositions(max_length, _initial())(x)
    allowed = keras.ops.cast(mask, "bool")[:, None, :]
    for _ in range(depth):
        normed = keras.layers.LayerNormalization(epsilon=1e-6)(x)
        attention = keras.layers.MultiHeadAttention(num_heads, width // num_heads, dropout=dropout)
        x = x + attention(normed, normed, attention_mask=allowed)
        normed = keras.layers.LayerNormalization(epsilon=1e-6)(x)
        hidden = keras.layers.Dense(4 * width, activation="gelu")(normed)
        x = x + keras.layers.Dropout(dropout)(keras.layers.Dense(width)(hidden))
    x = keras.layers.LayerNormalization(epsilon=1e-6)(x)
    return keras.Model(
        {"token_ids": ids, "padding_mask": mask}, {"sequence_output": x}, name="small_text_encoder"
    )


def _initial():
    return keras.initializers.RandomNormal(stddev=0.02)


def encode(backbone, tokens, pooling, training):
    """(batch, d) representations of token ids.

    Args:
        backbone: a keras-hub backbone, or a model like it.
        tokens: dict from `TextTokenizer`.
        pooling: "mean" over the text's tokens, or "cls", the first one's.
        training: whether dropout is active.
    """
    wanted = list(backbone.input) if isinstance(backbone.input, dict) else ["token_ids"]
    outputs = backbone({name: tokens[name] for name in wanted}, training=training)
    sequence = outputs["sequence_output"] if isinstance(outputs, dict) else outputs
    if pooling == "cls":
        return sequence[:, 0]
    weights = tf.cast(tokens["padding_mask"], sequence.dtype)[..., tf.newaxis]
    return tf.reduce_sum(sequence * weights, axis=1) / tf.reduce_sum(weights, axis=1)
