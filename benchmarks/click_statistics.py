"""PrivateCTR from a private release of click statistics, on the first 80,000 rows of Criteo.

A share of the budget goes to one release of shows and clicks by value (δ = 1/n for everything
together); the rest trains the weights of the 39 log odds, with or without an MLP, or pCTR with all
of its tables beside them. AUC and log loss on the last tenth of the rows; benchmarks/criteo.py has
what DP-SGD and its sparse forms reach without the release. Writes JSON as the runs end.

    python benchmarks/click_statistics.py --data FILE.tsv.gz --out FILE.json
"""

import argparse
import math
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

SHARE, CLIP_NORM = 0.8, 3.0
# (name, hidden units, whether features have tables, batch or None for all records, epochs, rate)
MODELS = (
    ("weights of the odds", (), False, None, 60, 0.03),
    ("an MLP on the odds", (16,), False, None, 60, 0.02),
    ("pCTR with its tables", (598, 598, 598, 598), True, 2048, 4, 5e-3),
)


def statistics_of(data, epsilon, share):
    """The release, with a share of the 1/σ² that all of ε buys; without privacy, exact sums."""
    import dp_accounting

    import tfdp

    sigma = 1e-6
    if epsilon is not None:
        sigma = dp_accounting.get_sigma_gaussian(epsilon, 1 / data.num_examples) / math.sqrt(share)
    return tfdp.data.private_click_statistics(
        data.train, data.vocabulary_sizes, noise_multiplier=sigma
    )


def evaluated(model, data):
    found = model.evaluate(*data.test, batch_size=4096, verbose=0, return_dict=True)
    return {"auc": found["auc"], "log_loss": found["loss"]}


def run(data, epsilon, seed, name, hidden, tables, batch, epochs, rate):
    """Trains once; a JSON-able dict."""
    import time

    import keras

    import tfdp

    keras.backend.clear_session()
    keras.utils.set_random_seed(seed)  # initial weights; noise and batches come from the system
    started, n = time.perf_counter(), data.num_examples
    model = tfdp.models.PrivateCTR(
        data.vocabulary_sizes, hidden_units=hidden, embedded=None if tables else (),
        statistics=statistics_of(data, epsilon, SHARE),
    )  # fmt: skip
    optimizer = keras.optimizers.Adam(rate)
    if epsilon is not None:
        budget = tfdp.PrivacyBudget(epsilon, 1 / n)
        optimizer = tfdp.optimizers.DPOptimizer(optimizer, budget=budget, clip_norm=CLIP_NORM)
    model.compile(optimizer)
    before = evaluated(model, data)
    model.fit(tfdp.data.poisson_batches(data.train, batch or n), epochs=epochs, verbose=0)
    result = {
        "model": name, "epsilon": epsilon, "seed": seed, **evaluated(model, data),
        "before_training": before, "seconds": time.perf_counter() - started,
    }  # fmt: skip
    if epsilon is not None:
        result["stated_epsilon"] = model.privacy_statement(1 / n).epsilon
    return result


def main():
    from criteo import Results, load

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--epsilons", type=float, nargs="+", default=[1.0, 3.0, 8.0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    args = parser.parse_args()
    data = load(args.data)
    results = Results(args.out, {"share": SHARE, "clip_norm": CLIP_NORM, "models": MODELS})
    for settings in MODELS:
        # A run with tables takes as long as thirty without.
        seeds = args.seeds[:1] if settings[2] else args.seeds
        for epsilon in (*args.epsilons, None):
            for seed in seeds:
                key = {"model": settings[0], "epsilon": epsilon, "seed": seed}
                if not results.has(**key):
                    results.add(run(data, epsilon, seed, *settings))


if __name__ == "__main__":
    main()
