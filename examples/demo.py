"""Trains DPFormer privately, compares it, exports it and asks it a question.

make demo                        on generated data
make demo DATA=path/ml-1m.txt    on a file of `user item` lines
"""

import argparse
import os
import shutil
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

import tfdp
from tfdp.accounting.statement_text import round_up
from tfdp.metrics import NDCG, HitRate

EPSILON, FREQUENCY_EPSILON = 8.0, 0.5


def load(path):
    if path is None:
        print("Generating long-tailed sequences (give DATA=file for your own).")
        return tfdp.data.synthetic_sequences(num_users=8_000, num_items=300, max_length=16)
    print(f"Reading {path}.")
    return tfdp.data.load_sequences(path, max_length=16)


def private_optimizer(data, batch_size, epochs):
    return tfdp.optimizers.DPOptimizer(
        keras.optimizers.Adam(1e-2),
        budget=tfdp.PrivacyBudget(epsilon=EPSILON, delta=0.5 / data.num_users),
        num_examples=data.num_users,
        expected_batch_size=batch_size,
        steps=epochs * steps_per_epoch(data, batch_size),
        clip_norm=1.0,
        clipping="normalized",
        microbatch_size=512,
    )


def steps_per_epoch(data, batch_size):
    return round(data.num_users / batch_size)


def evaluate(model, data):
    ndcg, hit = NDCG(10), HitRate(10)
    x, y = data.test
    for start in range(0, len(x), 2048):
        scores = model.score_next(x[start : start + 2048])
        for metric in (ndcg, hit):
            metric.update_state(y[start : start + 2048, -1], scores)
    return 100 * float(ndcg.result()), 100 * float(hit.result())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="a file of `user item` lines, in time order per user")
    parser.add_argument("--export", default="exported", help="folder for the SavedModel")
    parser.add_argument("--epochs", type=int, default=10)
    args = parser.parse_args()
    start = time.time()
    data = load(args.data)
    batch_size = data.num_users // 8
    print(f"{data.num_users:,} users, {data.num_items:,} items; one user is one record.\n")

    frequency = tfdp.data.private_frequency(data.train, epsilon=FREQUENCY_EPSILON)
    common = {"num_items": data.num_items, "max_length": data.max_length, "dim": 32}
    models = {
        "DPFormer": tfdp.models.DPFormer(
            item_frequency=frequency, popularity_prior=frequency, **common
        ),
        "vanilla transformer": tfdp.models.SequenceBaseline(
            cell="transformer", popularity_prior=frequency, **common
        ),
        "transformer, not private": tfdp.models.SequenceBaseline(
            cell="transformer", popularity_prior=frequency, **common
        ),
    }
    rows = []
    for name, model in models.items():
        private = "not private" not in name
        optimizer = keras.optimizers.Adam(3e-3)
        size = 256
        callbacks = []
        if private:
            size = batch_size
            optimizer = private_optimizer(data, batch_size, args.epochs)
            callbacks = [tfdp.callbacks.PrivacyMeter()]
        batches = tfdp.data.poisson_batches(
            data.train, expected_batch_size=size, steps_per_epoch=steps_per_epoch(data, size)
        )
        model.compile(optimizer)
        print(f"Training: {name}")
        epochs = args.epochs
        model.fit(batches, epochs=epochs, callbacks=callbacks)
        epsilon = round_up(model.privacy_statement().epsilon) if private else "infinite"
        rows.append((name, epsilon, *evaluate(model, data)))

    model = models["DPFormer"]
    print(f"\n{model.privacy_statement()}\n")
    print(f"{'model':26}{'epsilon':>10}{'NDCG@10 %':>12}{'HIT@10 %':>12}")
    for name, epsilon, ndcg, hit in rows:
        print(f"{name:26}{epsilon:>10}{ndcg:>12.2f}{hit:>12.2f}")

    shutil.rmtree(args.export, ignore_errors=True)
    tfdp.serving.export(model, args.export)
    served = tf.saved_model.load(args.export)
    history = data.test.x[:1]
    history = history[history > 0][None].astype("int64")
    answer = served.serve(tf.constant(history))
    print(f"\nWritten: {args.export}/ (a SavedModel and privacy_statement.json).")
    print(f"Asked for the items after {history[0, -5:].tolist()}, it answers "
          f"{np.asarray(answer['items'])[0, :5].tolist()}.")  # fmt: skip
    print(f"{time.time() - start:.0f} seconds in all.")


if __name__ == "__main__":
    main()
