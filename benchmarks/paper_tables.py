"""DPFormer's tables 1 and 2, and what raises signal or lowers noise in DP-SGD, by one protocol.

    python benchmarks/paper_tables.py --data ml-1m.txt --groups tuning movielens

Groups of runs, each with a JSON of its own in benchmarks/results. Runs that are in it already are
skipped, so that a stopped program may be started again. Settings are chosen by the groups "pilot"
and "tuning", on the second last item of each user; that choice is not charged.
"""

import argparse
import datetime
import json
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import dp_accounting
import keras
import tensorflow as tf
from sequence_training import DEFAULTS, train
from transitions import RESULTS, interval, load

import tfdp

MODELS = ("gru", "lstm", "transformer, untied", "transformer", "dpformer")
PAIR = ("dpformer", "transformer")
SECOND_LAST = {"target": "second_last"}


def model(name):
    kind, _, untied = name.partition(", ")
    return {"model": kind, "untied": bool(untied)}


def pilot():
    """How many steps of which size, and about which rate."""
    for batch, steps, rates in ((1024, 118, (0.01, 0.02)), (2048, 59, (0.02, 0.04)),
                                (6040, 20, (0.03, 0.06))):  # fmt: skip
        for rate in rates:
            yield {**model("transformer"), **SECOND_LAST, "batch_size": batch, "steps": steps,
                   "learning_rate": rate, "max_length": 20, "frequency_epsilon": 1.0}  # fmt: skip
    yield {**model("transformer"), **SECOND_LAST, "batch_size": 2048, "steps": 59,
           "max_length": 20}  # fmt: skip
    for name in ("transformer", "dpformer"):
        yield {**model(name), **SECOND_LAST, "max_length": 20}
    for name, rate in (("transformer", 0.02), ("dpformer", 0.02), ("transformer", 0.04),
                       ("dpformer", 0.04), ("gru", 0.02), ("gru", 0.04)):  # fmt: skip
        yield {**model(name), **SECOND_LAST, "learning_rate": rate}
    yield {**model("transformer"), **SECOND_LAST, "noise_multiplier": 0.0}


def rate(name):
    """The better rate of the pilot; LSTM and untied take those of GRU and transformer."""
    kind = model(name)["model"].replace("lstm", "gru")
    found = [
        run for run in stored("pilot")
        if run["settings"] == {**DEFAULTS, **model(kind), **SECOND_LAST,
                               "learning_rate": run["settings"]["learning_rate"]}
    ]  # fmt: skip
    return max(found, key=lambda run: run["ndcg_10"])["settings"]["learning_rate"]


def movielens():
    """Table 1; the middle column first."""
    for epsilon in (8.0, 5.0, 10.0):
        for name in MODELS:
            yield {**model(name), "epsilon": epsilon, "learning_rate": rate(name)}


def seeds():
    """The headline rows again, by pairs of the same initial weights."""
    for seed in range(1, 5):
        for name in PAIR:
            yield {**model(name), "seed": seed, "learning_rate": rate(name)}


def less_noise():
    """DPFormer with the noise of budgets that promise little or nothing, and with none."""
    for change in (
        {"epsilon": 30.0},
        {"epsilon": 100.0, "max_batch_size": 6040},  # a batch that is cut costs e^100 times as much
        {"noise_multiplier": 0.0},
    ):
        yield {**model("dpformer"), **change, "learning_rate": rate("dpformer")}


def amazon_games():
    """Table 2, the 2,000 most frequent items with rows of their own."""
    for epsilon in (8.0, 5.0, 10.0):
        for name in MODELS:
            yield {**model(name), "epsilon": epsilon, "learning_rate": rate(name),
                   "max_length": 5, "batch_size": 4096, "frequent_items": 2000}  # fmt: skip


CHANGES = {
    "the table fixed at random": {"train": "all but the table"},
    "the table fixed at a release's factors, half of 1/σ²": {"factors_share": 0.5},
    "two pieces of a history averaged": {"crops": 2},
    "average of the weights, momentum 0.9": {"ema": 0.9},
    "25 steps of all users, rate 0.06": {
        "batch_size": 6040, "steps": 25, "learning_rate": 0.06,
    },
    "rows for the 1,000 most frequent items": {"frequent_items": 1000},
    "width 8": {"dim": 8},
    "each layer clipped by itself": {"clipping": "per_layer"},
    "each layer normalized by itself, the table's share of C² 0.5": {"table_share": 0.5},
    "each layer normalized by itself, the table's share of C² 0.9": {"table_share": 0.9},
    "each layer clipped by itself, the table's share of C² 0.9": {
        "clipping": "flat", "table_share": 0.9,
    },
    # The second last items are cut from rows of `max_length`: two pairs fewer to learn from.
    "ten pairs of a user, not eight (as pieces have)": {"max_length": 12},
    "low rank: LoRA of 4 on the table": {"lora_rank": 4},
    "a release of item frequencies, ε = 1, in the budget": {"frequency_epsilon": 1.0},
    "biases and gates alone": {"train": "biases and gates"},
    "two dropout masks averaged": {"masks": 2},
}  # fmt: skip


def ablations():
    """What might raise signal or lower noise in the pilot's best model, one change at a time."""
    for name, change in CHANGES.items():
        yield {**model("gru"), **SECOND_LAST, "learning_rate": rate("gru"),
               "change": name, **change}  # fmt: skip


def layer_shares():
    """The share that `ablations` chose on seed 0, paired with nothing changed; flat alone."""
    base = {**model("gru"), **SECOND_LAST, "learning_rate": rate("gru")}
    for seed in range(1, 9):
        for change in ({}, {"clipping": "flat", "table_share": 0.9}):
            yield {**base, "seed": seed, **change}
    yield {**base, "clipping": "flat"}


COMBINED = {
    "two pieces, 1,000 items": {"crops": 2, "frequent_items": 1000},
    "four pieces, 1,000 items": {"crops": 4, "frequent_items": 1000},
    "four pieces, the table's share 0.9": {"crops": 4, "clipping": "flat", "table_share": 0.9},
}


def combined():
    """What helped by itself, together; and that on the last items, with transformers beside it."""
    for name, change in COMBINED.items():
        yield {**model("gru"), **SECOND_LAST, "learning_rate": rate("gru"), "change": name,
               **change}  # fmt: skip
    change = COMBINED["four pieces, 1,000 items"]
    for name in ("gru", "dpformer", "transformer"):
        yield {**model(name), "learning_rate": rate(name), **change}


def large_batches():
    """The paper's 100 epochs of 4,096, at more positions; and its width."""
    for name, dim, learning_rate, frequent in (
        ("dpformer", 16, 0.02, 0), ("transformer", 16, 0.02, 0), ("transformer", 64, 0.009, 0),
        ("transformer", 16, 0.02, 500),
    ):  # fmt: skip
        yield {**model(name), "dim": dim, "learning_rate": learning_rate, "batch_size": 4096,
               "max_length": 20, "frequent_items": frequent}  # fmt: skip


GROUPS = {
    one.__name__: one
    for one in (
        pilot,
        movielens,
        seeds,
        less_noise,
        amazon_games,
        ablations,
        combined,
        layer_shares,
        large_batches,
    )
}


def path_of(group):
    return RESULTS / f"paper_{group}.json"


def stored(group):
    path = path_of(group)
    return json.loads(path.read_text())["runs"] if path.exists() else []


def summaries():
    """What the runs of the "seeds" say, together with those of seed 0: means and intervals."""
    found = {name: {} for name in PAIR}
    for run in [*stored("movielens"), *stored("seeds")]:
        settings = run["settings"]
        if settings["epsilon"] == DEFAULTS["epsilon"] and settings["model"] in PAIR:
            if not settings["untied"]:
                found[settings["model"]][settings["seed"]] = run
    seeds = sorted(set.intersection(*map(set, found.values())))
    return {
        metric: {
            **{name: interval([found[name][seed][metric] for seed in seeds]) for name in PAIR},
            "difference": interval(
                [found[PAIR[0]][seed][metric] - found[PAIR[1]][seed][metric] for seed in seeds]
            ),
            "runs": len(seeds),
        }
        for metric in ("ndcg_10", "hit_10")
    }


def differences_of_shares():
    """By how much the table's share of C² changed NDCG@10, over the pairs of "layer_shares"."""
    found = {}
    for run in stored("layer_shares"):
        is_shared = "table_share" in run["settings"]
        if is_shared or run["settings"]["clipping"] != "flat":
            found.setdefault(run["settings"]["seed"], {})[is_shared] = run["ndcg_10"]
    return interval([pair[True] - pair[False] for pair in found.values() if len(pair) == 2])


SUMMARIES = {"seeds": summaries, "layer_shares": differences_of_shares}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, help="a `user item` file")
    parser.add_argument("--groups", nargs="+", required=True, choices=sorted(GROUPS))
    parser.add_argument("--most", type=int, help="runs to make, at most")
    args = parser.parse_args()
    loaded, made = {}, 0

    def data_of(length, target):
        if (length, target) not in loaded:
            loaded[length, target] = load(args.data, length, target)
        return loaded[length, target]

    for group in args.groups:
        runs = stored(group)
        for wanted in GROUPS[group]():
            settings = {**DEFAULTS, "target": "last", **wanted}
            if made == args.most or any(run["settings"] == settings for run in runs):
                continue
            made += 1
            data = data_of(settings["max_length"], settings["target"])
            result = train(settings, data, data_of(2277, settings["target"]),
                           dp_accounting.get_sigma_gaussian)  # fmt: skip
            versions = {"tfdp": tfdp.__version__, "tensorflow": tf.__version__,
                        "keras": keras.__version__}  # fmt: skip
            runs.append({"settings": settings, **result, "versions": versions,
                         "date": str(datetime.date.today())})  # fmt: skip
            path_of(group).write_text(json.dumps({"runs": runs}, indent=1))
            if group in SUMMARIES:
                written = {"summary": SUMMARIES[group](), "runs": runs}
                path_of(group).write_text(json.dumps(written, indent=1))
            shown = {k: v for k, v in settings.items() if v != DEFAULTS.get(k)}
            print(group, shown, round(result["ndcg_10"], 3), round(result["hit_10"], 3),
                  result["cpu_seconds"], flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
