"""Step time of private training on one and two replicas of this machine's CPU.

The logical devices share the machine's cores: what is measured is what several replicas add (one
more all-reduce, gathered ids, one place for noise and selection), not a speed-up.

    python benchmarks/replicas.py [--repeats 20] [--out benchmarks/results/replicas.json]
"""

import argparse
import os
import statistics
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras  # noqa: E402
import numpy as np  # noqa: E402
import record
import tensorflow as tf  # noqa: E402

import tfdp  # noqa: E402

BATCH = 256
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)


def dpformer(private):
    model = tfdp.models.DPFormer(3416, 20, dim=64, dropout=0.0)
    model.build((None, 20))
    model.compile(optimizer(private))
    ids = np.ones((BATCH, 20), "int32")
    return model, (ids, ids, np.ones(BATCH, "float32"))


def table(private):
    """A table of a million rows, 26 features, AdaFEST; plain: Adagrad on the same rows."""
    ids = keras.Input((26,), dtype="int64")
    x = keras.layers.Flatten()(tfdp.layers.SparseEmbedding(1_000_000, 16)(ids))
    model = tfdp.make_private(keras.Model(ids, keras.layers.Dense(1)(x)))
    selection = {
        "selection": tfdp.selection.AdaFEST(20.0),
        "embedding_optimizer": tfdp.optimizers.RowAdagrad(0.1),
    }
    plain = tfdp.optimizers.RowAdagrad(0.1)
    model.compile(optimizer(private, **selection) if private else plain, loss="mse")
    generator = np.random.default_rng(0)
    x = (generator.zipf(1.5, (BATCH, 26)) % 1_000_000).astype("int64")
    return model, (x, np.ones((BATCH, 1), "float32"), np.ones(BATCH, "float32"))


def optimizer(private, **kwargs):
    inner = keras.optimizers.Adam(1e-3)
    if not private:
        return inner
    return tfdp.optimizers.DPOptimizer(
        inner, noise_multiplier=1.0, num_examples=1_000_000, expected_batch_size=BATCH, **kwargs
    )


def stepper(build, private, replicas):
    """A function that runs one step of a batch that is divided over the replicas."""
    strategy = tf.distribute.MirroredStrategy(
        [f"CPU:{i}" for i in range(replicas)],
        cross_device_ops=tf.distribute.ReductionToOneDevice(),
    )
    with strategy.scope():
        model, data = build(private)
        model.optimizer.build(model.trainable_variables)
    dataset = tf.data.Dataset.from_tensors(data).repeat()
    batches = iter(strategy.experimental_distribute_dataset(dataset))

    @tf.function(autograph=False)
    def step(batch):
        return strategy.run(model.train_step, args=(batch,))

    return lambda: step(next(batches))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=20)
    arguments = record.parse(parser, repeats=3)
    result = record.Result(arguments.out, steps=[])
    for name, build in (("DPFormer", dpformer), ("table of 1e6 rows", table)):
        steps = {
            (private, replicas): stepper(build, private, replicas)
            for private in (False, True)
            for replicas in (1, 2)
        }
        seconds = {key: [] for key in steps}
        for _ in range(2):
            for step in steps.values():
                step()
        for _ in range(arguments.repeats):
            for key, step in steps.items():  # alternately: what else runs here hits all
                start = time.perf_counter()
                step()
                seconds[key].append(time.perf_counter() - start)
        for (private, replicas), measured in seconds.items():
            result["steps"].append(
                {
                    "model": name, "private": private, "replicas": replicas, "batch": BATCH,
                    "median_seconds": statistics.median(measured),
                    "fastest_seconds": min(measured),
                }
            )  # fmt: skip
            print(result["steps"][-1], flush=True)
        result.write()


if __name__ == "__main__":
    main()
