"""Private steps against plain ones on a GPU, and the law of the noise that it draws.

TensorFlow compiles nothing here for the device: it exports each step as an XLA program, and JAX
compiles and runs it, on this machine or on another one that has a GPU and no TensorFlow. Values of
large arrays do not travel: `gpu_run.py` draws others of the same mean and spread.

    python benchmarks/gpu.py --jax .venv-peers-jax/bin/python [--small] [--out FILE]

or in two parts, of which the second needs JAX, NumPy and the folder alone:

    python benchmarks/gpu.py --export FOLDER [--small]
    python benchmarks/gpu_run.py FOLDER --out FILE
"""

import argparse
import gzip
import json
import os
import pathlib
import subprocess
import sys
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
HERE = pathlib.Path(__file__).resolve().parent

#: Architectures of peer_workers/sizes.py, and the examples of a batch where not the one there: a
#: GPU is busy with batches that two CPU cores are not timed on.
STEPS = (("clicks, 26 tables", None), ("clicks, 26 tables", 8192),
         ("clicks, 12 larger tables", None), ("transformer, 50 positions", None),
         ("transformer, 50 positions", 1024), ("transformer, 50 positions, tied", 1024),
         ("transformer, 200 positions, tied", 256), ("encoder with LoRA", None),
         ("encoder with LoRA", 64), ("multilayer perceptron", 4096), ("GRU", 1024),
         ("convolutions, group normalisation", 1024))  # fmt: skip
SPARSE_ROWS, SPARSE_WIDTH, SPARSE_BATCH = 1_000_000, 64, 1024
#: Item towers of two_towers.py, as the table of results names them.
TOWERS = {"table": "two towers, a table of items", "dense": "two towers, and a linear layer",
          "deep": "two towers, and an activation",
          "public": "two towers, public items, noise at vectors"}  # fmt: skip
NOISE, SMALL_NOISE = 10**8, 10**6
#: Arrays above this size are drawn again where they are needed.
LARGE = 20_000


def values_of(function, arguments):
    """A traced function's parameters, in the order of its XLA program."""
    traced = function.get_concrete_function(*arguments)
    held = {id(v.handle): v for v in traced.graph.variables}
    captured = [held[id(c)] if id(c) in held else c for c in traced.captured_inputs]
    return [value.numpy() for value in [*arguments, *captured]]


def write(folder, name, about, function, arguments):
    """The program, the values of small parameters, and what large ones look like."""
    import numpy as np

    program = function.experimental_get_compiler_ir(*arguments)(stage="hlo_serialized")
    (folder / f"{name}.hlo.gz").write_bytes(gzip.compress(program))
    values, large = values_of(function, arguments), {}
    for i, value in enumerate(values):
        if value.size > LARGE and value.dtype.kind == "f":
            spread = [float(value.mean()), float(value.std())]
            large[i] = [list(value.shape), value.dtype.name, *spread]
    kept = {str(i): value for i, value in enumerate(values) if i not in large}
    np.savez_compressed(folder / f"{name}.npz", **kept)
    about = {**about, "parameters": len(values), "large": large}
    (folder / f"{name}.json").write_text(json.dumps(about))
    print("exported", name, about["model"], about["kind"], len(program), "bytes", flush=True)


def exporter(folder):
    import tensorflow as tf

    from tfdp.runtime.xla import for_platform

    def export(name, about, model, data):
        present = () if about["kind"] == "plain" else (tf.ones([len(data[-1])]),)

        @tf.function(jit_compile=True, autograph=False)
        def step(*data):
            *x, y = data[: len(data) - len(present)]
            weights = data[len(data) - len(present) :]
            return model.train_step((x if len(x) > 1 else x[0], y, *weights))

        data = [*(tf.constant(v) for v in data), *present]
        model.optimizer.build(model.trainable_variables)
        with for_platform("GPU"):
            write(folder, name, about, step, data)

    return export


def export(folder, small):
    sys.path.insert(0, str(HERE / "peer_workers"))
    import keras
    import keras_models
    import numpy as np
    import sizes
    import tensorflow as tf

    import tfdp
    from tfdp.noise import Grid, NoiseSource
    from tfdp.runtime.xla import for_platform

    tf.config.experimental.enable_tensor_float_32_execution(False)
    send = exporter(folder)

    def private(optimizer, model, batch, **kwargs):
        return tfdp.make_private(model), tfdp.optimizers.DPOptimizer(
            optimizer, noise_multiplier=1.0, num_examples=sizes.NUM_EXAMPLES,
            expected_batch_size=batch, **kwargs,
        )  # fmt: skip

    for i, (name, size) in enumerate(STEPS[:1] if small else STEPS):
        inputs, labels = sizes.batch(name, size)
        for kind in ("plain", "private"):
            model, optimizer = keras_models.build(name), keras.optimizers.Adam(1e-3)
            if kind == "private":
                model, optimizer = private(optimizer, model, len(labels))
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile(optimizer, loss=loss, jit_compile=True)
            about = {"model": name, "kind": kind, "batch": len(labels), "compared": size is None}
            send(f"{i + 1:02}-{kind}", about, model, (*inputs, labels))
            keras.utils.clear_session()

    export_towers(send, small)
    export_chain(send, small)
    ids = np.random.default_rng(0).integers(0, SPARSE_ROWS, SPARSE_BATCH, dtype=np.int64)
    for kind in () if small else ("dense", "AdaFEST"):
        x = keras.Input((), dtype="int64")
        layer = keras.layers.Embedding if kind == "dense" else tfdp.layers.SparseEmbedding
        y = keras.layers.Dense(1)(layer(SPARSE_ROWS, SPARSE_WIDTH)(x))
        selection = tfdp.selection.AdaFEST(6.7, capacity=SPARSE_BATCH) if kind != "dense" else None
        rows = {"selection": selection, "embedding_optimizer": tfdp.optimizers.RowSGD(0.1)}
        model, optimizer = private(
            keras.optimizers.SGD(0.1), keras.Model(x, y), SPARSE_BATCH,
            **(rows if selection else {}),
        )  # fmt: skip
        model.compile(optimizer, loss="mse", jit_compile=True)
        about = {"model": "a table of a million rows × 64", "kind": kind, "batch": SPARSE_BATCH,
                 "compared": False}  # fmt: skip
        send(f"90-{kind}", about, model, (ids, np.ones([SPARSE_BATCH, 1], np.float32)))
    source, size = NoiseSource(), SMALL_NOISE if small else NOISE

    @tf.function(jit_compile=True, autograph=False)
    def noise(values):
        return source.release([values], Grid(tf.constant(1.0), 1.0, size))

    with for_platform("GPU"):
        about = {"model": "noise", "kind": "noise", "batch": size, "compared": False}
        write(folder, "00-noise", about, noise, [tf.zeros([size])])


def export_towers(send, small):
    import numpy as np
    import tensorflow as tf
    import two_towers

    two_towers.SELECTION["capacity"] = 2 * two_towers.BATCH  # what XLA compiles has a fixed size
    generator = np.random.default_rng(0)
    for tower in list(TOWERS)[:1] if small else TOWERS:
        items = 1000 if small else 10**6
        features = generator.normal(size=(two_towers.BATCH, two_towers.WIDTH)).astype("float32")
        ids = generator.integers(0, items, two_towers.BATCH, dtype=np.int64)
        for kind in ("plain", "private"):
            model = two_towers.model_of(tower, items, kind == "private")
            about = {"model": TOWERS[tower], "kind": kind, "batch": len(ids), "compared": False}
            send(f"80-{tower}-{kind}", about, model, (features, ids, np.zeros(len(ids), "int32")))
            tf.keras.backend.clear_session()


def export_chain(send, small):
    import chain_step
    import numpy as np

    import tfdp

    for bands in () if small else (None, chain_step.BANDS):
        (x, y), batch, network, optimizer, loss, _ = chain_step.dense(None, 512)
        model = tfdp.make_private(network)
        correlation = tfdp.optimizers.BandedInverse(bands) if bands else None
        model.compile(
            tfdp.optimizers.DPOptimizer(
                optimizer, noise_multiplier=1.0, noise_correlation=correlation,
                num_examples=len(y), expected_batch_size=batch,
            ), loss=loss, jit_compile=True,
        )  # fmt: skip
        weights = int(sum(np.prod(v.shape) for v in network.trainable_variables))
        about = {"model": f"perceptron of {weights:,} weights", "batch": batch, "compared": False,
                 "kind": f"{bands} bands" if bands else "independent noise"}  # fmt: skip
        send(f"85-{bands or 1}-bands", about, model, (x[:batch], y[:batch]))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jax", default=".venv-peers-jax/bin/python", help="a Python that has JAX")
    parser.add_argument("--export", metavar="FOLDER", help="write the programs and stop")
    parser.add_argument("--small", action="store_true", help="one model, and a million draws")
    parser.add_argument("--out", help="JSON")
    args = parser.parse_args()
    if args.export:
        folder = pathlib.Path(args.export)
        folder.mkdir(parents=True, exist_ok=True)
        export(folder, args.small)
        return
    with tempfile.TemporaryDirectory() as folder:
        export(pathlib.Path(folder), args.small)
        command = [args.jax, str(HERE / "gpu_run.py"), folder]
        subprocess.run([*command, *(["--out", args.out] if args.out else [])], check=True)


if __name__ == "__main__":
    main()
