"""Recall of two towers on a made catalogue whose best possible recall is known.

Items are all pairs of two kinds of halves (so that picks can be drawn), and have public features x,
8 normal numbers of each half; what makes them liked is ψ(x) = tanh(A·x), 16 numbers, of a random A.
A user has a taste t, of which the model sees a rotation, and picks one item with probabilities in
proportion to e^{⟨t, ψ(x)⟩}: ranking by ⟨t, ψ(x)⟩ is the best there is. The item tower is dense,
tanh, dense, so that it can be ψ, and the user tower is dense. One pair is one user.

    python benchmarks/catalogue.py [--side 1000] [--epsilons 3 8] [--out FILE]
"""

import argparse
import json
import os
import platform
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

import tfdp

FEATURES, WIDTH, SHARPNESS = 16, 16, 1.1
TEST = 2000


class World:
    """The catalogue, and the users' picks.

    Args:
        side: items are pairs of one of so many halves and one of so many others.
        users: for training.
        seed: of all that is drawn.
    """

    def __init__(self, side, users, seed):
        generator = np.random.default_rng(seed)
        half = FEATURES // 2
        halves = generator.normal(size=(2, side, half))
        weights = generator.normal(size=(2, half, WIDTH // 2)) * 2 / half**0.5
        liking = np.tanh(halves @ weights)  # (2, side, WIDTH / 2)
        self.features = _pairs(halves).astype("float32")
        rotation, _ = np.linalg.qr(generator.normal(size=(WIDTH, WIDTH)))
        tastes = SHARPNESS * generator.normal(size=(users + TEST, 2, WIDTH // 2))
        self.users = (tastes.reshape(-1, WIDTH) @ rotation).astype("float32")
        chosen = np.zeros((2, users + TEST), np.int64)
        found = []
        for start in range(0, users + TEST, 1000):
            # e^{⟨t, ψ⟩} is a product: the halves of an item are picked by themselves.
            odds = np.exp(np.einsum("uhd,hsd->hus", tastes[start : start + 1000], liking))
            below = np.cumsum(odds / odds.sum(2, keepdims=True), axis=2)
            at = generator.uniform(size=(*odds.shape[:2], 1))
            picked = np.minimum((below < at).sum(2), side - 1)
            chosen[:, start : start + 1000] = picked
            if start >= users:  # what a ranking by the true scores finds, in expectation
                odds /= odds.sum(2, keepdims=True)
                both = ((a[:, None] * b[None, :]).ravel() for a, b in zip(*odds, strict=True))
                found += [np.partition(p, -100)[-100:].sum() for p in both]
        self.best = float(np.mean(found))
        self.items = chosen[0] * side + chosen[1]
        self.train = self.users[:users], self.items[:users]
        self.test = self.users[users:], self.items[users:]


def _pairs(halves):
    """(side², 2·d) of (2, side, d): each of the first beside each of the second."""
    side = halves.shape[1]
    return np.concatenate(
        [np.repeat(halves[0], side, axis=0), np.tile(halves[1], (side, 1))], axis=1
    )


def model_of(world, noise_at, negatives):
    x = keras.Input((FEATURES,), name="x")
    item = keras.Model({"x": x}, keras.layers.Dense(WIDTH)(keras.layers.Dense(32, "tanh")(x)))
    user = keras.Sequential([keras.Input((WIDTH,)), keras.layers.Dense(WIDTH)])
    return tfdp.models.TwoTower(
        user, item, len(world.features), negatives, item_features={"x": world.features},
        noise_at=noise_at,
    )  # fmt: skip


def run(world, epsilon, noise_at, args):
    model = model_of(world, noise_at, args.negatives)
    optimizer = keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(args.rate, args.steps))
    users, batch = len(world.train[0]), args.batch
    if epsilon is not None:
        optimizer = tfdp.optimizers.DPOptimizer(
            optimizer, budget=tfdp.PrivacyBudget(epsilon, 0.1 / users), clipping="normalized",
            steps=args.steps,
        )  # fmt: skip
    model.compile(optimizer, jit_compile=False)
    start = time.process_time()
    batches = tfdp.data.poisson_batches(world.train, batch, steps_per_epoch=args.steps)
    model.fit(batches, epochs=1, verbose=0)
    seconds = time.process_time() - start
    found = model.evaluate(*world.test, k=(100,))
    row = {
        "epsilon": epsilon, "noise_at": noise_at if epsilon else None,
        "recall_100": found["recall_100"], "processor_seconds": round(seconds, 1),
    }  # fmt: skip
    if epsilon is not None:
        row["noise_multiplier"] = float(model.optimizer.noise_multiplier)
        row["spent"] = float(model.privacy_statement().epsilon)
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--side", type=int, default=1000)
    parser.add_argument("--users", type=int, default=200_000)
    parser.add_argument("--epsilons", type=float, nargs="*", default=[8.0, 3.0])
    parser.add_argument("--noise-at", nargs="*", default=["vectors", "weights"])
    parser.add_argument("--negatives", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--rate", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out")
    args = parser.parse_args()
    world = World(args.side, args.users, args.seed)
    result = {
        "items": args.side**2,
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
        "tensorflow": tf.__version__, "keras": keras.__version__,
        "settings": {k: v for k, v in vars(args).items() if k != "out"},
        "best possible": world.best, "at random": 100 / args.side**2, "rows": [],
    }  # fmt: skip
    print(f"best possible {world.best:.4f}", flush=True)
    ways = [(None, "weights")] + [(e, at) for at in args.noise_at for e in args.epsilons]
    for epsilon, noise_at in ways:
        result["rows"].append(run(world, epsilon, noise_at, args))
        print(json.dumps(result["rows"][-1]), flush=True)
        if args.out:
            with open(args.out, "w") as file:
                json.dump(result, file, indent=1)


if __name__ == "__main__":
    main()
