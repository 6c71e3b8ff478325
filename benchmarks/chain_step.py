"""What correlated noise adds to a step: independent noise against four bands, through `fit`.

- dense: a perceptron of ten million weights, Adam;
- table: a `SparseEmbedding` of V rows × 64 under AdaFEST and RowSGD, a linear head, ids of a Zipf
  law, at a threshold that an untouched row passes with probability 1e-6.

Both on the batches of one stream, compiled or not. Seconds are the median over steps, then over
fits: both models live in one fresh process and take turns, because processes differ by more than
what is measured; either is first as often. Memory is the peak of a fresh process with one of them.

    python benchmarks/chain_step.py [--rows 10000000] [--batch 512] [--rounds 3] [--out FILE]
"""

import argparse
import concurrent.futures
import itertools
import json
import multiprocessing
import os
import platform
import resource
import statistics
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

import tfdp

WIDTHS, TABLE_WIDTH, TABLE_BATCH = (1024, 2048, 2048, 1024), 64, 1024
# A step of the table takes some 2 ms: a process needs more of them.
STEPS, TABLE_STEPS, SKIPPED, BANDS = 40, 400, 10, 4
# σ₁ = √2·σ at noise ratio 1, times the normal quantile of 1e-6.
THRESHOLD, CAPACITY = 2**0.5 * 4.753, 1024


class Timer(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.ends = []

    def on_train_batch_end(self, batch, logs=None):
        self.ends.append(time.perf_counter())


def dense(rows, batch):
    generator = np.random.default_rng(0)
    x = generator.standard_normal((STEPS * batch, WIDTHS[0]), np.float32)
    y = generator.integers(0, 10, STEPS * batch, np.int32)
    hidden = [keras.layers.Dense(width, "relu") for width in WIDTHS[1:]]
    network = keras.Sequential([keras.Input((WIDTHS[0],)), *hidden, keras.layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return (x, y), batch, network, keras.optimizers.Adam(1e-3), loss, {}


def table(rows, batch):
    generator = np.random.default_rng(0)
    rank = np.floor(np.exp(generator.uniform(0, np.log(rows), TABLE_STEPS * TABLE_BATCH))) - 1
    ids = (rank.astype(np.int64) * 2_654_435_761) % rows
    y = generator.standard_normal((len(ids), 1), np.float32)
    x = keras.Input((), dtype="int64")
    found = tfdp.layers.SparseEmbedding(rows, TABLE_WIDTH, embeddings_initializer="zeros")(x)
    network = keras.Model(x, keras.layers.Dense(1)(found))
    sparse = {
        "selection": tfdp.selection.AdaFEST(THRESHOLD, noise_ratio=1.0, capacity=CAPACITY),
        "embedding_optimizer": tfdp.optimizers.RowSGD(0.1),
    }
    return (ids, y), TABLE_BATCH, network, keras.optimizers.SGD(0.1), "mse", sparse


def private_model(kind, bands, compiled, rows, batch):
    data, batch, network, optimizer, loss, sparse = {"dense": dense, "table": table}[kind](
        rows, batch
    )
    chain = tfdp.optimizers.BandedInverse(bands) if bands else None
    model = tfdp.make_private(network)
    model.compile(
        tfdp.optimizers.DPOptimizer(
            optimizer, noise_multiplier=1.0, noise_correlation=chain, **sparse
        ), loss=loss, jit_compile=compiled,
    )  # fmt: skip
    return model, data, batch


def measure(kind, ways, compiled, rows, batch, turns):
    """For each of `ways`, numbers of bands or None, seconds of a step; and this process' memory."""
    models = [private_model(kind, bands, compiled, rows, batch) for bands in ways]
    seconds = [[] for _ in ways]
    for turn in range(turns):
        for (model, data, batch), found in list(zip(models, seconds, strict=True))[:: (-1) ** turn]:
            timer = Timer()
            model.fit(tfdp.data.stream_batches(data, batch), verbose=0, callbacks=[timer])
            found.append(float(np.median(np.diff(timer.ends[SKIPPED:]))))
    return {
        "kind": kind, "bands": ways, "compiled": compiled, "batch": batch,
        "weights": int(sum(np.prod(v.shape) for v in models[0][0].trainable_variables)),
        "seconds": seconds,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=10**7)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--kinds", nargs="+", default=["dense", "table"])
    parser.add_argument("--out")
    args = parser.parse_args()
    runs, result = {}, {
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
        "tensorflow": tf.__version__, "keras": keras.__version__, "measured": [],
    }  # fmt: skip
    context, both = multiprocessing.get_context("spawn"), [None, BANDS]
    for _ in range(args.rounds):
        for kind, compiled in itertools.product(args.kinds, (False, True)):
            for ways, turns in ([None], 1), ([BANDS], 1), (both, args.turns):
                with concurrent.futures.ProcessPoolExecutor(1, context) as fresh:
                    arguments = kind, ways, compiled, args.rows, args.batch, turns
                    measured = fresh.submit(measure, *arguments).result()
                result["measured"].append(measured)
                runs.setdefault((kind, compiled), {}).setdefault(str(ways), []).append(measured)
                print(json.dumps(measured), flush=True)
                if args.out:
                    with open(args.out, "w") as file:
                        json.dump(result, file, indent=1)
    for (kind, compiled), found in runs.items():
        seconds = np.concatenate([one["seconds"] for one in found[str(both)]], axis=1)
        ratio, seconds = np.median(seconds[1] / seconds[0]), 1e3 * np.median(seconds, axis=1)
        memory = [
            statistics.median(one["peak_bytes"] for one in found[str([bands])]) for bands in both
        ]
        print(f"{kind}{', compiled' if compiled else ''}: {seconds[0]:.2f} and {seconds[1]:.2f} ms "
              f"({ratio:.2f}), memory {memory[1] / memory[0]:.3f}")  # fmt: skip


if __name__ == "__main__":
    main()
