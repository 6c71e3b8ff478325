"""TF Privacy: fast gradient clipping and the vectorized optimizer, on Keras 2.

Both run through the train function of `fit`; fast gradient clipping under tf.function and
compiled by XLA.
"""

import importlib.metadata
import os
import types

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import lora
import protocol
import sizes
import tensorflow as tf
import tensorflow_privacy
from tensorflow_privacy.privacy.fast_gradient_clipping import layer_registry
from tensorflow_privacy.privacy.fast_gradient_clipping.registry_functions import (
    layer_normalization,
    multi_head_attention,
)
from tensorflow_privacy.privacy.keras_models import dp_keras_model
from tensorflow_privacy.privacy.optimizers import dp_optimizer_keras_vectorized as vectorized

layers = tf.keras.layers
tf.config.threading.set_intra_op_parallelism_threads(sizes.THREADS)
tf.config.threading.set_inter_op_parallelism_threads(sizes.THREADS)


class Tied(layers.Layer):
    """Logits from the table that looked the inputs up. Keras 2 has no layer for that."""

    def __init__(self, table):
        super().__init__()
        self.table = table

    def call(self, x):
        return tf.matmul(x, self.table.embeddings, transpose_b=True)


def transformer(length, tied):
    ids = tf.keras.Input((length,), dtype="int32")
    table = layers.Embedding(sizes.VOCABULARY, sizes.WIDTH)
    x = table(ids)
    for _ in range(sizes.BLOCKS):
        normed = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(1, sizes.WIDTH)(normed, normed, use_causal_mask=True)
        hidden = layers.Dense(4 * sizes.WIDTH, "relu")(layers.LayerNormalization()(x))
        x = x + layers.Dense(sizes.WIDTH)(hidden)
    head = Tied(table) if tied else layers.Dense(sizes.VOCABULARY, use_bias=False)
    return ids, head(layers.LayerNormalization()(x))


def chain(shape, parts):
    x = inputs = tf.keras.Input(shape)
    for part in parts:
        x = part(x)
    return inputs, layers.Dense(10)(x)


def perceptron():
    return chain((256,), [layers.Dense(512, "relu") for _ in range(3)])


def gru():
    return chain((50, 32), [layers.GRU(64)])


def convolutions():
    parts = []
    for filters, strides in ((32, 1), (32, 2), (64, 2)):
        parts += [
            layers.Conv2D(filters, 3, strides),
            layers.GroupNormalization(8),
            layers.Activation("relu"),
        ]
    return chain((32, 32, 3), [*parts, layers.GlobalAveragePooling2D()])


def clicks(tables, rows, width):
    ids = tf.keras.Input((tables,), dtype="int32")
    numbers = tf.keras.Input((sizes.NUMBERS,))
    looked_up = [layers.Embedding(rows, width)(ids[:, i]) for i in range(tables)]
    x = layers.Concatenate()([*looked_up, numbers])
    for _ in range(2):
        x = layers.Dense(256, "relu")(x)
    return [ids, numbers], layers.Dense(2)(x)


def encoder(length):
    ids = tf.keras.Input((length,), dtype="int32")
    ops = types.SimpleNamespace(reshape=tf.reshape, einsum=tf.einsum, softmax=tf.nn.softmax)
    return ids, lora.encoder(ids, layers, ops)


def registry():
    """Every rule of TF Privacy for a layer of Keras that these models have."""
    found = layer_registry.make_default_layer_registry()
    found.insert(layers.LayerNormalization, layer_normalization.layer_normalization_computation)
    found.insert(
        layers.MultiHeadAttention, multi_head_attention.multi_head_attention_layer_computation
    )
    return found


class MeanOverPositions(tf.keras.losses.Loss):
    """One loss of each example; Keras' cross-entropy gives one of each position."""

    def call(self, labels, logits):
        loss = tf.keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
        return tf.reduce_mean(tf.reshape(loss, [tf.shape(loss)[0], -1]), 1)


class Trainer:
    def __init__(self, name, method, optimizer, noise_multiplier, clip_norm, batch_size):
        tf.keras.utils.set_random_seed(0)
        kind, options, _ = sizes.ARCHITECTURES[name]
        ends = globals()[kind](**options)
        compiled = method.endswith("XLA")
        arguments = {"learning_rate": sizes.RATES[optimizer]}
        optimizer = {"adam": "Adam", "sgd": "SGD"}[optimizer]
        reduction = tf.keras.losses.Reduction.AUTO
        if method.startswith("DPModel"):
            # The model compiles its own step: `use_xla`.
            model = dp_keras_model.DPModel(
                l2_norm_clip=clip_norm,
                noise_multiplier=noise_multiplier,
                use_xla=compiled,
                layer_registry=registry(),
                inputs=ends[0],
                outputs=ends[1],
            )
            if not model._enable_fast_peg_computation:
                # The library's own fallback: clipped gradients of single examples.
                known = registry()
                kinds = {type(v).__name__ for v in model.layers if _without_rule(v, known)}
                self.note = f"no rule of fast gradient clipping for {', '.join(sorted(kinds))}"
            compiled = False
        else:
            model = tf.keras.Model(*ends)
        if method.startswith("vectorized"):
            kind = getattr(vectorized, f"VectorizedDPKeras{optimizer}Optimizer")
            arguments |= {"l2_norm_clip": clip_norm, "noise_multiplier": noise_multiplier}
            reduction = tf.keras.losses.Reduction.NONE
        else:
            kind = getattr(tf.keras.optimizers, optimizer)
        model.compile(
            kind(**arguments), loss=MeanOverPositions(reduction), jit_compile=compiled or None
        )
        self.model, self.function = model, model.make_train_function()

    def feed(self, inputs, labels):
        inputs = inputs if len(inputs) > 1 else inputs[0]
        data = tf.data.Dataset.from_tensors((inputs, labels)).repeat()
        self.batches = iter(data.prefetch(1))

    def step(self):
        results = self.function(self.batches)
        return {name: float(value) for name, value in results.items()}

    def get(self):
        return [v.numpy() for v in self.model.trainable_variables]

    def set(self, values):
        for variable, value in zip(self.model.trainable_variables, values, strict=True):
            variable.assign(value)


def _without_rule(layer, known):
    return bool(layer.trainable_variables) and not known.is_elem(layer)


if __name__ == "__main__":
    protocol.serve(
        Trainer,
        {
            "tensorflow-privacy": tensorflow_privacy.__version__,
            "tensorflow": tf.__version__,
            "keras": importlib.metadata.version("keras"),
        },
    )
