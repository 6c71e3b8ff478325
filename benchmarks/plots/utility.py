"""Plots of quality against ε."""

from tables import mean_and_half_width, read
from tables_paper import DPFORMER, NAMES, TITLES, model_of

from plots.style import Plot, key, log_ticks, rows_of, title


def _recommenders():
    """NDCG@10 in percent on both data sets: {data set: {curve: [[ε, mean, half width], ...]}}."""
    found = {}
    for group in NAMES:
        release = read(f"transitions_{group}_odds")["rows"]
        trained = [
            r for r in read(f"paper_{group}")["runs"] if model_of(r["settings"]) == "dpformer"
        ]
        found[group] = {
            "release": [
                [r["epsilon"], r["summary"]["ndcg_10"]["mean"],
                 r["summary"]["ndcg_10"]["half_width"]]
                for r in release if r["model"] == "transitions"
            ],
            "trained": sorted([r["settings"]["epsilon"], r["ndcg_10"], 0] for r in trained),
            "paper": [[e, ndcg, 0] for e, (ndcg, _) in DPFORMER[group]["dpformer"].items()],
            "without privacy": next(
                r["summary"]["ndcg_10"]["mean"] for r in release if r["epsilon"] is None
            ),
        }  # fmt: skip
    return found


CURVES = {  # name: colour, marker, line, what it says
    "release": ("tfdp", "o", "-", "one release"),
    "trained": ("tfdp", "s", ":", "DPFormer, trained"),
    "paper": ("a", "^", "--", "DPFormer, paper"),
}


def _draw_recommenders(figure, data, colors):
    title(figure, "Next item among all: NDCG@10, %")
    for axes, (group, curves) in zip(figure.subplots(1, len(data)), data.items(), strict=True):
        axes.set_title(NAMES[group], size=13, weight="normal", color=colors["muted"])
        best = curves["without privacy"]
        _without(axes, best, colors, 10.4)
        for name, (color, marker, line, _) in CURVES.items():
            epsilon, mean, half = zip(*curves[name], strict=True)
            axes.errorbar(epsilon, mean, half, color=colors[color], marker=marker,
                          linestyle=line, capsize=3)  # fmt: skip
        axes.set(xticks=[5, 8, 10], xlim=(4.5, 10.5), ylim=(0, best * 1.12), xlabel="ε")
        axes.grid(axis="y", linewidth=0.6)
    first, _ = figure.axes
    aside = {"release": (-0.2, 0.55), "trained": (-0.2, 0.45), "paper": (0.6, -2.0)}
    for name, (color, _, _, text) in CURVES.items():
        epsilon, mean, _ = data["movielens"][name][1]
        right, above = aside[name]
        weight = "bold" if color == "tfdp" else None
        first.text(epsilon + right, mean + above, text, color=colors[color], ha="center",
                   size=11.5, weight=weight)  # fmt: skip


def _say_recommenders(data):
    texts = []
    for group, curves in data.items():
        last = {name: f"{curves[name][1][1]:.1f}" for name in CURVES}
        texts.append(
            f"{NAMES[group]} at ε = {curves['release'][1][0]:g}: one release {last['release']}, "
            f"DPFormer trained here {last['trained']}, DPFormer as its paper states "
            f"{last['paper']}, without privacy {curves['without privacy']:.1f}."
        )
    return "NDCG@10 in percent against ε, with 95% intervals. " + " ".join(texts)


UTILITY = Plot("utility", _recommenders, _draw_recommenders, _say_recommenders, height=4.2)


PAPERS_EPSILON = 8


def _papers():
    """{data set: [[model, NDCG@10 here, that of the paper], ...]} at ε = 8."""
    found = {}
    for group in NAMES:
        runs = {model_of(r["settings"]): r["ndcg_10"] for r in read(f"paper_{group}")["runs"]
                if r["settings"]["epsilon"] == PAPERS_EPSILON}  # fmt: skip
        found[group] = [
            [text, runs[name], DPFORMER[group][name][PAPERS_EPSILON][0]]
            for name, text in TITLES.items()
        ]
    return found


def _draw_papers(figure, data, colors):
    title(figure, f"NDCG@10, %, models trained at ε = {PAPERS_EPSILON}")
    panels = figure.subplots(1, len(data), sharey=True)
    for axes, (group, rows) in zip(panels, data.items(), strict=True):
        axes.set_title(NAMES[group], size=13, weight="normal", color=colors["muted"], pad=26)
        for place, (_, here, paper) in enumerate(rows):
            axes.plot([here, paper], [place, place], color=colors["grid"], linewidth=1.2, zorder=1)
            axes.plot(paper, place, "^", color=colors["a"])
            axes.plot(here, place, "o", color=colors["tfdp"])
        rows_of(axes, [name for name, *_ in rows])
        axes.set_xlim(0, 1.08 * max(max(numbers) for _, *numbers in rows))
    entries = [("here", colors["tfdp"], "o"), ("paper", colors["a"], "^")]
    key(panels[0], entries, loc="lower left", bbox_to_anchor=(-0.05, 1), ncols=2)


def _say_papers(data):
    def said(rows):
        return ", ".join(f"{name} {here:.1f} ({paper:.1f})" for name, here, paper in rows)

    return f"NDCG@10 in percent of models trained at ε = {PAPERS_EPSILON}, and as the paper " + (
        "states it. " + "; ".join(f"{NAMES[g]}: {said(rows)}" for g, rows in data.items()) + "."
    )


def _points(runs, value):
    """[[ε, mean, half width], ...] of runs by their ε; a single run has no width."""
    values = {}
    for run in runs:
        if run["epsilon"] is not None:
            values.setdefault(run["epsilon"], []).append(value(run))
    return [[e, *mean_and_half_width(of)] for e, of in sorted(values.items())]


def _lines(axes, curves, styles, colors):
    """One line with intervals for each curve, over the ε that all of them share."""
    for name, (color, marker, line, *_) in styles.items():
        epsilon, mean, half = zip(*curves[name], strict=True)
        half = [one or 0 for one in half]
        axes.errorbar(epsilon, mean, half, color=colors[color], marker=marker, linestyle=line,
                      capsize=3)  # fmt: skip
    axes.set_xscale("log")
    log_ticks(axes.xaxis, sorted({point[0] for curve in curves.values() for point in curve}))
    axes.set_xlabel("ε")
    axes.grid(axis="y", linewidth=0.6)


def _without(axes, value, colors, x, text="without privacy", va="bottom"):
    axes.axhline(value, color=colors["muted"], linewidth=1.2, linestyle=(0, (2, 2)))
    axes.text(x, value, text, ha="right", va=va, size=12, color=colors["muted"])


CLICKS = {
    "weights of the odds": ("tfdp", "o", "-", "one release, 39 weights"),
    "the odds": ("tfdp", "s", ":", "one release, no training"),
    "dense DP-SGD": ("b", "^", "--", "DP-SGD, 10 million weights"),
}


def _clicks():
    runs, dense = read("click_statistics")["runs"], read("criteo")["runs"]
    weights = [r for r in runs if r["model"] == "weights of the odds"]
    dense = [r for r in dense if r["method"] == "dense"]
    plain = [r["auc"] for r in dense if r["epsilon"] is None]
    curves = {
        "weights of the odds": _points(weights, lambda r: r["auc"]),
        "the odds": _points(weights, lambda r: r["before_training"]["auc"]),
        "dense DP-SGD": _points(dense, lambda r: r["auc"]),
    }
    return {"curves": curves, "plain": sum(plain) / len(plain)}


def _draw_clicks(figure, data, colors):
    axes = figure.subplots()
    title(figure, "Clicks of Criteo's log: AUC")
    _lines(axes, data["curves"], CLICKS, colors)
    _without(axes, data["plain"], colors, 8.3, "pCTR without privacy", va="top")
    places = {"weights of the odds": (1.02, 0.7468), "the odds": (3.2, 0.7215),
              "dense DP-SGD": (1.02, 0.7292)}  # fmt: skip
    for name, place in places.items():
        color, *_, text = CLICKS[name]
        weight = "bold" if name == "weights of the odds" else None
        axes.text(*place, text, color=colors[color], size=12, weight=weight)
    axes.set_ylim(0.715, 0.754)


def _say_clicks(data):
    at_3 = {n: next(p[1] for p in curve if p[0] == 3) for n, curve in data["curves"].items()}
    return (
        f"AUC on Criteo's clicks against ε, with 95% intervals. At ε = 3: weights on the odds of "
        f"one release {at_3['weights of the odds']:.3f}, these odds without training "
        f"{at_3['the odds']:.3f}, dense DP-SGD {at_3['dense DP-SGD']:.3f}; without privacy "
        f"{data['plain']:.3f}."
    )


SELECTIONS = {
    "dense": ("muted", "*", "dense"), "fest": ("a", "s", "FEST"),
    "adafest": ("tfdp", "o", "AdaFEST"),
    "exponential": ("b", "^", "exponential"), "lora": ("c", "D", "LoRA"),
}  # fmt: skip
SELECTION_EPSILON = 3


def _criteo():
    """{method: [[reduction of the gradient size, AUC], ...]} of all runs at ε = 3."""
    runs = [r for r in read("criteo")["runs"] if "periods" not in r]
    plain = [r["auc"] for r in runs if r["epsilon"] is None]
    found = {
        method: sorted(
            [r["reduction"], r["auc"]]
            for r in runs
            if r["epsilon"] == SELECTION_EPSILON and r["method"].removesuffix("+") == method
        )
        for method in SELECTIONS
    }
    return {"methods": found, "plain": sum(plain) / len(plain)}


def _draw_criteo(figure, data, colors):
    axes = figure.subplots()
    title(figure, f"AUC against how much smaller gradients are, ε = {SELECTION_EPSILON}")
    for method, (color, marker, _) in SELECTIONS.items():
        size = 13 if marker == "*" else 8
        axes.plot(*zip(*data["methods"][method], strict=True), marker, color=colors[color],
                  alpha=0.85, markersize=size)  # fmt: skip
    _without(axes, data["plain"], colors, 1e5)
    axes.set(xscale="log", xlim=(0.7, 2e5), ylim=(0.711, 0.7475))
    log_ticks(axes.xaxis, [1, 10, 100, 1000, 10_000, 100_000], "{:,}×")
    axes.grid(axis="y", linewidth=0.6)
    entries = [(text, colors[color], marker) for color, marker, text in SELECTIONS.values()]
    key(axes, entries, loc="lower left", bbox_to_anchor=(-0.1, 1), ncols=5, fontsize=12)


def _say_criteo(data):
    methods = data["methods"]
    best = {name: max(methods[name], key=lambda point: point[1]) for name in methods}
    said = ", ".join(
        f"{SELECTIONS[method][2]} {auc:.4f} at {reduction:,.0f} times"
        for method, (reduction, auc) in best.items()
    )
    return (
        f"AUC on Criteo's clicks against the reduction of the gradient size at ε = "
        f"{SELECTION_EPSILON}. The best run of each method: {said}; without privacy "
        f"{data['plain']:.4f}."
    )


TEXTS = {
    "DP-SGD on the head": ("tfdp", "o", "-", "DP-SGD on the head", (1.05, 82.2)),
    "aggregated mixtures": ("b", "D", "-", "mixtures", (1.25, 73.6)),
    "DP-FP, release once": ("a", "s", "-", "noise, once", (1.07, 70.3)),
    "DP-FP, fresh noise, E = 3": ("c", "^", "-", "noise in each epoch", (3.2, 64.2)),
}
CLAIMED = "the paper's version (NOT a guarantee)"


def _texts():
    rows = read("sst2")["rows"]
    names = [*TEXTS, CLAIMED]
    curves = {
        name: sorted(
            [r["epsilon"], r["dev_accuracy"], r["interval_95"]]
            for r in rows
            if r["method"] == name and r["epsilon"]
        )
        for name in names
    }
    true = [r["true_epsilon"] for r in rows if r["method"] == CLAIMED]
    plain = next(r["dev_accuracy"] for r in rows if r["method"] == "non-private")
    return {"curves": curves, "plain": plain, "true": [min(true), max(true)]}


def _draw_texts(figure, data, colors):
    axes = figure.subplots()
    title(figure, "SST-2 on a frozen encoder: accuracy, %")
    _lines(axes, data["curves"], {**TEXTS, CLAIMED: ("muted", "x", ":")}, colors)
    _without(axes, data["plain"], colors, 8.3)
    for color, _, _, text, place in TEXTS.values():
        weight = "bold" if color == "tfdp" else None
        axes.text(*place, text, color=colors[color], size=12, weight=weight)
    low, high = data["true"]
    axes.text(1.3, 51.2, f"dotted: the paper's version, which\nclaims this ε and has {low:.0f} to "
              f"{high:.0f}", color=colors["muted"], size=12)  # fmt: skip
    axes.set_ylim(50, 85)


def _say_texts(data):
    at_3 = {name: next(p[1] for p in curve if p[0] == 3) for name, curve in data["curves"].items()}
    said = ", ".join(f"{name} {at_3[name]:.1f}" for name in TEXTS)
    return (
        f"Accuracy on SST-2 in percent against ε, with 95% intervals. At ε = 3: {said}; without "
        f"privacy {data['plain']:.1f}. The paper's version has {at_3[CLAIMED]:.1f} at a claimed 3, "
        f"and a true ε of {data['true'][0]:.0f} to {data['true'][1]:.0f}."
    )


SWEEPS = {
    "release once, epsilon 3: C": "one release, ε = 3:\nclip norm C",
    "release once, C = 1: sigma/C": "one release, C = 1:\nσ/C",
    "paper's version, claimed epsilon 0.02: M": "the paper's version,\nclaimed ε = 0.02: M",
}


def _sweeps():
    sweeps = read("sst2_sweeps")["sweeps"]
    return {
        name: [[p["value"], p["dev_accuracy"], min(p["accuracies"]), max(p["accuracies"])]
               for p in sweeps[name]] for name in SWEEPS
    }  # fmt: skip


def _draw_sweeps(figure, data, colors):
    title(figure, "SST-2, frozen encoder: accuracy, %")
    panels = figure.subplots(1, len(data), sharey=True)
    for axes, (name, points) in zip(panels, data.items(), strict=True):
        values, mean, low, high = zip(*points, strict=True)
        color, line = (colors["muted"], ":") if "paper" in name else (colors["tfdp"], "-")
        axes.plot(values, mean, marker="o", color=color, linestyle=line)
        axes.vlines(values, low, high, color=color)
        axes.set_xscale("log")
        log_ticks(axes.xaxis, [values[0], 1, values[-1]] if values[0] < 1 else values)
        axes.set_title(SWEEPS[name], size=11, weight="normal")
        axes.grid(axis="y", linewidth=0.6)


def _say_sweeps(data):
    claimed = data["paper's version, claimed epsilon 0.02: M"]
    norms = data["release once, epsilon 3: C"]
    best = max(norms, key=lambda point: point[1])
    return (
        f"Accuracy on SST-2 in percent. One release at ε = 3 is best at a clip norm of {best[0]:g} "
        f"({best[1]:.1f}) and has {norms[-1][1]:.1f} at {norms[-1][0]:g}. The paper's version at a "
        f"claimed ε of 0.02 rises from {claimed[0][1]:.1f} to {claimed[-1][1]:.1f} with M."
    )


STREAMED = {
    "in order, correlated, 4 bands": ("tfdp", "o", "-"), "Poisson batches": ("b", "^", "--"),
}  # fmt: skip


def _trained():
    runs = [r for r in read("criteo_stream")["runs"] if r.get("model", "weights") == "weights"]
    curves = {
        way: sorted([r["epsilon"], *mean_and_half_width(r["auc"])] for r in runs
                    if r["way"] == way and r["epsilon"] is not None)
        for way in STREAMED
    }  # fmt: skip
    plain = next(r["auc"] for r in runs if r["epsilon"] is None)
    texts = _texts()
    return {
        "clicks": curves, "clicks without privacy": mean_and_half_width(plain)[0],
        "texts": {"head": texts["curves"]["DP-SGD on the head"]},
        "texts without privacy": texts["plain"],
    }  # fmt: skip


def _draw_trained(figure, data, colors):
    title(figure, "Models trained with tfdp")
    clicks, texts = figure.subplots(1, 2)
    clicks.set_title("Criteo, 72,000 clicks: AUC", size=13, weight="normal",
                     color=colors["muted"])  # fmt: skip
    _lines(clicks, data["clicks"], STREAMED, colors)
    first = min(point[0] for points in data["clicks"].values() for point in points)
    _without(clicks, data["clicks without privacy"], colors, 8.3)
    clicks.text(1.0, 0.7445, "one pass,\ncorrelated\nnoise", color=colors["tfdp"], size=12,
                weight="bold", ha="left", va="center")  # fmt: skip
    clicks.text(7.3, 0.7235, "Poisson batches", color=colors["b"], size=12, ha="right")
    clicks.set(ylim=(0.70, 0.756), xlim=(0.9 * first, 9))
    texts.set_title("SST-2, frozen encoder: %", size=13, weight="normal",
                    color=colors["muted"])  # fmt: skip
    _lines(texts, data["texts"], {"head": ("tfdp", "o", "-")}, colors)
    _without(texts, data["texts without privacy"], colors, 8.3)
    texts.set_ylim(70, 84)


def _say_trained(data):
    def said(points, digits):
        return ", ".join(f"{mean:.{digits}f} at ε = {e:g}" for e, mean, _ in points)

    correlated, poisson = (data["clicks"][way] for way in STREAMED)
    return (
        "Quality of trained models against ε, with 95% intervals. AUC of a click model on Criteo: "
        f"one pass with correlated noise {said(correlated, 3)}; Poisson batches "
        f"{said(poisson, 3)}; without privacy {data['clicks without privacy']:.3f}. Accuracy on "
        f"SST-2 in percent: {said(data['texts']['head'], 1)}; without privacy "
        f"{data['texts without privacy']:.1f}."
    )


TRAINED = Plot("trained", _trained, _draw_trained, _say_trained, height=4.2)
CLICKS_UTILITY = Plot("clicks", _clicks, _draw_clicks, _say_clicks)
SELECTION = Plot("criteo", _criteo, _draw_criteo, _say_criteo)
TEXTS_UTILITY = Plot("sst2", _texts, _draw_texts, _say_texts, height=4.4)
TEXTS_SWEEPS = Plot("sst2_sweeps", _sweeps, _draw_sweeps, _say_sweeps, height=3.4)
PAPERS = Plot("papers", _papers, _draw_papers, _say_papers, height=3.8)
