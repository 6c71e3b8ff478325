"""Recommends privately: one release, a statement, a comparison, an export, and a question.

make demo                        on generated data
make demo DATA=path/ml-1m.txt    on a file of `user item` lines
"""

import argparse
import shutil
import time

from tfdp.commands.startup_log import started_quietly

with started_quietly():
    import tensorflow as tf

import keras
import matplotlib.pyplot as plt
import numpy as np

import tfdp
from tfdp.accounting.rounding import round_up
from tfdp.metrics import NDCG, HitRate

EPSILON = 8.0
POSITIONS = 16


def load(path, max_length):
    if path is None:
        return tfdp.data.synthetic_sequences(num_users=8_000, num_items=300, max_length=POSITIONS)
    return tfdp.data.load_sequences(path, max_length=max_length)


def evaluate(model, data):
    ndcg, hit = NDCG(10), HitRate(10)
    x, y = data.test
    score = tf.function(model.score_next)
    for start in range(0, len(x), 1024):
        scores = score(x[start : start + 1024])
        for metric in (ndcg, hit):
            metric.update_state(y[start : start + 1024, -1], scores)
    return 100 * float(ndcg.result()), 100 * float(hit.result())


def transformer(data, delta, epochs, private):
    """DPFormer under the same budget, or the same transformer without privacy."""
    size = data.num_users // 8 if private else 256
    steps = round(data.num_users / size)
    common = {"num_items": data.num_items, "max_length": data.max_length, "dim": 32}
    optimizer, callbacks = keras.optimizers.Adam(3e-3), []
    if private:
        frequency = tfdp.data.private_frequency(data.train, epsilon=0.5)
        model = tfdp.models.DPFormer(item_frequency=frequency, popularity_prior=frequency, **common)
        optimizer = tfdp.optimizers.DPOptimizer(
            keras.optimizers.Adam(1e-2),
            budget=tfdp.PrivacyBudget(epsilon=EPSILON, delta=delta),
            clipping="normalized",
            microbatch_size=512,
        )
        callbacks = [tfdp.callbacks.PrivacyMeter()]
    else:
        model = tfdp.models.SequenceBaseline(cell="transformer", **common)
    model.compile(optimizer)
    batches = tfdp.data.poisson_batches(data.train, size, steps_per_epoch=steps)
    model.fit(batches, epochs=epochs, callbacks=callbacks)
    return model


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="a file of `user item` lines, in time order per user")
    parser.add_argument("--export", default="exported", help="folder for the SavedModel")
    parser.add_argument("--epochs", type=int, default=2, help="of the transformers")
    args = parser.parse_args()
    start = time.time()
    epochs = args.epochs
    if args.data is None:
        print("Generating long-tailed sequences (give DATA=file for your own).")
    long, data = load(args.data, 500), load(args.data, POSITIONS)
    delta = 0.5 / data.num_users
    print(f"{data.num_users:,} users, {data.num_items:,} items; one user is one record.\n")

    # The whole of it: one private release, and a model that needs no training.
    begun = time.time()
    release = tfdp.data.private_transitions(long.train, epsilon=EPSILON, delta=delta)
    model = tfdp.models.TransitionRecommender(release, long.max_length)
    print(f"One release of which item follows which: {time.time() - begun:.0f} seconds.\n")
    print(f"{model.privacy_statement(delta)}\n")
    odds = tfdp.layers.TransitionOdds(release)
    recommenders = {
        "transitions": model,
        "transitions, votes by odds": tfdp.models.TransitionRecommender(odds, long.max_length),
    }
    if args.data is not None:  # people who rate films do not rate one twice
        recommenders["the same, seen items left out"] = tfdp.models.TransitionRecommender(
            odds, long.max_length, exclude_seen=True
        )
    rows = []
    for name, one in recommenders.items():
        epsilon = round_up(one.privacy_statement(delta).epsilon)
        rows.append((name, epsilon, *evaluate(one, long)))
    show(rows)

    for name, private in (("DPFormer", True), ("transformer, not private", False)):
        print(f"\nFor comparison, training: {name}, {epochs} epochs")
        trained = transformer(data, delta, epochs, private)
        epsilon = round_up(trained.privacy_statement(delta).epsilon) if private else "infinite"
        rows.append((f"{name}, {epochs} epochs", epsilon, *evaluate(trained, data)))
    print()
    show(rows)

    shutil.rmtree(args.export, ignore_errors=True)
    tfdp.serving.export(model, args.export, delta=delta)
    served = tf.saved_model.load(args.export)
    history = data.test.x[:1]
    history = history[history > 0][None].astype("int64")
    answer = served.serve(tf.constant(history))
    print(f"\nWritten: {args.export}/ (a SavedModel and privacy_statement.json).")
    print(f"Asked for the items after {history[0, -5:].tolist()}, it answers "
          f"{np.asarray(answer['items'])[0, :5].tolist()}.")  # fmt: skip
    print(f"{time.time() - start:.0f} seconds in all.\n")
    print(f"The comparison as a picture: {draw(rows, 'demo.png')}")
    if args.data is not None:
        print("Quality is computed on raw data, and not covered: do not publish it.")
    print(f"Next: .venv/bin/tfdp statement {args.export} --html > card.html")


def show(rows):
    print(f"{'model':36}{'epsilon':>10}{'NDCG@10 %':>12}{'HIT@10 %':>12}")
    for name, epsilon, ndcg, hit in rows:
        print(f"{name:36}{epsilon:>10}{ndcg:>12.2f}{hit:>12.2f}")


def draw(rows, path):
    figure, axis = plt.subplots(figsize=(7, 0.6 * len(rows) + 1))
    names = [f"{n}{'' if e == 'infinite' else f', ε = {e}'}" for n, e, *_ in rows]
    colors = ["gray" if epsilon == "infinite" else "tab:blue" for _, epsilon, *_ in rows]
    bars = axis.barh(names[::-1], [ndcg for *_, ndcg, _ in rows][::-1], color=colors[::-1])
    axis.bar_label(bars, fmt="%.1f", padding=3)
    axis.set(xlabel="NDCG@10 in %: the next item of each user, ranked among all")
    axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150, bbox_inches="tight")
    return path


if __name__ == "__main__":
    main()
