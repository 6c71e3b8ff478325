"""DPFormer and its baselines on MovieLens-1M (or Amazon Games), as the paper's tables 1 and 2.

    python benchmarks/movielens.py --data ml-1m.txt --model dpformer --epsilon 8

Protocol: the last item of each user is the test target, ranked among all items; one user is one
record. Everything that touched the data is in the ledger; the JSON holds the statement.
"""

import argparse
import json
import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np

import tfdp
from tfdp.metrics import NDCG, HitRate


class WarmupThenLinear(keras.optimizers.schedules.LearningRateSchedule):
    """Rises to `peak` over the first 20% of the steps, then falls to zero."""

    def __init__(self, peak, steps):
        self.peak, self.steps = peak, steps

    def __call__(self, step):
        done = keras.ops.cast(step, "float32") / self.steps
        return self.peak * keras.ops.minimum(done / 0.2 + 1e-3, (1.0 - done) / 0.8 + 1e-3)

    def get_config(self):
        return {"peak": self.peak, "steps": self.steps}


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, help="a `user item` file")
    parser.add_argument("--model", default="dpformer",
                        choices=["dpformer", "transformer", "gru", "lstm"])  # fmt: skip
    parser.add_argument("--epsilon", type=float, default=8.0, help="0 trains without privacy")
    parser.add_argument("--frequency-epsilon", type=float, default=0.0,
                        help="0: item frequencies are declared public")  # fmt: skip
    parser.add_argument("--epochs", type=float, default=100)
    parser.add_argument("--batch-size", type=int, default=4096)
    parser.add_argument("--learning-rate", type=float, default=9e-3)
    parser.add_argument("--weight-decay", type=float, default=1e-5)
    parser.add_argument("--ema", type=float, default=0.0, help="momentum of a weight average")
    parser.add_argument("--max-length", type=int, default=50)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--blocks", type=int, default=2)
    parser.add_argument("--dropout", type=float, default=0.2)
    parser.add_argument("--stddev", type=float, default=0.02)
    parser.add_argument("--error-scale", type=float, default=1.0)
    parser.add_argument("--untied", action="store_true")
    parser.add_argument("--popularity-prior", action="store_true")
    parser.add_argument("--frequent-items", type=int, default=0,
                        help="items with a row of their own; 0: all")  # fmt: skip
    parser.add_argument("--clipping", default="normalized")
    parser.add_argument("--beta2", type=float, default=0.999)
    parser.add_argument("--jit", action="store_true")
    parser.add_argument("--seed", type=int, default=0, help="of the initial weights and dropout")
    parser.add_argument("--eval-every", type=int, default=20)
    parser.add_argument("--out", help="JSON file to write")
    return parser.parse_args()


def evaluate(model, data, vocabulary):
    metrics = {"ndcg_10": NDCG(10), "hit_10": HitRate(10)}
    x, y = data.test
    for start in range(0, len(x), 512):
        if vocabulary is None:
            scores = model.score_next(x[start : start + 512])
        else:
            scores = model.score_next(vocabulary.encode(x[start : start + 512]))
            scores = vocabulary.decode(scores)
        for metric in metrics.values():
            metric.update_state(y[start : start + 512, -1], scores)
    return {name: float(metric.result()) * 100 for name, metric in metrics.items()}


def main():
    args = parse()
    keras.utils.set_random_seed(args.seed)
    data = tfdp.data.load_sequences(args.data, max_length=args.max_length)
    batch = min(args.batch_size, data.num_users)
    steps = max(1, round(args.epochs * data.num_users / batch))
    frequency = vocabulary = None
    train, num_items = data.train, data.num_items
    if args.frequent_items:
        vocabulary = tfdp.data.FrequentItems(item_frequency(data, args), args.frequent_items)
        train, num_items = vocabulary.encode(data.train), vocabulary.num_items
        frequency = vocabulary.release
    elif args.model == "dpformer" or args.popularity_prior:
        frequency = item_frequency(data, args)
    common = {"dim": args.dim, "dropout": args.dropout, "tied": not args.untied,
              "embedding_stddev": args.stddev}  # fmt: skip
    if args.popularity_prior:
        common["popularity_prior"] = frequency
    if args.model == "dpformer":
        model = tfdp.models.DPFormer(
            num_items, data.max_length, item_frequency=frequency, num_blocks=args.blocks,
            error_scale=args.error_scale, **common,
        )  # fmt: skip
    else:
        model = tfdp.models.SequenceBaseline(
            num_items, data.max_length, cell=args.model,
            num_blocks=args.blocks if args.model == "transformer" else None, **common,
        )  # fmt: skip
    inner = keras.optimizers.AdamW(
        WarmupThenLinear(args.learning_rate, steps), weight_decay=args.weight_decay,
        beta_2=args.beta2, use_ema=args.ema > 0, ema_momentum=args.ema or 0.99,
    )  # fmt: skip
    if args.epsilon:
        inner = tfdp.optimizers.DPOptimizer(
            inner, budget=tfdp.PrivacyBudget(args.epsilon, 1 / data.num_users),
            num_examples=data.num_users, expected_batch_size=batch, steps=steps,
            clipping=args.clipping,
        )  # fmt: skip
    model.compile(inner, jit_compile=args.jit)
    history, start = [], time.time()
    done = 0
    chunk = max(1, round(args.eval_every * data.num_users / batch))
    result = {"arguments": {k: v for k, v in vars(args).items() if k not in ("data", "out")},
              "steps": steps, "num_users": data.num_users, "num_items": data.num_items}  # fmt: skip
    if args.epsilon:
        result["noise_multiplier"] = inner.noise_multiplier
    while done < steps:
        count = min(chunk, steps - done)
        batches = tfdp.data.poisson_batches(train, batch, steps_per_epoch=count)
        logs = model.fit(batches, epochs=1, verbose=0).history
        done += count
        scores = evaluate(model, data, vocabulary)
        history.append({"steps": done, "loss": logs["loss"][-1], **scores,
                        "seconds": round(time.time() - start, 1)})  # fmt: skip
        print(args.model, history[-1], flush=True)
    if args.ema and hasattr(inner, "finalize_variable_values"):
        inner.finalize_variable_values(model.trainable_variables)
        print("averaged", evaluate(model, data, vocabulary), flush=True)
    result.update(history=history, **evaluate(model, data, vocabulary), seconds=time.time() - start)
    if args.epsilon:
        result["statement"] = model.privacy_statement().to_dict()
    if args.out:
        with open(args.out, "w") as file:
            json.dump(result, file, indent=1)


def item_frequency(data, args):
    if args.frequency_epsilon:
        return tfdp.data.private_frequency(data.train, epsilon=args.frequency_epsilon)
    x, y = data.train
    present = np.zeros((len(x), data.num_items + 1), bool)
    rows = np.arange(len(x))[:, None]
    present[rows, x] = True
    present[rows, y] = True
    frequency = present.mean(axis=0)
    frequency[0] = 1.0
    return frequency


if __name__ == "__main__":
    main()
