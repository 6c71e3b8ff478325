"""The architectures in Keras 3, for tfdp and for JAX-Privacy on Keras' JAX backend."""

import keras
import lora
import sizes
from keras import layers


def transformer(length, tied):
    ids = keras.Input((length,), dtype="int32")
    table = layers.ReversibleEmbedding(sizes.VOCABULARY, sizes.WIDTH, tie_weights=tied)
    x = table(ids)
    for _ in range(sizes.BLOCKS):
        normed = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(1, sizes.WIDTH)(normed, normed, use_causal_mask=True)
        hidden = layers.Dense(4 * sizes.WIDTH, "relu")(layers.LayerNormalization()(x))
        x = x + layers.Dense(sizes.WIDTH)(hidden)
    return keras.Model(ids, table(layers.LayerNormalization()(x), reverse=True))


def perceptron():
    hidden = [layers.Dense(512, "relu") for _ in range(3)]
    return keras.Sequential([keras.Input((256,)), *hidden, layers.Dense(10)])


def gru():
    return keras.Sequential([keras.Input((50, 32)), layers.GRU(64), layers.Dense(10)])


def convolutions():
    parts = []
    for filters, strides in ((32, 1), (32, 2), (64, 2)):
        parts += [
            layers.Conv2D(filters, 3, strides),
            layers.GroupNormalization(8),
            layers.Activation("relu"),
        ]
    return keras.Sequential(
        [keras.Input((32, 32, 3)), *parts, layers.GlobalAveragePooling2D(), layers.Dense(10)]
    )


def clicks(tables, rows, width):
    ids = keras.Input((tables,), dtype="int32")
    numbers = keras.Input((sizes.NUMBERS,))
    looked_up = [layers.Embedding(rows, width)(ids[:, i]) for i in range(tables)]
    x = layers.Concatenate()([*looked_up, numbers])
    for _ in range(2):
        x = layers.Dense(256, "relu")(x)
    return keras.Model([ids, numbers], layers.Dense(2)(x))


def encoder(length):
    ids = keras.Input((length,), dtype="int32")
    return keras.Model(ids, lora.encoder(ids, layers, keras.ops))


def build(name):
    keras.utils.set_random_seed(0)
    kind, options, _ = sizes.ARCHITECTURES[name]
    return globals()[kind](**options)
