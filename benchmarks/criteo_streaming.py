"""Online training on Criteo's rows in time order, in streaming periods.

The rows are cut into equal periods, which are trained on one after the other and never again. FEST
finds its rows anew in each period, from the period's rows alone, and is charged for it.

A record is in one period only, and nothing else reads it, so that each period spends the whole ε:
the total for a record is the largest period's (parallel composition over parts that are fixed in
advance). The ledger of the model does not know that periods are disjoint and adds them up: its
larger figure is written beside.

    python benchmarks/criteo_streaming.py --data FILE.tsv.gz --out benchmarks/results/criteo.json
"""

import argparse
import gc
import time

import keras
import numpy as np
from criteo import CHOICE_EPSILON, RECIPE, Results, load, optimizer_of

import tfdp

PERIODS = (1, 4)
METHODS = (
    ("dense", {}),
    ("fest", {"k": 1000}),
    ("adafest", {"noise_ratio": 5, "quantile": 5, "contribution_norm": 5}),
    ("adafest+", {"noise_ratio": 5, "quantile": 2, "contribution_norm": 5, "k": 1000}),
)


def stream(data, results, recipe, epsilons=(3.0,)):
    """Runs what `results` does not hold yet."""
    for epsilon in epsilons:
        for periods in PERIODS:
            for method, settings in METHODS:
                key = {"method": method, "settings": settings, "epsilon": epsilon,
                       "periods": periods}  # fmt: skip
                if not results.has(**key):
                    results.add({**key, **_run(method, settings, epsilon, periods, data, recipe)})


def _run(method, settings, epsilon, periods, data, recipe):
    started = time.perf_counter()
    keras.utils.set_random_seed(0)
    model = tfdp.models.PrivateCTR(data.vocabulary_sizes, hidden_units=recipe["hidden_units"])
    x, y = data.train
    bounds = np.linspace(0, len(y), periods + 1).astype(int)
    sizes, noise, aucs = [], [], []
    dense = sum(v * int(2 * v**0.25) for v in data.vocabulary_sizes.values())
    for start, stop in zip(bounds[:-1], bounds[1:], strict=True):
        part = {k: v[start:stop] for k, v in x.items()}, y[start:stop]
        steps = max(1, round((stop - start) / recipe["batch"])) * recipe["epochs"]
        optimizer = _optimizer(method, settings, epsilon, part, data, recipe, steps)
        model.compile(optimizer)
        batches = tfdp.data.poisson_batches(
            part, recipe["batch"], steps_per_epoch=steps // recipe["epochs"]
        )
        logs = model.fit(batches, epochs=recipe["epochs"], verbose=0).history
        sizes.append(np.mean(logs["gradient_size"]) if "gradient_size" in logs else dense)
        noise.append(optimizer.noise_multiplier)
        found = model.evaluate(*data.test, batch_size=4096, verbose=0, return_dict=True)
        aucs.append(found["auc"])
    composed = model.ledger.epsilon(1.0 / len(y))
    del model
    keras.backend.clear_session()
    gc.collect()
    return {
        "auc": aucs[-1], "auc_by_period": aucs, "gradient_size": float(np.mean(sizes)),
        "reduction": dense / max(float(np.mean(sizes)), 1.0), "noise_multipliers": noise,
        "choice_epsilon": CHOICE_EPSILON, "epsilon_of_the_ledger": composed,
        "seconds": time.perf_counter() - started,
    }  # fmt: skip


def _optimizer(method, settings, epsilon, part, data, recipe, steps):
    """σ calibrated to this period alone; the ledger's earlier periods hold other records."""
    budgeted = optimizer_of(
        method, settings, epsilon, (*part, data.vocabulary_sizes), recipe, steps
    )
    sparse = {}
    if budgeted.selection is not None:
        sparse = {
            "selection": budgeted.selection,
            "embedding_optimizer": budgeted.embedding_optimizer,
        }
    n = len(part[1])
    sigma = tfdp.accounting.calibrate_noise_multiplier(
        budgeted.budget, recipe["batch"] / n, steps,
        other_events=[entry.event for entry in budgeted.privacy_releases],
    )  # fmt: skip
    return tfdp.optimizers.DPOptimizer(
        budgeted.inner_optimizer, noise_multiplier=sigma, num_examples=n,
        expected_batch_size=recipe["batch"], clip_norm=recipe["clip_norm"], **sparse,
    )  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    stream(load(args.data), Results(args.out, RECIPE), RECIPE)


if __name__ == "__main__":
    main()
