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
from tfdp.runtime.xla import for_platform  # noqa: E402

BATCH, LENGTH, ITEMS, WIDTH = 256, 50, 3416, 64
# 26 features, as in Criteo's data; two of their tables are large.
TABLE_ROWS = (10_000_000, 1_000_000, *[10_000] * 24)
TABLE_WIDTH, LARGE_TABLE = 16, 1_000_000


def dpformer(optimizer):
    """DPFormer, and a batch of sequences."""
    frequency = np.full(ITEMS + 1, 0.01)
    model = tfdp.models.DPFormer(ITEMS, LENGTH, item_frequency=frequency, dim=WIDTH, dropout=0.2)
    model.build((None, LENGTH))
    model.compile(optimizer, jit_compile=True)
    ids = tf.ones([BATCH, LENGTH], tf.int32)
    return model, (ids, ids, tf.ones([BATCH]))


def ctr(optimizer):
    """PrivateCTR, and a batch of impressions."""
    features = {
        f"feature_{i}": tfdp.models.CategoricalFeature(rows, TABLE_WIDTH)
        for i, rows in enumerate(TABLE_ROWS)
    }
    model = tfdp.models.PrivateCTR(features)
    model.compile(optimizer, jit_compile=True)
    x = {name: tf.ones([BATCH], tf.int64) for name in features}
    x["integers"] = tf.ones([BATCH, model.num_integers])
    return model, (x, tf.ones([BATCH, 1]), tf.ones([BATCH]))


def plain():
    return keras.optimizers.Adam(1e-3)


def private(**kwargs):
    return tfdp.optimizers.DPOptimizer(
        plain(), noise_multiplier=1.0, num_examples=1_000_000, expected_batch_size=BATCH, **kwargs
    )


def private_and_sparse():
    return private(
        selection=tfdp.selection.AdaFEST(20.0, capacity=8192),
        embedding_optimizer=tfdp.optimizers.RowAdagrad(0.1, row_wise=True),
    )


def hlo(model, data):
    """The step as a serialized XLA module, and the bytes of the variables it updates."""

    @tf.function(jit_compile=True, autograph=False)
    def step(*data):
        return model.train_step(data)

    model.optimizer.build(model.trainable_variables)
    with for_platform("TPU"):
        step.get_concrete_function(*data)
        return step.experimental_get_compiler_ir(*data)(stage="hlo_serialized")


# Name, model, optimizer, and whether products of float32 are made of bfloat16, TensorFlow's default
# on TPUs. Norms made of bfloat16 would not bound what an example adds: a private step must not.
STEPS = [
    ("DPFormer, plain", dpformer, plain, True),
    ("DPFormer, plain, float32 products", dpformer, plain, False),
    ("DPFormer, private", dpformer, private, False),
    ("PrivateCTR, private (AdaFEST)", ctr, private_and_sparse, False),
]


def main(folder):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    programs = []
    for i, (name, build, optimizer, low_precision) in enumerate(STEPS):
        keras.utils.clear_session()
        tf.config.experimental.enable_tensor_float_32_execution(low_precision)
        model, data = build(optimizer())
        path = folder / f"step{i}.hlo"
        path.write_bytes(hlo(model, data))
        large = [v for v in model.trainable_variables if v.shape[0] >= LARGE_TABLE]
        programs.append(
            {
                "name": name,
                "file": path.name,
                "parameters": int(sum(np.prod(v.shape) for v in model.trainable_variables)),
                # Large tables, and the one number for each row that row-wise Adagrad keeps.
                "large_shapes": [[int(d) for d in v.shape] for v in large]
                + [[int(v.shape[0])] for v in large],
                "batch": BATCH,
            }
        )
        print(name, path.stat().st_size, "bytes", flush=True)
    (folder / "programs.json").write_text(json.dumps(programs, indent=1))


if __name__ == "__main__":
    main(sys.argv[1])
