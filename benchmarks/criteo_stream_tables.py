"""One pass over Criteo's rows in the order of time with pCTR: its tables, and noise of each way.

The tables are noised densely, or by DP-AdaFEST, whose rows have chains of their own. Protocol and
ways are those of `criteo_stream.py`: rates and thresholds are chosen on the 8,000 rows before the
last 8,000, AUC is measured on these, δ = 1/n. Writes JSON as the runs end.

    python benchmarks/criteo_stream_tables.py --data FILE.tsv.gz --out FILE.json
"""

import argparse
import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
from criteo import Results
from criteo_stream import auc

import tfdp

RECIPE = {
    "batch": 512, "clip_norm": 1.0, "held_out": 8000, "hidden_units": [128, 64],
    "rates": [1e-3, 3e-3, 1e-2], "largest_table": 4096, "noise_ratio": 5.0,
    "contribution_norm": 5.0,
}  # fmt: skip
#: Adam's step is one of momentum, once its second moment is that of the noise.
CORRELATED = tfdp.optimizers.BandedInverse(4, momentum=0.9)
WAYS = {"in order": None, "in order, correlated, 4 bands": CORRELATED, "Poisson batches": None}
#: Thresholds of AdaFEST that are tried, in standard deviations of the noise of its map.
QUANTILES = {"dense": [None], "AdaFEST": [5.0]}


def load(path):
    sizes = [min(v, RECIPE["largest_table"]) for v in tfdp.data.CRITEO_VOCABULARY_SIZES]
    data = tfdp.data.load_criteo(path, hash_buckets=sizes, test_fraction=0.1)
    parts = [data.train, data.test]
    x = {name: np.concatenate([p[0][name] for p in parts]) for name in parts[0][0]}
    return x, np.concatenate([p[1] for p in parts]), data.vocabulary_sizes


def part(data, start, stop):
    return {k: np.asarray(v[start:stop]) for k, v in data[0].items()}, data[1][start:stop]


class Trainer:
    """One pCTR and one way to train it, again and again from the same initial weights.

    Args:
        way, tables, epsilon: of the runs; ε None for no privacy.
        data: of `part`, the training rows.
        sizes: of the vocabularies.
        quantile: threshold of AdaFEST in standard deviations of its map's noise.
    """

    def __init__(self, way, tables, epsilon, data, sizes, quantile):
        keras.backend.clear_session()
        n, batch = len(data[1]), RECIPE["batch"]
        poisson = way.startswith("Poisson")
        self.model = tfdp.models.PrivateCTR(sizes, hidden_units=RECIPE["hidden_units"])
        self._optimizers = [keras.optimizers.Adam(1e-3)]
        optimizer = self._optimizers[0]
        self._batches = (tfdp.data.poisson_batches if poisson else tfdp.data.stream_batches)(
            data, batch
        )
        if epsilon is not None:
            sigma = tfdp.accounting.calibrate_noise_multiplier(
                tfdp.PrivacyBudget(epsilon, 1 / n), batch / n if poisson else 1.0,
                -(-n // batch) if poisson else 1,
            )  # fmt: skip
            sparse = {}
            if tables == "AdaFEST":
                r, c = RECIPE["noise_ratio"], RECIPE["contribution_norm"]
                # σ1 = r·σ2, and both together cost what σ does.
                threshold = quantile * r * sigma * (1 + r**-2) ** 0.5 * c
                self._optimizers.append(tfdp.optimizers.LazyAdam(1e-3))
                sparse = {
                    "selection": tfdp.selection.AdaFEST(threshold, r, c),
                    "embedding_optimizer": self._optimizers[1],
                }
            optimizer = tfdp.optimizers.DPOptimizer(
                optimizer, noise_multiplier=sigma, clip_norm=RECIPE["clip_norm"],
                noise_correlation=WAYS[way], **sparse,
            )  # fmt: skip
        loss = keras.losses.BinaryCrossentropy(from_logits=True)
        self.model.compile(optimizer, loss=loss, metrics=[])
        self.model.predict({k: v[:2] for k, v in data[0].items()}, verbose=0)  # builds it
        self._start, self.spent = self.model.get_weights(), None

    def auc(self, rate, test):
        """The AUC on the rows `test` after one pass at this learning rate."""
        self.model.set_weights(self._start)
        for one in self._optimizers:
            for variable in one.variables:
                variable.assign(np.zeros(variable.shape))
            one.learning_rate = rate
        self.model.fit(self._batches, verbose=0)
        if self.spent is None and hasattr(self.model, "ledger"):
            # Later runs begin from the start again: each is a training by itself.
            self.spent = self.model.ledger.epsilon(1 / self.model.ledger.num_examples)
        logits = self.model.predict(test[0], batch_size=4000, verbose=0)[:, 0]
        return auc(logits, np.ravel(test[1]))


def run(way, tables, epsilon, seeds, data):
    """AUCs of one way; a JSON-able dict."""
    started, held = time.perf_counter(), RECIPE["held_out"]
    n, sizes, tried = len(data[1]), data[2], {}
    between, last = part(data, n - 2 * held, n - held), part(data, n - held, n)
    for quantile in QUANTILES[tables]:
        chooser = Trainer(way, tables, epsilon, part(data, 0, n - 2 * held), sizes, quantile)
        tried |= {(rate, quantile): chooser.auc(rate, between) for rate in RECIPE["rates"]}
    rate, quantile = max(tried, key=tried.get)
    trainer = Trainer(way, tables, epsilon, part(data, 0, n - held), sizes, quantile)
    return {
        "way": way, "tables": tables, "epsilon": epsilon, "rate": rate, "quantile": quantile,
        "auc": [trainer.auc(rate, last) for _ in range(seeds)], "num_examples": n - held,
        "auc_of_tried": [[*settings, found] for settings, found in tried.items()],
        "stated_epsilon": trainer.spent, "seconds": time.perf_counter() - started,
    }  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--epsilons", type=float, nargs="+", default=[3.0, 8.0, 1.0])
    parser.add_argument("--tables", nargs="+", choices=list(QUANTILES), default=list(QUANTILES))
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    data = load(args.data)
    results = Results(args.out, RECIPE)
    runs = [("in order", "dense", None)]
    runs += [(w, t, e) for t in args.tables for e in args.epsilons for w in args.ways]
    for way, tables, epsilon in runs:
        if not results.has(way=way, tables=tables, epsilon=epsilon):
            results.add(run(way, tables, epsilon, args.seeds if epsilon else 1, data))


if __name__ == "__main__":
    main()
