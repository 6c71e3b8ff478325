"""What a person as the unit costs: one step on persons of k records against one on as many records.

The same model, the same rows; both steps are timed alternately in one process. Writes JSON.

    python benchmarks/person_step.py [--repeats 15] [--out benchmarks/results/person_step.json]
"""

import argparse
import os
import statistics
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import record
from step_time import VOCABULARY, transformer  # noqa: E402


def mlp():
    import keras

    hidden = [keras.layers.Dense(512, "relu") for _ in range(3)]
    return keras.Sequential([keras.Input((256,)), *hidden, keras.layers.Dense(10)])


def convolutions():
    import keras

    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((32, 32, 3)),
            layers.Conv2D(32, 3, activation="relu"),
            layers.Conv2D(32, 3, strides=2, activation="relu"),
            layers.Conv2D(64, 3, strides=2, activation="relu"),
            layers.Flatten(),
            layers.Dense(10),
        ]
    )


def clicks():
    import keras

    layers = keras.layers
    ids = keras.Input((26,), dtype="int32")
    x = layers.Flatten()(layers.Embedding(10_000, 16)(ids))
    for _ in range(2):
        x = layers.Dense(256, "relu")(x)
    return keras.Model(ids, layers.Dense(2)(x))


#: name: model, shape of an input and of a target, number of classes, rows of a batch.
MODELS = {
    "multilayer perceptron": (mlp, (256,), (), 10, 512),
    "convolutions": (convolutions, (32, 32, 3), (), 10, 64),
    "clicks, 26 features": (clicks, (26,), (), 2, 1024),
    "transformer, 50 positions": (lambda: transformer(50, True), (50,), (50,), VOCABULARY, 64),
    "transformer, 20 positions": (lambda: transformer(20, True), (20,), (20,), VOCABULARY, 160),
}


def step(name, k):
    """A function that runs one private step; k is None for records."""
    import keras
    import tensorflow as tf

    import tfdp

    build, shape, of_target, classes, rows = MODELS[name]
    generator = tf.random.Generator.from_seed(0)
    model = tfdp.make_private(build())
    whole = model.model.inputs[0].dtype == "int32"
    high = 10_000 if shape == (26,) else classes
    draw = generator.uniform if whole else generator.normal
    x = draw((rows, *shape), 1, high, tf.int32) if whole else draw((rows, *shape))
    y = generator.uniform((rows, *of_target), 1, classes, tf.int32)
    optimizer = tfdp.optimizers.DPOptimizer(
        keras.optimizers.Adam(1e-3), noise_multiplier=1.0, num_examples=100_000,
        expected_batch_size=rows // (k or 1), max_records_per_unit=k,
    )  # fmt: skip
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss=loss)
    optimizer.build(model.trainable_variables)
    function = tf.function(model.train_step, autograph=False)
    weights = tf.ones([rows])
    return lambda: function((x, y, weights))


def measure(name, k, repeats):
    made = {"records": step(name, None), "persons": step(name, k)}
    seconds = {which: [] for which in made}
    for run in made.values():
        run()
        run()
    for _ in range(repeats):
        for which, run in made.items():
            start = time.perf_counter()
            [float(v) for v in run().values()]
            seconds[which].append(time.perf_counter() - start)
    pairs = [b / a for a, b in zip(seconds["records"], seconds["persons"], strict=True)]
    return {
        "model": name,
        "rows": MODELS[name][-1],
        "max_records_per_unit": k,
        "records_seconds": statistics.median(seconds["records"]),
        "persons_seconds": statistics.median(seconds["persons"]),
        "ratio_of_pairs": statistics.median(pairs),
        "ratio_of_fastest": min(seconds["persons"]) / min(seconds["records"]),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--records", type=int, nargs="+", default=[4, 16])
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    args = record.parse(parser, repeats=5)
    result = record.Result(args.out, steps=[])
    for name in args.models:
        for k in args.records:
            row = measure(name, k, args.repeats)
            result["steps"].append(row)
            result.write()
            print(f"{name:26} k {k:3}  records {row['records_seconds']:.4f} s  persons "
                  f"{row['persons_seconds']:.4f} s  pairs {row['ratio_of_pairs']:.2f}  fastest "
                  f"{row['ratio_of_fastest']:.2f}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
