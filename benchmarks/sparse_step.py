"""What sparsity saves: private steps on one large table, dense and by AdaFEST, through `model.fit`.

One table of V rows × 64, a batch of 1,024 single-valued ids (Zipf), a linear head. In one run:

- dense: a `keras.layers.Embedding` under DP-SGD, every row noised;
- dense, cut tails: the same with `tf.random.normal`, as other libraries draw it: cheaper noise,
  whose guarantee is not what they state (FACTS: clamped at 5.7 standard deviations);
- adafest: a `SparseEmbedding` under AdaFEST and RowSGD, at a threshold that an untouched row
  passes with probability 1e-6;
- adafest, compiled: the same under `jit_compile=True`, with room for 32 rows a step (19 survive);
- adafest, many rows: the same at 1e-4, so that 1,000 rows of 10 million survive by noise alone;
- plain: a `SparseEmbedding` under Keras's SGD without privacy, which scatters rows, on batches of
  a shuffled `tf.data.Dataset` of records;
- plain, arrays: the same on the arrays themselves, of which Keras takes a batch in one operation;
- plain, drawn: the same on the Poisson batches that private training needs.

Each is timed over whole epochs of `fit`, with the data pipeline it would have. Steps of
milliseconds run ten at a time (`steps_per_execution`), as Keras advises for them: one by one, what
`fit` does between two takes up to a third of the time, with and without privacy. They are measured
in several processes each, in turns, of which the median counts: where the memory of a process lies
moves such a step by a tenth.

    python benchmarks/sparse_step.py [--rows 100000 1000000 10000000] [--big] [--out FILE]

--big trains one table of 100 million rows × 16 by AdaFEST and reports its peak memory.
"""

import argparse
import concurrent.futures
import json
import multiprocessing
import os
import resource
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import record
import tensorflow as tf

import tfdp

WIDTH, BATCH, EXAMPLES = 64, 1024, 200_000
PLAIN = ("plain", "plain, arrays", "plain, drawn")
SPARSE = (*PLAIN, "adafest", "adafest, compiled", "adafest, many rows")
DENSE = ("dense, cut tails", "dense")
SIGMA = 1.0
AT_ONCE = 10  # steps of milliseconds
# σ₁ = √2·σ at noise ratio 1, times the normal quantile of the probability.
THRESHOLDS = {
    "adafest": 2**0.5 * SIGMA * 4.753,
    "adafest, compiled": 2**0.5 * SIGMA * 4.753,
    "adafest, many rows": 2**0.5 * SIGMA * 3.719,
}
CAPACITIES = {"adafest, compiled": 32}


def data(rows, examples=EXAMPLES):
    """Ids of a Zipf law over all rows, in an order unrelated to the ids, and targets."""
    generator = np.random.default_rng(0)
    rank = np.floor(np.exp(generator.uniform(0, np.log(rows), examples))).astype(np.int64) - 1
    ids = (rank * 2_654_435_761) % rows
    return ids, generator.normal(size=(examples, 1)).astype("float32")


def model_of(method, rows, width=WIDTH):
    ids = keras.Input((), dtype="int64")
    layer = keras.layers.Embedding if method.startswith("dense") else tfdp.layers.SparseEmbedding
    table = layer(rows, width, name="table", embeddings_initializer="zeros")
    model = keras.Model(ids, keras.layers.Dense(1)(table(ids)))
    if method.startswith("plain"):
        # Keras's SGD scatters the rows of tf.IndexedSlices; its other optimizers would not.
        model.compile(
            keras.optimizers.SGD(0.1), loss="mse", jit_compile=False, steps_per_execution=AT_ONCE
        )
        return model
    model = tfdp.make_private(model)
    sparse = {}
    if method in THRESHOLDS:
        sparse = {
            "selection": tfdp.selection.AdaFEST(
                THRESHOLDS[method], noise_ratio=1.0, capacity=CAPACITIES.get(method)
            ),
            "embedding_optimizer": tfdp.optimizers.RowSGD(0.1),
        }
    model.compile(
        tfdp.optimizers.DPOptimizer(
            keras.optimizers.SGD(0.1), noise_multiplier=SIGMA, num_examples=EXAMPLES,
            expected_batch_size=BATCH, **sparse,
        ), loss="mse", jit_compile=method in CAPACITIES,
        steps_per_execution=1 if method.startswith("dense") else AT_ONCE,
    )  # fmt: skip
    return model


def batches(method, ids, y, steps):
    if method == "plain":
        dataset = tf.data.Dataset.from_tensor_slices((ids, y)).shuffle(BATCH * 10)
        return dataset.batch(BATCH, drop_remainder=True).repeat().prefetch(2)
    return tfdp.data.poisson_batches((ids, y), BATCH, steps_per_epoch=steps)


class _Timer(keras.callbacks.Callback):
    """Seconds of a step, from the end of one execution to the end of the next."""

    def on_train_begin(self, logs=None):
        self.ends = []

    def on_train_batch_end(self, batch, logs=None):
        self.ends.append(time.perf_counter())

    def seconds(self, skip):
        at_once = self.model.steps_per_execution
        return np.diff(self.ends[skip // at_once :]) / at_once


def measure(method, rows, steps, width=WIDTH):
    ids, y = data(rows)
    started = time.perf_counter()
    model = model_of(method, rows, width)
    if method == "dense, cut tails":
        _cut_tails(model)
    timer = _Timer()
    if method == "plain, arrays":
        examples = min(steps * BATCH, len(ids))
        epochs = -(-steps * BATCH // examples)
        fitted = model.fit(
            ids[:examples], y[:examples], BATCH, epochs, verbose=0, callbacks=[timer]
        )
    else:
        fitted = model.fit(
            batches(method, ids, y, steps), steps_per_epoch=steps, verbose=0, callbacks=[timer]
        )
    history = fitted.history
    seconds = timer.seconds(skip=min(20, steps // 3))
    return {
        "method": method, "rows": rows, "steps": len(seconds) * model.steps_per_execution,
        "seconds_per_step": float(np.median(seconds)), "mean": float(np.mean(seconds)),
        "gradient_size": history.get("gradient_size", [None])[0],
        "capacity_reached": history.get("capacity_reached", [None])[0],
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "in_all": time.perf_counter() - started,
    }  # fmt: skip


def _cut_tails(model):
    source = model.optimizer._noise

    def release(tensors, grid, divisor):
        stddev = tf.cast(grid.stddev, tf.float32)
        tensors = [tf.convert_to_tensor(t) for t in tensors]
        return [(t + tf.random.normal(t.shape) * stddev) / divisor for t in tensors]

    source.release = release


def _fresh_process():
    return concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))


def summary(results):
    seconds = {(r["method"], r["rows"]): r["seconds_per_step"] for r in results}
    rows = sorted({r for _, r in seconds})
    table = {}
    for v in rows:
        adafest = seconds["adafest", v]
        others = [m for m in (*SPARSE, *DENSE) if m != "adafest"]
        table[v] = {f"{m} / adafest": seconds[m, v] / adafest for m in others}
        for plain in PLAIN:
            table[v][f"adafest / {plain}"] = adafest / seconds[plain, v]
            compiled = seconds["adafest, compiled", v] / seconds[plain, v]
            table[v][f"adafest, compiled / {plain}"] = compiled
        table[v]["adafest / adafest at fewest rows"] = adafest / seconds["adafest", rows[0]]
    return table


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[10**5, 10**6, 10**7])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--big", action="store_true")
    args = record.parse(parser, rows=[10**6], steps=10, rounds=1)
    result = record.Result(args.out, width=WIDTH, batch=BATCH, measured=[])

    def note(measured):
        result["measured"].append(measured)
        print(json.dumps(measured), flush=True)
        result.write()

    if args.big:
        note(measure("adafest", 10**8, 100, width=16))
        return

    def measured(method, rows, steps):
        with _fresh_process() as pool:  # a dense step on the largest table needs 13 GiB
            return pool.submit(measure, method, rows, steps).result()

    for rows in args.rows:
        # Rounds, so that what else the machine does meets all of them alike.
        rounds = [{m: measured(m, rows, args.steps) for m in SPARSE} for _ in range(args.rounds)]
        for method in SPARSE:
            runs = sorted((found[method] for found in rounds), key=lambda r: r["seconds_per_step"])
            each = [run["seconds_per_step"] for run in runs]
            note({**runs[len(runs) // 2], "seconds_per_step_of_runs": each})
        for method in DENSE:  # steps take up to ten thousand times as long
            note(measured(method, rows, 6 if rows >= 10**6 else 60))
    result["ratios"] = summary(result["measured"])
    print(json.dumps(result["ratios"], indent=2))
    result.write()


if __name__ == "__main__":
    main()
