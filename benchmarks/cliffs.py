"""Where privacy could cost much: one private step against one plain Keras step of small models.

Recurrent layers, convolutions, layers without a rule, with and without dropout. Both steps are
timed alternately in one process, so that whatever else the machine does hits both. Writes JSON.

    python benchmarks/cliffs.py [--only LSTM GRU] [--out benchmarks/results/cliffs.json]
"""

import argparse
import os
import statistics
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import record
import tensorflow as tf
from keras import layers

import tfdp

SEQUENCE, IMAGE, VOLUME, ROW, WORDS = (50, 32), (32, 32, 3), (8, 16, 16, 3), (64,), 2_000


class RawWeight(layers.Layer):
    """Reads a weight in `call`, as layers of one's own do, and has no rule."""

    def __init__(self, rate=0.0):
        super().__init__()
        self.dropout = layers.Dropout(rate)

    def build(self, shape):
        self.w = self.add_weight(name="w", shape=(shape[-1], 64))

    def call(self, x, training=None):
        return keras.ops.relu(keras.ops.matmul(self.dropout(x, training=training), self.w))


def chain(shape, *parts, batch=64, dtype="float32", jit=False):
    """(function that makes a model with one output, shape of an example, its dtype, batch, XLA)."""

    def build():
        return keras.Sequential([keras.Input(shape, dtype=dtype), *(part() for part in parts),
                                 layers.Dense(1)])  # fmt: skip

    return build, shape, dtype, batch, jit


def of(layer, *args, **kwargs):
    return lambda: layer(*args, **kwargs)


def both_ways(layer, *args, **kwargs):
    return lambda: layers.Bidirectional(layer(*args, **kwargs))


LSTM, GRU, POOLED = layers.LSTM, layers.GRU, of(layers.GlobalAveragePooling2D)
DROPOUT = {"dropout": 0.2}
BOTH = {"dropout": 0.2, "recurrent_dropout": 0.2}
MASKED = of(layers.Embedding, WORDS, 32, mask_zero=True)
ARCHITECTURES = {
    "raw weight": chain(ROW, of(RawWeight), of(RawWeight)),
    "raw weight, dropout": chain(ROW, of(RawWeight, 0.2), of(RawWeight, 0.2)),
    "raw weight over time, dropout": chain(
        SEQUENCE, of(RawWeight, 0.2), of(layers.GlobalAveragePooling1D)
    ),
    "small MLP": chain(ROW, of(layers.Dense, 64, "relu"), of(layers.Dense, 64, "relu")),
    "LSTM": chain(SEQUENCE, of(LSTM, 64)),
    "LSTM, dropout": chain(SEQUENCE, of(LSTM, 64, **DROPOUT)),
    "LSTM, recurrent dropout": chain(SEQUENCE, of(LSTM, 64, **BOTH)),
    "LSTM, XLA": chain(SEQUENCE, of(LSTM, 64), jit=True),
    "LSTM, words, masked": chain((50,), MASKED, of(LSTM, 64), dtype="int32"),
    "LSTM, two": chain(SEQUENCE, of(LSTM, 64, return_sequences=True), of(LSTM, 64)),
    "LSTM, both ways": chain(SEQUENCE, both_ways(LSTM, 32)),
    "LSTM, both ways, dropout": chain(SEQUENCE, both_ways(LSTM, 32, **BOTH)),
    "LSTM cells": chain(
        SEQUENCE, lambda: layers.RNN([layers.LSTMCell(64), layers.LSTMCell(64)])
    ),
    "GRU": chain(SEQUENCE, of(GRU, 64)),
    "GRU, dropout": chain(SEQUENCE, of(GRU, 64, **DROPOUT)),
    "GRU, recurrent dropout": chain(SEQUENCE, of(GRU, 64, **BOTH)),
    "SimpleRNN": chain(SEQUENCE, of(layers.SimpleRNN, 64)),
    "ConvLSTM2D": chain(
        (6, 16, 16, 3), of(layers.ConvLSTM2D, 8, 3, padding="same"), POOLED, batch=16
    ),
    "Conv3D": chain(VOLUME, of(layers.Conv3D, 8, 3, activation="relu"),
                    of(layers.GlobalAveragePooling3D), batch=16),
    "SeparableConv2D": chain(IMAGE, of(layers.Conv2D, 16, 3), of(layers.SeparableConv2D, 32, 3),
                             POOLED, batch=32),
    "DepthwiseConv2D": chain(IMAGE, of(layers.Conv2D, 16, 3), of(layers.DepthwiseConv2D, 3),
                             POOLED, batch=32),
    "Conv2D": chain(IMAGE, of(layers.Conv2D, 16, 3, activation="relu"),
                    of(layers.Conv2D, 32, 3, activation="relu"), POOLED, batch=32),
    "Conv2DTranspose": chain(IMAGE, of(layers.Conv2D, 16, 3, 2, activation="relu"),
                             of(layers.Conv2DTranspose, 8, 3, 2), POOLED, batch=32),
    "Conv1D on words": chain((50,), of(layers.Embedding, WORDS, 32),
                             of(layers.Conv1D, 64, 5, activation="relu"),
                             of(layers.GlobalMaxPooling1D), dtype="int32"),
}  # fmt: skip


def steps(name):
    """Two functions that run one training step each, on the same data."""
    build, shape, dtype, batch, jit = ARCHITECTURES[name]
    generator = np.random.default_rng(0)
    if dtype == "int32":
        lengths = generator.integers(10, shape[0] + 1, (batch, 1))
        x = generator.integers(1, WORDS, (batch, *shape)) * (np.arange(shape[0]) < lengths)
    else:
        x = generator.normal(size=(batch, *shape))
    x, y = tf.constant(x, dtype), tf.constant(generator.normal(size=(batch, 1)), tf.float32)
    made = {}
    for kind in ("plain", "private"):
        model, data, optimizer = build(), (x, y), keras.optimizers.Adam(1e-3)
        if kind == "private":
            model, data = tfdp.make_private(model), (x, y, tf.ones([batch]))
            optimizer = tfdp.optimizers.DPOptimizer(
                optimizer, noise_multiplier=1.0, num_examples=100_000, expected_batch_size=batch
            )
        model.compile(optimizer, loss="mse", jit_compile=jit)
        optimizer.build(model.trainable_variables)
        function = tf.function(model.train_step, jit_compile=jit, autograph=False)
        made[kind] = lambda function=function, data=data: function(data)
    return made


def run(step):
    start = time.perf_counter()
    [float(value) for value in step().values()]
    return time.perf_counter() - start


def measure(name, seconds):
    made = steps(name)
    first = {kind: run(step) for kind, step in made.items()}
    for step in made.values():
        run(step)
    taken = {kind: [] for kind in made}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(taken["plain"]) < 10:
        for kind, step in made.items():
            taken[kind].append(run(step))
    plain, private = (statistics.median(taken[kind]) for kind in ("plain", "private"))
    return {
        "name": name, "repeats": len(taken["plain"]),
        "plain_seconds": plain, "private_seconds": private, "ratio": private / plain,
        "ratio_of_fastest": min(taken["private"]) / min(taken["plain"]),
        "first_plain_seconds": first["plain"], "first_private_seconds": first["private"],
    }  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=list(ARCHITECTURES))
    parser.add_argument("--seconds", type=float, default=6, help="for each architecture")
    args = record.parse(parser, seconds=2.0)
    result = record.Result(args.out, steps=[])
    for name in args.only:
        row = measure(name, args.seconds)
        result["steps"].append(row)
        result.write()
        print(f"{name:30} plain {1e3 * row['plain_seconds']:7.2f} ms"
              f"  private {1e3 * row['private_seconds']:7.2f} ms  ratio {row['ratio']:5.2f}"
              f" (fastest {row['ratio_of_fastest']:5.2f})"
              f"  first step {row['first_private_seconds']:5.1f} s", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
