"""Plots of quality against ε."""

from tables import read
from tables_paper import DPFORMER, NAMES, model_of

from plots.style import Plot, title


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
        axes.axhline(best, color=colors["muted"], linewidth=1.2, linestyle=(0, (2, 2)))
        axes.text(10.4, best * 1.012, "without privacy", ha="right", va="bottom", size=12,
                  color=colors["muted"])  # fmt: skip
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
