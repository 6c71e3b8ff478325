"""One private release of transitions as a recommender, on DPFormer's protocol.

    python benchmarks/transitions.py --data ml-1m.txt --name movielens

The last item of each user is the test target, ranked among all items; one user is one record;
δ = 1/n; everything that touched the data is in the statement. The settings below were chosen on the
second last item of each user (`--target second_last` repeats that), with the last one unused;
looking at those results is not charged. Every run draws fresh noise, and writes the JSON.
"""

import argparse
import json
import os
import pathlib
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
from scipy import stats

import tfdp
from tfdp.metrics import NDCG, HitRate
from tfdp.models.next_item import without_seen

RESULTS = pathlib.Path(__file__).parent / "results"
SETTINGS = {
    "movielens": {"max_length": 2277, "release": {}, "model": {}},
    "movielens_odds": {"max_length": 2277, "release": {}, "odds": True, "model": {}},
    "amazon_games": {
        "max_length": 200,
        "release": {"symmetric": True, "rounds": 2, "threshold": 2.0},
        "model": {"smoothing": 300.0, "last_items": 10, "decay": 0.85},
    },
    "amazon_games_odds": {
        "max_length": 200,
        "release": {"symmetric": True, "rounds": 2, "threshold": 2.0},
        "odds": True,
        "model": {"smoothing": 100.0, "last_items": 10, "decay": 0.85},
    },
}


def load(path, max_length, target):
    data = tfdp.data.load_sequences(path, max_length=max_length)
    if target == "last":
        return data
    # The histories without their last item: what was second last is the target now.
    histories = [row[row > 0] for row in data.test.x]
    return tfdp.data.leave_one_out_split(histories, max_length, data.num_items)


def evaluate(model, data, histories=None, batch=256):
    """NDCG@10 and HIT@10 in percent, over all items and over those not in the history.

    Args:
        model: has `score_next`.
        data: `SequenceData`, of as many positions as the model looks at.
        histories: (users, any length): whole histories, if `data` has only their ends.
    """
    metrics = {
        f"{name}_10{which}": metric(10)
        for which in ("", "_unseen")
        for name, metric in (("ndcg", NDCG), ("hit", HitRate))
    }
    x, y = data.test
    for start in range(0, len(x), batch):
        ids = x[start : start + batch]
        scores = model.score_next(ids)
        seen = ids if histories is None else histories[start : start + batch]
        unseen = without_seen(scores, seen)
        for name, metric in metrics.items():
            metric.update_state(
                y[start : start + batch, -1], unseen if name.endswith("unseen") else scores
            )
    return {name: 100 * float(metric.result()) for name, metric in metrics.items()}


def interval(values):
    """Mean and half the width of a 95% interval over runs."""
    if len(values) < 2:
        return {"mean": float(np.mean(values)), "half_width": None}
    spread = np.std(values, ddof=1) / len(values) ** 0.5
    return {
        "mean": float(np.mean(values)),
        "half_width": float(stats.t.ppf(0.975, len(values) - 1) * spread),
    }


def summary(runs):
    names = [name for name in runs[0] if "_10" in name]
    return {name: interval([run[name] for run in runs]) for name in names}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, help="a `user item` file")
    parser.add_argument("--name", required=True, choices=sorted(SETTINGS))
    parser.add_argument("--epsilons", type=float, nargs="+", default=[5.0, 8.0, 10.0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--target", choices=["last", "second_last"], default="last")
    args = parser.parse_args()
    settings = SETTINGS[args.name]
    data = load(args.data, settings["max_length"], args.target)
    delta = 1 / data.num_users
    out = RESULTS / f"transitions_{args.name}{'' if args.target == 'last' else '_second_last'}.json"
    result = {
        "protocol": {"target": args.target, "delta": delta, "num_users": data.num_users,
                     "num_items": data.num_items, "chosen_on": "second last item, not charged",
                     **settings},
        "rows": [],
    }  # fmt: skip

    def measure(name, epsilon, runs, release, model):
        row = {"model": name, "epsilon": epsilon, "runs": []}
        result["rows"].append(row)
        for _ in range(runs):
            start = time.time()
            released = tfdp.data.private_transitions(data.train, **release)
            kind = "TransitionOdds" if settings.get("odds") else "TransitionPrior"
            recommender = tfdp.models.TransitionRecommender(
                getattr(tfdp.layers, kind)(released, **model), max_length=settings["max_length"]
            )
            seconds = time.time() - start
            scores = evaluate(recommender, data)
            row["runs"].append({**scores, "seconds": round(seconds, 1)})
            row["summary"] = summary(row["runs"])
            row["survivors"] = len(released.values)
            if epsilon:
                row["statement"] = recommender.privacy_statement(delta).to_dict()
            out.write_text(json.dumps(result, indent=1))
            print(name, epsilon, {k: round(v, 2) for k, v in scores.items()}, flush=True)

    for epsilon in args.epsilons:
        release = {"epsilon": epsilon, "delta": delta, **settings["release"]}
        measure("transitions", epsilon, args.runs, release, settings["model"])
    if args.epsilons:
        measure("popularity of the release alone", args.epsilons[0], 1, release,
                {**settings["model"], "smoothing": 1e12})  # fmt: skip
    without = {**settings["release"], "rounds": 1, "threshold": 6.0}
    measure("transitions, no privacy", None, 1, {"noise_multiplier": 1e-4, **without},
            settings["model"])  # fmt: skip


if __name__ == "__main__":
    main()
