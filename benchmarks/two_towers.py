"""What a private step of two towers takes, against the same model under Keras' SGD.

1,024 users of 64 features, a user tower of two dense layers, 1,024 negatives for all users, vectors
of width 64, one million items. Item towers:

- table: a look-up;
- dense: a look-up and a linear dense layer;
- deep: a look-up and two dense layers, the first with an activation;
- public: three dense layers, two with an activation, on 64 public features, `noise_at="vectors"`.

The table is a `SparseEmbedding`: plain steps scatter its rows by Keras' SGD, private ones train the
rows that AdaFEST selects, and those of the negatives, by RowSGD. Each kind of step is timed over
epochs of `fit`, with the data pipeline it would have, in rounds by turns, in one process; wall time
and processor time, which other processes of the machine do not move. Peak memory is that of a fresh
process for each kind: of all of it, and of a few steps once the model is made (on Linux).

    python benchmarks/two_towers.py [--items 1000000] [--rounds 3] [--out FILE]
"""

import argparse
import concurrent.futures
import json
import multiprocessing
import os
import pathlib
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import record
import tensorflow as tf

import tfdp

WIDTH, BATCH, NEGATIVES, EXAMPLES = 64, 1024, 1024, 100_000
STEPS_FOR_MEMORY = 10
TOWERS = {"table": 0, "dense": 1, "deep": 2, "public": 3}
# σ₁ = √2·σ at noise ratio 1, times the normal quantile of 1 - 1e-6.
SELECTION = {"threshold": 2**0.5 * 4.753, "noise_ratio": 1.0}


class ItemTower(keras.layers.Layer):
    """A look-up, unless there are no items, and dense layers, all but the last activated."""

    def __init__(self, items, depth):
        super().__init__()
        stddev = keras.initializers.RandomNormal(stddev=0.1)
        self.table = None
        if items is not None:
            self.table = tfdp.layers.SparseEmbedding(
                items, WIDTH, embeddings_initializer=stddev, name="items"
            )
        activations = ["relu"] * (depth - 1) + [None] * (depth > 0)
        self.dense = [keras.layers.Dense(WIDTH, activation) for activation in activations]

    def call(self, items):
        vectors = items["features"] if self.table is None else self.table(items)
        for layer in self.dense:
            vectors = layer(vectors)
        return vectors


def model_of(tower, items, private):
    users = keras.Sequential(
        [keras.Input((WIDTH,)), keras.layers.Dense(WIDTH, "relu"), keras.layers.Dense(WIDTH)]
    )
    features, item = keras.Input((WIDTH,)), keras.Input((), dtype="int64")
    settings, public = {}, tower == "public"
    if public:
        columns = np.random.default_rng(0).normal(size=(items, WIDTH)).astype("float32")
        settings = {"item_features": {"features": columns}, "noise_at": "vectors"}
    item_tower = ItemTower(None if public else items, TOWERS[tower])
    negatives = tfdp.layers.SharedNegatives(item_tower, items, NEGATIVES, **settings)
    model = keras.Model([features, item], negatives(users(features), item))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    if not private:
        model.compile(keras.optimizers.SGD(0.1), loss=loss, jit_compile=False)
        return model
    model = tfdp.make_private(model)
    sparse = {
        "selection": tfdp.selection.AdaFEST(**SELECTION),
        "embedding_optimizer": tfdp.optimizers.RowSGD(0.1),
    }
    if public:  # there is no table
        sparse = {}
    model.compile(
        tfdp.optimizers.DPOptimizer(keras.optimizers.SGD(0.1), noise_multiplier=1.0, **sparse),
        loss=loss, jit_compile=False,
    )  # fmt: skip
    return model


def batches(data, private, steps):
    if private:
        return tfdp.data.poisson_batches(data, BATCH, steps_per_epoch=steps)
    dataset = tf.data.Dataset.from_tensor_slices(data).shuffle(BATCH * 10)
    return dataset.batch(BATCH, drop_remainder=True).repeat().prefetch(2)


class _Timer(keras.callbacks.Callback):
    """(wall, processor) seconds of steps, from the end of one to the end of the next."""

    def __init__(self):
        super().__init__()
        self.ends = []

    def on_epoch_begin(self, epoch, logs=None):
        self.ends = []

    def on_train_batch_end(self, batch, logs=None):
        self.ends.append((time.perf_counter(), time.process_time()))


def data_of(items):
    generator = np.random.default_rng(0)
    features = generator.normal(size=(EXAMPLES, WIDTH)).astype("float32")
    rank = np.exp(generator.uniform(0, np.log(items), EXAMPLES)).astype(np.int64) - 1
    return (features, rank * 2_654_435_761 % items), np.zeros(EXAMPLES, "int32")


def peak_bytes(tower, items, private):
    """The peak memory of this process: of all of it, and of its steps."""
    model, data = model_of(tower, items, private), data_of(items)
    before = _peak()
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak is then what is used now
    model.fit(batches(data, private, STEPS_FOR_MEMORY), steps_per_epoch=STEPS_FOR_MEMORY, verbose=0)
    return max(before, _peak()), _peak()


def _peak():
    status = pathlib.Path("/proc/self/status").read_text()
    return 1024 * int(status.split("VmHWM:")[1].split()[0])


def peaks(tower, items):
    found = {}
    for kind in ("plain", "private"):
        context = multiprocessing.get_context("spawn")
        with concurrent.futures.ProcessPoolExecutor(1, context) as fresh:
            found[kind] = fresh.submit(peak_bytes, tower, items, kind == "private").result()
    return {
        name: {"plain bytes": plain, "private bytes": private, "private / plain": private / plain}
        for name, plain, private in zip(("process", "steps"), *found.values(), strict=True)
    }


def measure(tower, items, steps, rounds):
    data = data_of(items)
    models = {kind: model_of(tower, items, kind == "private") for kind in ("plain", "private")}
    timers = {kind: _Timer() for kind in models}
    found = {kind: [] for kind in models}
    for turn in range(rounds + 1):  # the first is to warm up
        for kind, model in models.items():
            model.fit(
                batches(data, kind == "private", steps), steps_per_epoch=steps, verbose=0,
                callbacks=[timers[kind]],
            )  # fmt: skip
            if turn:
                found[kind].append(np.median(np.diff(timers[kind].ends, axis=0), axis=0))
    result = {"tower": tower, "items": items, "steps": steps}
    for i, clock in enumerate(("wall", "processor")):
        seconds = {kind: [float(f[i]) for f in each] for kind, each in found.items()}
        result[clock] = {
            **{f"{kind} seconds per step": each for kind, each in seconds.items()},
            "private / plain": float(
                np.median(seconds["private"]) / np.median(seconds["plain"])
            ),
        }  # fmt: skip
    result["peak memory"] = peaks(tower, items)
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--towers", nargs="+", default=list(TOWERS), choices=TOWERS)
    parser.add_argument("--items", type=int, default=10**6)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    args = record.parse(parser, items=10**5, steps=5, rounds=1)
    result = record.Result(args.out, users=BATCH, negatives=NEGATIVES, width=WIDTH, measured=[])
    for tower in args.towers:
        result["measured"].append(measure(tower, args.items, args.steps, args.rounds))
        print(json.dumps(result["measured"][-1]), flush=True)
        result.write()


if __name__ == "__main__":
    main()
