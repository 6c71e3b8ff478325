"""One pass over Criteo's first 80,000 rows in the order of time: noise independent or correlated.

A logistic regression on hashed values (4,096 weights) at a total ε, δ = 1/n. The rate is chosen on
the 8,000 rows before the last 8,000, by a training on the rows before those; then the model is
trained on all rows but the last 8,000, and AUC is measured on these. Ways: the rows in their order
with independent noise, Poisson batches, and the order with noise that later steps partly take back.
Writes JSON as the runs end.

    python benchmarks/criteo_stream.py --data FILE.tsv.gz --out FILE.json
"""

import argparse
import math
import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
from criteo import Results

import tfdp

RECIPE = {
    "weights": 4096, "batch": 512, "clip_norm": 0.5, "held_out": 8000,
    "rates": [16.0, 32.0, 64.0, 128.0],
}  # fmt: skip
FEATURES = 39
WAYS = {
    "in order": {},
    "Poisson batches": {},
    "in order, correlated, 4 bands": {"noise_correlation": "auto"},
    "in order, correlated, 8 bands": {"noise_correlation": tfdp.optimizers.BandedInverse(8)},
}


def load(path):
    """(ids (n, 39) of hashed values, labels (n, 1)): integers by the half octave they lie in."""
    data = tfdp.data.load_criteo(path, hash_buckets=1 << 20, test_fraction=0.1)
    parts = [data.train, data.test]
    integers = np.concatenate([x["integers"] for x, _ in parts])
    names = [name for name in parts[0][0] if name != "integers"]
    columns = [np.concatenate([x[name] for x, _ in parts]) for name in names]
    size = np.sign(integers) * np.floor(2 * np.log2(np.abs(np.nan_to_num(integers, nan=-3)) + 1))
    values = np.concatenate([size.astype(np.int64), np.stack(columns, 1)], 1).astype(np.uint64)
    # A hash of feature and value: multiplication by odd 64-bit constants (Knuth).
    features = np.arange(FEATURES, dtype=np.uint64) * np.uint64(0xC2B2AE3D27D4EB4F)
    mixed = values * np.uint64(0x9E3779B97F4A7C15) + features
    mixed ^= mixed >> np.uint64(32)
    mixed *= np.uint64(0xD6E8FEB86659FD93)
    ids = (mixed >> np.uint64(40)) % np.uint64(RECIPE["weights"])
    labels = np.concatenate([y for _, y in parts]).astype(np.float32)
    return ids.astype(np.int32), labels.reshape(-1, 1)


class Trainer:
    """One model and one way to train it, again and again from weights of zero.

    Args:
        way, epsilon: of the runs; ε None for no privacy.
        data: (ids, labels) of the training rows.
    """

    def __init__(self, way, epsilon, data):
        inputs = keras.Input((FEATURES,), dtype="int32")
        rows = keras.layers.Embedding(RECIPE["weights"], 1, embeddings_initializer="zeros")(inputs)
        model = keras.Model(inputs, keras.ops.sum(rows, axis=1) / math.sqrt(FEATURES))
        self.inner = keras.optimizers.SGD(1.0)
        n, batch = len(data[1]), RECIPE["batch"]
        if epsilon is None:
            self.model, self.batches = model, tfdp.data.stream_batches(data, batch)
            optimizer = self.inner
        else:
            self.model = tfdp.make_private(model)
            poisson = way.startswith("Poisson")
            sample = tfdp.data.poisson_batches if poisson else tfdp.data.stream_batches
            self.batches = sample(data, batch)
            steps = -(-n // batch) if poisson else 1
            self.sigma = tfdp.accounting.calibrate_noise_multiplier(
                tfdp.PrivacyBudget(epsilon, 1 / n), batch / n if poisson else 1.0, steps
            )
            optimizer = tfdp.optimizers.DPOptimizer(
                self.inner, noise_multiplier=self.sigma, clip_norm=RECIPE["clip_norm"], **WAYS[way]
            )
        self.model.compile(optimizer, loss=keras.losses.BinaryCrossentropy(from_logits=True))
        self.spent = None

    def auc(self, rate, test):
        """The AUC on the rows `test` after one pass."""
        self.model.set_weights([np.zeros_like(w) for w in self.model.get_weights()])
        self.inner.learning_rate.assign(rate)
        self.model.fit(self.batches, verbose=0)
        if self.spent is None and hasattr(self.model, "ledger"):
            # Later runs begin from zero again: each is a training by itself.
            self.spent = self.model.ledger.epsilon(1 / self.model.ledger.num_examples)
        (weights,) = self.model.get_weights()
        return auc(weights[test[0], 0].sum(1), test[1][:, 0])


def auc(scores, labels):
    """The probability that a click is scored above a row without one; ties count half."""
    from scipy import stats

    ranks, clicks = stats.rankdata(scores), labels.sum()
    rest = len(labels) - clicks
    return float((ranks[labels > 0].sum() - clicks * (clicks + 1) / 2) / (clicks * rest))


def run(way, epsilon, seeds, data, rates):
    """AUCs of one way and one ε; a JSON-able dict."""
    started, held = time.perf_counter(), RECIPE["held_out"]
    ids, labels = data
    last, before = len(labels) - held, len(labels) - 2 * held
    chooser = Trainer(way, epsilon, (ids[:before], labels[:before]))
    tried = {r: np.mean([chooser.auc(r, (ids[before:last], labels[before:last]))
                         for _ in range(2)]) for r in rates}  # fmt: skip
    rate = max(tried, key=tried.get)
    trainer = Trainer(way, epsilon, (ids[:last], labels[:last]))
    found = [trainer.auc(rate, (ids[last:], labels[last:])) for _ in range(seeds)]
    result = {
        "way": way, "epsilon": epsilon, "rate": rate, "auc": found, "num_examples": last,
        "auc_of_rates": {str(r): float(a) for r, a in tried.items()},
        "seconds": time.perf_counter() - started,
    }  # fmt: skip
    if epsilon is not None:
        result |= {"noise_multiplier": trainer.sigma, "stated_epsilon": trainer.spent}
    return result


def parser_of(description):
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--epsilons", type=float, nargs="+", default=[3.0, 8.0, 1.0])
    parser.add_argument("--seeds", type=int, default=5)
    return parser


def main():
    parser = parser_of(__doc__)
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    args = parser.parse_args()
    data = load(args.data)
    results = Results(args.out, RECIPE)
    for epsilon in (*args.epsilons, None):
        for way in args.ways if epsilon is not None else ["in order"]:
            if not results.has(way=way, epsilon=epsilon):
                # Without noise a run is like another.
                seeds = args.seeds if epsilon is not None else 1
                results.add(run(way, epsilon, seeds, data, RECIPE["rates"]))


if __name__ == "__main__":
    main()
