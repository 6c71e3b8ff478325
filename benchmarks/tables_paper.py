"""Tables of docs/benchmarks.md beside those of the papers. Written by render.py."""

import json
import math

from tables import RESULTS, read, row, table, with_interval

TITLES = {
    "gru": "GRU",
    "lstm": "LSTM",
    "transformer, untied": "transformer, untied",
    "transformer": "transformer (vanilla)",
    "dpformer": "DPFormer",
}
# DPFormer, tables 1 and 2: NDCG@10 and HIT@10 in percent by ε; the accounting is not stated.
DPFORMER = {
    "movielens": {
        "gru": {5: (2.26, 4.58), 8: (2.40, 4.75), 10: (2.81, 5.53)},
        "lstm": {5: (2.65, 5.08), 8: (2.76, 5.41), 10: (2.95, 5.55)},
        "transformer, untied": {5: (2.33, 4.47), 8: (2.56, 5.11), 10: (2.74, 5.39)},
        "transformer": {5: (4.57, 8.69), 8: (7.05, 13.17), 10: (7.99, 14.82)},
        "dpformer": {5: (5.88, 11.13), 8: (7.70, 14.31), 10: (8.42, 15.40)},
    },
    "amazon_games": {
        "gru": {5: (1.13, 2.46), 8: (1.33, 2.22), 10: (1.47, 2.48)},
        "lstm": {5: (1.19, 2.46), 8: (1.23, 2.46), 10: (1.34, 2.51)},
        "transformer, untied": {5: (1.16, 2.36), 8: (1.20, 2.38), 10: (1.40, 2.47)},
        "transformer": {5: (1.37, 2.47), 8: (1.54, 2.77), 10: (1.57, 2.83)},
        "dpformer": {5: (1.64, 3.01), 8: (1.98, 3.70), 10: (1.99, 3.73)},
    },
}
NAMES = {"movielens": "MovieLens-1M", "amazon_games": "Amazon Games"}
# DP-AdaFEST, table 4: seconds of 100 steps by rows, dense DP-SGD and theirs.
ADAFEST = {100_000: (0.985, 0.324), 1_000_000: (6.607, 0.318), 10_000_000: (62.473, 0.353)}


def model_of(settings):
    return settings["model"] + (", untied" if settings["untied"] else "")


def dpformer_tables():
    lines = []
    for group, title in NAMES.items():
        found = read(f"paper_{group}")
        if found is None:
            continue
        runs = {(model_of(r["settings"]), r["settings"]["epsilon"]): r for r in found["runs"]}
        lines += [f"{title}: NDCG@10 % / HIT@10 %, one run each; in brackets the paper's.", ""]
        lines += table("model", *(f"ε = {e}" for e in (5, 8, 10)))
        for name, text in TITLES.items():
            cells = []
            for epsilon in (5, 8, 10):
                paper = "{:.2f} / {:.2f}".format(*DPFORMER[group][name][epsilon])
                run = runs.get((name, epsilon))
                ours = f"{run['ndcg_10']:.2f} / {run['hit_10']:.2f}" if run else "not run"
                cells.append(f"{ours} ({paper})")
            lines.append(row(text, *cells))
        lines.append("")
    return lines


def repeated():
    found = read("paper_seeds")
    if found is None:
        return []
    summary = found["summary"]
    lines = table(f"{summary['ndcg_10']['runs']} paired runs, ε = 8", "NDCG@10 %", "HIT@10 %")
    for key, text in (("dpformer", "DPFormer"), ("transformer", "transformer (vanilla)"),
                      ("difference", "gain from Re-Attention, paired")):  # fmt: skip
        lines.append(row(text, *(with_interval(summary[m][key]) for m in ("ndcg_10", "hit_10"))))
    return [*lines, "", *curves(found["runs"]), ""]


def curves(seeds):
    """Figure 6: NDCG@10 along the same runs, mean and range."""
    runs = {}
    for run in [*read("paper_movielens")["runs"], *seeds]:
        if run["settings"]["epsilon"] == 8 and model_of(run["settings"]) in (
            "dpformer",
            "transformer",
        ):
            runs.setdefault(model_of(run["settings"]), []).append(run["history"])
    steps = [point["steps"] for point in runs["dpformer"][0]]
    lines = table("NDCG@10 % after", *(f"{step} steps" for step in steps))
    for name in ("dpformer", "transformer"):
        points = zip(*([p["ndcg_10"] for p in history] for history in runs[name]), strict=True)
        cells = [f"{sum(p) / len(p):.2f} ({min(p):.2f} to {max(p):.2f})" for p in points]
        lines.append(row(TITLES[name], *cells))
    return lines


def references():
    found = read("reference_movielens")
    if found is None:
        return []
    lines = table("without privacy", "width", "positions", "epochs", "stopped by itself",
                  "second last: NDCG@10 %", "last: NDCG@10 %", "HIT@10 %",
                  "seen left out: NDCG@10 %")  # fmt: skip
    for run in found["runs"]:
        arguments = run["arguments"]
        best = max(run["history"], key=lambda point: point["ndcg_10"])
        lines.append(row(
            TITLES[run["model"]], arguments["dim"], arguments["max_length"], run["epochs"],
            f"yes, best at {best['epoch']}" if run["converged"] else f"no, best at {best['epoch']}",
            f"{best['ndcg_10']:.2f}",
            *(f"{run[k]:.2f}" for k in ("ndcg_10", "hit_10", "ndcg_10_unseen")),
        ))  # fmt: skip
    return [*lines, ""]


def less_noise():
    """The pilot's run without noise and its twin; DPFormer on the last items."""
    pilot = read("paper_pilot")["runs"]
    (without,) = [run for run in pilot if run["settings"]["noise_multiplier"] == 0]
    twin = [run for run in pilot
            if run["settings"] == {**without["settings"], "noise_multiplier": None}]  # fmt: skip
    lines = table("model", "items", "ε", "noise multiplier", "NDCG@10 %", "HIT@10 %")
    for run in [*twin, without, *(read("paper_less_noise") or {"runs": []})["runs"]]:
        settings = run["settings"]
        epsilon = "∞" if settings["noise_multiplier"] == 0 else f"{settings['epsilon']:g}"
        lines.append(row(
            TITLES[model_of(settings)], settings["target"].replace("_", " "), epsilon,
            f"{run['noise_multiplier_found']:.3g}",
            f"{run['ndcg_10']:.2f}", f"{run['hit_10']:.2f}",
        ))  # fmt: skip
    return [*lines, ""]


def ablations():
    found = read("paper_ablations")
    if found is None:
        return []
    base = max(
        (run for run in read("paper_pilot")["runs"] if run["settings"]["model"] == "gru"),
        key=lambda run: run["ndcg_10"],
    )
    lines = table("GRU, ε = 8, second last items", "coordinates", "NDCG@10 %", "HIT@10 %",
                  "against nothing changed")  # fmt: skip
    together = (read("paper_combined") or {"runs": []})["runs"]
    chosen = [run for run in together if run["settings"]["target"] == "second_last"]
    for run in [base, *found["runs"], *chosen]:
        lines.append(row(
            run["settings"].get("change", "nothing changed"), f"{run['trained_coordinates']:,}",
            f"{run['ndcg_10']:.2f}", f"{run['hit_10']:.2f}",
            "" if run is base else f"{run['ndcg_10'] - base['ndcg_10']:+.2f}",
        ))  # fmt: skip
    last = [run for run in together if run["settings"]["target"] == "last"]
    if last:
        lines += ["", *table("four pieces, 1,000 items; last items", "ε", "NDCG@10 %", "HIT@10 %",
                             "seen left out: NDCG@10 %")]  # fmt: skip
    for run in last:
        settings = run["settings"]
        lines.append(row(
            TITLES[model_of(settings)], f"{settings['epsilon']:g}",
            *(f"{run[k]:.2f}" for k in ("ndcg_10", "hit_10", "ndcg_10_unseen")),
        ))  # fmt: skip
    return [*lines, ""]


def layer_shares():
    """NDCG@10 with the table's share of C² against nothing changed, by the seeds of both."""
    found = read("paper_layer_shares")
    if found is None:
        return []
    scores = {}
    for run in found["runs"]:
        settings = run["settings"]
        kind = settings["clipping"], settings.get("table_share")
        scores.setdefault(settings["seed"], {})[kind] = run["ndcg_10"]
    plain, shared, flat = ("normalized", None), ("flat", 0.9), ("flat", None)
    lines = table("seed", "nothing changed, NDCG@10 %", "flat, the table's share of C² 0.9",
                  "difference")  # fmt: skip
    for seed, of in sorted(scores.items()):
        if shared in of:
            lines.append(row(seed, f"{of[plain]:.2f}", f"{of[shared]:.2f}",
                             f"{of[shared] - of[plain]:+.2f}"))  # fmt: skip
    lines.append(row("mean", "", "", with_interval(found["summary"])))
    return [
        *lines,
        "",
        "Clipping all layers together "
        f'(`clipping="flat"`), without shares, seed 0: {scores[0][flat]:.2f}.',
        "",
    ]


def signal():
    found = read("signal_and_noise")
    if found is None:
        return []
    noise = {one["epsilon"]: one["total"] for one in found["noise"] if one["batch_size"] == 4096}
    steps = [point["step"] for point in found["signal"][0]["points"]]
    lines = table("model", "width", "coordinates: table + others",
                  *(f"signal after {step} steps" for step in steps),
                  *(f"noise, ε = {e}" for e in noise))  # fmt: skip
    for one in found["signal"]:
        tables = (found["num_items"] + 1) * one["width"] * (2 if "untied" in one["model"] else 1)
        sizes = tables, one["coordinates"] - tables
        norms = [(p["table"], math.sqrt(p["norm"] ** 2 - p["table"] ** 2)) for p in one["points"]]
        norms += [[total * math.sqrt(size) for size in sizes] for total in noise.values()]
        lines.append(row(
            TITLES[one["model"]], one["width"], "{:,} + {:,}".format(*sizes),
            *("{:.3f} + {:.3f}".format(*pair) for pair in norms),
        ))  # fmt: skip
    return [*lines, ""]


def larger_batches():
    lines = table("model", "width", "learning rate", "steps", "NDCG@10 %", "HIT@10 %")
    for path in sorted(RESULTS.glob("movielens_*.json")):
        run = json.loads(path.read_text())
        arguments = run["arguments"]
        name = TITLES[arguments["model"]]
        if arguments.get("frequent_items"):
            name += f", {arguments['frequent_items']} items of their own"
        lines.append(row(name, arguments["dim"], f"{arguments['learning_rate']:g}", run["steps"],
                         f"{run['ndcg_10']:.2f}", f"{run['hit_10']:.2f}"))  # fmt: skip
    return [*lines, ""]


def adafest_times():
    measured = {(m["method"], m["rows"]): m["seconds_per_step"]
                for m in read("sparse_step")["measured"]}  # fmt: skip
    lines = table("rows of the table", "dense, s of 100 steps", "AdaFEST", "times as fast",
                  "paper: dense", "AdaFEST", "times as fast")  # fmt: skip
    for rows, (dense, sparse) in ADAFEST.items():
        ours = [100 * measured[method, rows] for method in ("dense", "adafest")]
        lines.append(row(f"{rows:,}", *(f"{s:.3g}" for s in ours), f"{ours[0] / ours[1]:,.0f}",
                         dense, sparse, f"{dense / sparse:.0f}"))  # fmt: skip
    return [*lines, ""]
