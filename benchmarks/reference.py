"""What the same models reach on MovieLens-1M without privacy, trained until they stop improving.

    python benchmarks/reference.py --data ml-1m.txt --models transformer

Trained on each user's items but the last two, in pieces at random places, new ones in each epoch;
stopped when the second last item of each user is predicted no better for `--patience` epochs; the
weights of the best epoch then rank the last item among all.
"""

import argparse
import datetime
import json
import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf
from paper_tables import model
from sequence_training import DEFAULTS, model_of, quick_scores
from transitions import RESULTS, evaluate, load

import tfdp

LONGEST = 2277


def pieces_at_random(generator, histories, length):
    """One record (x, y) of each history, from a place at random."""
    rows = np.zeros((len(histories), length + 1), np.int32)
    for row, items in zip(rows, histories, strict=True):
        end = generator.integers(min(length + 1, len(items)), len(items) + 1)
        part = items[max(0, end - length - 1) : end]
        row[len(row) - len(part) :] = part
    x, y = rows[:, :-1], rows[:, 1:].copy()
    y[x == 0] = 0
    return x, y


def train(name, args, histories, validation, data, long, save):
    settings = {**DEFAULTS, **model(name), "dim": args.dim, "max_length": args.max_length,
                "dropout": args.dropout}  # fmt: skip
    keras.utils.set_random_seed(args.seed)
    made = model_of(settings, data.num_items, None)
    made.compile(keras.optimizers.Adam(args.learning_rate), jit_compile=True)
    generator = np.random.default_rng(args.seed)
    history, best, weights = [], -1.0, None
    start = time.process_time()
    for epoch in range(1, args.epochs + 1):
        whole_batches = len(histories) // args.batch_size * args.batch_size
        order = generator.permutation(len(histories))[:whole_batches]
        x, y = pieces_at_random(generator, histories, args.max_length)
        loss = made.fit(x[order], y[order], batch_size=args.batch_size, verbose=0).history["loss"]
        if epoch % args.every:
            continue
        scores = quick_scores(made, validation)
        history.append({"epoch": epoch, "loss": loss[-1], **scores})
        if scores["ndcg_10"] > best:
            best, weights = scores["ndcg_10"], made.get_weights()
        stopped = epoch - max(history, key=lambda h: h["ndcg_10"])["epoch"] >= args.patience
        if stopped or epoch % args.test_every == 0 or epoch + args.every > args.epochs:
            now = made.get_weights()
            made.set_weights(weights)
            arguments = {k: v for k, v in vars(args).items() if k != "data"}
            result = {
                "model": name, "arguments": arguments, "converged": stopped, "epochs": epoch,
                "history": history, "cpu_seconds": round(time.process_time() - start),
                **evaluate(made, data, long.test.x),
            }  # fmt: skip
            save(result)
            print(
                name, epoch, loss[-1], scores, result["ndcg_10"], result["cpu_seconds"], flush=True
            )
            made.set_weights(now)
        if stopped:
            break


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, help="a `user item` file")
    parser.add_argument("--models", nargs="+", default=["transformer", "gru"])
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--every", type=int, default=2, help="epochs between validations")
    parser.add_argument("--test-every", type=int, default=10, help="epochs between tests")
    parser.add_argument("--patience", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--dropout", type=float, default=0.2)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--max-length", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    data = load(args.data, args.max_length, "last")
    long = load(args.data, LONGEST, "last")
    whole = load(args.data, LONGEST, "second_last").train
    histories = [np.concatenate([x[x > 0], y[-1:]]) for x, y in zip(*whole, strict=True)]
    validation = load(args.data, args.max_length, "second_last")
    path = RESULTS / "reference_movielens.json"
    runs = json.loads(path.read_text())["runs"] if path.exists() else []

    def save(result):
        runs[:] = [run for run in runs if run["model"] != result["model"]]
        versions = {"tfdp": tfdp.__version__, "tensorflow": tf.__version__,
                    "keras": keras.__version__}  # fmt: skip
        runs.append({**result, "versions": versions, "date": str(datetime.date.today())})
        path.write_text(json.dumps({"runs": runs}, indent=1))

    for name in args.models:
        train(name, args, histories, validation, data, long, save)


if __name__ == "__main__":
    main()
