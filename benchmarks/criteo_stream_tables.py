"""One pass over Criteo's first 80,000 rows with 26 tables: noise independent or correlated.

`PrivateCTR` on hashed values at a total ε, δ = 1/n, as `criteo_stream.py` does it for a logistic
regression: in the order of time with independent and with correlated noise, and with Poisson
batches. The rate is chosen on the 8,000 rows before the last 8,000, by one training on the rows
before those; AUC is measured on the last 8,000. Models:

- dense: every row of every table gets noise in every step;
- AdaFEST: the rows that it selects, each with a chain of its own where noise is correlated;
- statistics: AdaFEST beside the odds of one release, which is charged as a part of the same ε.

Writes JSON as the runs end.

    python benchmarks/criteo_stream_tables.py --data FILE.tsv.gz --out FILE.json
"""

import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
from criteo import Results
from criteo_stream import auc, parser_of

import tfdp

RECIPE = {
    "hash_buckets": 4000, "hidden_units": [64], "batch": 512, "clip_norm": 1.0, "held_out": 8000,
    "rates": [2.0, 4.0, 8.0, 16.0], "rates without privacy": [0.03, 0.1, 0.3, 1.0],
    "quantile": 4.5, "contribution_norm": 5.0, "release": 0.5,
}  # fmt: skip
MODELS = ("dense", "AdaFEST", "statistics")
WAYS = {
    "in order": {}, "Poisson batches": {},
    "in order, correlated, 4 bands": {"noise_correlation": "auto"},
}  # fmt: skip


def load(path):
    """(x, y, vocabulary sizes) of all rows in their order."""
    data = tfdp.data.load_criteo(path, hash_buckets=RECIPE["hash_buckets"], test_fraction=0.1)
    x = {k: np.concatenate([data.train[0][k], data.test[0][k]]) for k in data.train[0]}
    return x, np.concatenate([data.train[1], data.test[1]]), data.vocabulary_sizes


def rows(data, start, end):
    return {k: v[start:end] for k, v in data[0].items()}, data[1][start:end]


class Trainer:
    """One model, and one way to train it, again and again from fresh weights."""

    def __init__(self, model, way, epsilon, train, sizes):
        self.train, self.sizes = train, sizes
        n, batch = len(train[1]), RECIPE["batch"]
        self.statistics = None
        budget, steps = epsilon and tfdp.PrivacyBudget(epsilon, 1 / n), -(-n // batch)
        if model == "statistics":
            spent = RECIPE["release"] * epsilon if epsilon else None
            self.statistics = tfdp.data.private_click_statistics(
                train, sizes, epsilon=spent or 1e6, delta=0.5 / n
            )
        self.network = self._fresh()
        self.inner, self.of_rows = keras.optimizers.SGD(1.0), tfdp.optimizers.RowSGD(1.0)
        poisson = way.startswith("Poisson")
        sample = tfdp.data.poisson_batches if poisson or not epsilon else tfdp.data.stream_batches
        self.batches = sample(train, batch)
        self.sigma = None
        if epsilon is None:
            self.network.compile(self.inner)
            return
        others = [self.statistics.event] if self.statistics is not None else []
        self.sigma = tfdp.accounting.calibrate_noise_multiplier(
            budget, batch / n if poisson else 1.0, steps if poisson else 1, other_events=others
        )
        settings = dict(WAYS[way])
        if model != "dense":
            norm = RECIPE["contribution_norm"]
            settings |= {
                "selection": tfdp.selection.AdaFEST(
                    RECIPE["quantile"] * 2**0.5 * self.sigma * norm, 1.0, norm
                ),
                "embedding_optimizer": self.of_rows,
            }
        self.network.compile(tfdp.optimizers.DPOptimizer(
            self.inner, noise_multiplier=self.sigma, clip_norm=RECIPE["clip_norm"], **settings
        ))  # fmt: skip
        self.spent = None

    def _fresh(self):
        return tfdp.models.PrivateCTR(
            self.sizes, hidden_units=RECIPE["hidden_units"], statistics=self.statistics
        )

    def auc(self, rate, test):
        """The AUC on the rows `test` after one pass from fresh weights."""
        fresh = self._fresh()
        example = rows(self.train, 0, 1)[0]
        fresh(example)
        self.network(example)
        self.network.set_weights(fresh.get_weights())
        self.inner.learning_rate.assign(rate)
        self.of_rows.learning_rate = rate
        self.network.fit(self.batches, verbose=0)
        if self.sigma is not None and self.spent is None:
            # Later runs begin from fresh weights: each is a training by itself.
            self.spent = self.network.ledger.epsilon(1 / len(self.train[1]))
        scores = self.network.predict(test[0], batch_size=4000, verbose=0)
        return auc(scores[:, 0], np.ravel(test[1]))


def run(model, way, epsilon, seeds, data):
    """AUCs of one model, way and ε; a JSON-able dict."""
    started, held = time.perf_counter(), RECIPE["held_out"]
    end = len(data[1])
    chooser = Trainer(model, way, epsilon, rows(data, 0, end - 2 * held), data[2])
    before = rows(data, end - 2 * held, end - held)
    rates = RECIPE["rates" if epsilon else "rates without privacy"]  # those do not clip
    tried = {rate: chooser.auc(rate, before) for rate in rates}
    rate = max(tried, key=tried.get)
    trainer = Trainer(model, way, epsilon, rows(data, 0, end - held), data[2])
    found = [trainer.auc(rate, rows(data, end - held, end)) for _ in range(seeds)]
    result = {
        "model": model, "way": way, "epsilon": epsilon, "rate": rate, "auc": found,
        "num_examples": end - held, "auc_of_rates": {str(r): a for r, a in tried.items()},
        "seconds": time.perf_counter() - started,
    }  # fmt: skip
    if epsilon is not None:
        result |= {"noise_multiplier": trainer.sigma, "stated_epsilon": trainer.spent}
    return result


def main():
    parser = parser_of(__doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    args = parser.parse_args()
    data = load(args.data)
    results = Results(args.out, RECIPE)
    for epsilon in (*args.epsilons, None):
        for model in args.models:
            for way in WAYS if epsilon is not None else ["in order"]:
                if epsilon is None and model == "AdaFEST":  # without noise it is the dense one
                    continue
                if not results.has(model=model, way=way, epsilon=epsilon):
                    results.add(run(model, way, epsilon, args.seeds, data))


if __name__ == "__main__":
    main()
