"""What privacy costs the click model on large tables: AdaFEST against plain sparse training.

pCTR, the paper's click model: 26 ids, each with a table of its own, V rows × 64 in all, and 13
counts; batches of 1,024, ids of a Zipf law. Steps of `fit` in one process, alternately:

- adafest: AdaFEST and RowSGD, at a threshold that an untouched row passes with probability 1e-6;
- plain, drawn: Keras's SGD without privacy, which scatters rows, on the same Poisson batches;
- plain, arrays: the same on arrays in memory, in batches without padding;
- plain: the same on a shuffled `tf.data.Dataset` of records.

    python benchmarks/click_step.py [--rows 10000000] [--out FILE]
"""

import argparse
import json
import os
import statistics
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import record
import tensorflow as tf

import tfdp

FEATURES, COUNTS, WIDTH = 26, 13, 64
BATCH, EXAMPLES, STEPS = 1024, 200_000, 80
METHODS = ("plain, drawn", "plain, arrays", "plain", "adafest")
# σ₁ = √2·σ at noise ratio 1, times the normal quantile of 1e-6.
THRESHOLD = 2**0.5 * 4.753


def vocabularies(rows):
    """Rows of each table: most in a few, as in logs of clicks."""
    shares = 1 / np.arange(1, FEATURES + 1) ** 1.5
    sizes = (shares / shares.sum() * rows).astype(int)
    sizes[0] += rows - sizes.sum()
    return sizes.tolist()


def data(rows):
    generator = np.random.default_rng(0)
    x = {"integers": generator.exponential(size=(EXAMPLES, COUNTS)).astype("float32")}
    for i, size in enumerate(vocabularies(rows)):
        rank = np.exp(generator.uniform(0, np.log(size), EXAMPLES)).astype(np.int64) - 1
        x[f"c{i}"] = (rank * 2_654_435_761) % size
    return x, (generator.random(EXAMPLES) < 0.3).astype("float32")


def model_of(method, rows):
    model = tfdp.models.PrivateCTR(
        {
            f"c{i}": tfdp.models.CategoricalFeature(size, WIDTH)
            for i, size in enumerate(vocabularies(rows))
        },
        COUNTS,
    )
    optimizer = keras.optimizers.SGD(0.1)
    if method == "adafest":
        optimizer = tfdp.optimizers.DPOptimizer(
            optimizer, noise_multiplier=1.0, num_examples=EXAMPLES, expected_batch_size=BATCH,
            selection=tfdp.selection.AdaFEST(THRESHOLD, noise_ratio=1.0),
            embedding_optimizer=tfdp.optimizers.RowSGD(0.1),
        )  # fmt: skip
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile(optimizer, loss, weighted_metrics=[], jit_compile=False)
    return model


class _Ends(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.times = []

    def on_train_batch_end(self, batch, logs=None):
        self.times.append(time.perf_counter())


def seconds_of_a_step(method, model, x, y):
    ends = _Ends()
    if method == "plain, arrays":
        some = STEPS * BATCH
        x = {name: array[:some] for name, array in x.items()}
        model.fit(x, y[:some], BATCH, verbose=0, callbacks=[ends])
    else:
        batches = tfdp.data.poisson_batches((x, y), BATCH, steps_per_epoch=STEPS)
        if method == "plain":
            batches = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(BATCH * 10)
            batches = batches.batch(BATCH, drop_remainder=True).repeat().prefetch(2)
        model.fit(batches, steps_per_epoch=STEPS, verbose=0, callbacks=[ends])
    return float(np.median(np.diff(ends.times)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=10**7)
    parser.add_argument("--repeats", type=int, default=9)
    args = record.parse(parser, rows=10**6, repeats=2)
    x, y = data(args.rows)
    models = {method: model_of(method, args.rows) for method in METHODS}
    seconds = {method: [] for method in METHODS}
    for turn in range(args.repeats + 1):
        for method, model in models.items():
            found = seconds_of_a_step(method, model, x, y)
            if turn:
                seconds[method].append(found)
    weights = models["adafest"].trainable_weights
    result = record.Result(args.out, rows=args.rows, width=WIDTH, batch=BATCH, seconds=seconds)
    result["dense_parameters"] = sum(
        w.shape.num_elements() for w in weights if w.shape[-1] != WIDTH
    )
    result["adafest / plain"] = {
        method: statistics.median(a / b for a, b in zip(seconds["adafest"], found, strict=True))
        for method, found in seconds.items()
    }
    print(json.dumps(result, indent=1))
    result.write()


if __name__ == "__main__":
    main()
