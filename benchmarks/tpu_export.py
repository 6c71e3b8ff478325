"""Training steps as XLA programs, for `tpu_compile.py`; TensorFlow and libtpu exclude each other.

python benchmarks/tpu_export.py folder
"""

import json
import os
import pathlib
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

import tfdp  # noqa: E402

BATCH, LENGTH, ITEMS, WIDTH = 256, 50, 3416, 64
TABLE_ROWS, TABLE_WIDTH, FEATURES = 10_000_000, 16, 26


def optimizer(private, **kwargs):
    inner = keras.optimizers.Adam(1e-3)
    if not private:
        return inner
    return tfdp.optimizers.DPOptimizer(
        inner, noise_multiplier=1.0, num_examples=1_000_000, expected_batch_size=BATCH, **kwargs
    )


def dpformer(private):
    """DPFormer, and a batch of sequences."""
    frequency = np.full(ITEMS + 1, 0.01)
    model = tfdp.models.DPFormer(ITEMS, LENGTH, item_frequency=frequency, dim=WIDTH, dropout=0.2)
    model.build((None, LENGTH))
    model.compile(optimizer(private), jit_compile=True)
    ids = tf.ones([BATCH, LENGTH], tf.int32)
    return model, (ids, ids, tf.ones([BATCH]))


def ctr(private):
    """A click model with one table of ten million rows shared by all features."""
    ids = keras.Input((FEATURES,), dtype="int64")
    x = keras.layers.Flatten()(tfdp.layers.SparseEmbedding(TABLE_ROWS, TABLE_WIDTH)(ids))
    x = keras.layers.Dense(64, activation="relu")(x)
    model = tfdp.make_private(keras.Model(ids, keras.layers.Dense(1)(x)))
    selection = {
        "selection": tfdp.selection.AdaFEST(20.0, capacity=8192),
        "embedding_optimizer": tfdp.optimizers.RowAdagrad(0.1, row_wise=True),
    }
    model.compile(
        optimizer(private, **selection), jit_compile=True,
        loss=keras.losses.BinaryCrossentropy(from_logits=True),
    )  # fmt: skip
    return model, (tf.ones([BATCH, FEATURES], tf.int64), tf.ones([BATCH, 1]), tf.ones([BATCH]))


def hlo(model, data):
    """The step as a serialized XLA module, and the bytes of the variables it updates."""

    @tf.function(jit_compile=True, autograph=False)
    def step(*data):
        return model.train_step(data)

    model.optimizer.build(model.trainable_variables)
    step.get_concrete_function(*data)
    return step.experimental_get_compiler_ir(*data)(stage="hlo_serialized")


STEPS = {
    "DPFormer, plain": (dpformer, False),
    "DPFormer, private": (dpformer, True),
    "table of 1e7 rows, private (AdaFEST)": (ctr, True),
}


def main(folder):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    programs = []
    for i, (name, (build, private)) in enumerate(STEPS.items()):
        keras.utils.clear_session()
        model, data = build(private)
        path = folder / f"step{i}.hlo"
        path.write_bytes(hlo(model, data))
        tables = [v for v in model.trainable_variables if v.shape[0] == TABLE_ROWS]
        programs.append(
            {
                "name": name,
                "file": path.name,
                "parameters": int(sum(np.prod(v.shape) for v in model.trainable_variables)),
                "table_bytes": int(sum(4 * np.prod(v.shape) for v in tables)),
                "batch": BATCH,
            }
        )
        print(name, path.stat().st_size, "bytes", flush=True)
    (folder / "programs.json").write_text(json.dumps(programs, indent=1))


if __name__ == "__main__":
    main(sys.argv[1])
