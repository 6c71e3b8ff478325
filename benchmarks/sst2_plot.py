"""Plots of benchmarks/results/sst2*.json: accuracy by method and ε, and the sweeps."""

import json
import pathlib

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

RESULTS = pathlib.Path(__file__).parent / "results"
NOT_A_GUARANTEE = "NOT a guarantee"


def plot_methods(rows, path):
    """One line for each method: dev accuracy against ε, the paper's version dashed."""
    figure, axes = plt.subplots(figsize=(9, 5.5))
    epsilons = [1, 3, 8]
    for name in dict.fromkeys(row["method"] for row in rows if row["epsilon"] is not None):
        points = {row["epsilon"]: row for row in rows if row["method"] == name}
        found = [e for e in epsilons if e in points]
        claimed = NOT_A_GUARANTEE in name
        true = [f"{points[e]['true_epsilon']:.0f}" for e in found if claimed]
        label = f"{name}; true ε = {', '.join(true)}" if claimed else name
        axes.errorbar(
            found,
            [points[e]["dev_accuracy"] for e in found],
            yerr=[points[e]["interval_95"] or 0 for e in found],
            marker="o", capsize=3, linestyle="--" if claimed else "-", label=label,
        )  # fmt: skip
    plain = next(row for row in rows if row["method"] == "non-private")
    axes.axhline(plain["dev_accuracy"], color="black", linewidth=1, label="non-private")
    axes.set(
        xscale="log", xticks=epsilons, xticklabels=map(str, epsilons),
        xlabel="ε (claimed, where dashed), δ = 1/(2n)", ylabel="dev accuracy, %",
        title="SST-2, linear head on a frozen encoder; bars: 95% intervals over runs",
    )  # fmt: skip
    axes.minorticks_off()
    axes.legend(loc="lower right", fontsize=8)
    axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=130)


def plot_sweeps(sweeps, path):
    """One panel for each swept quantity."""
    columns = 3
    figure, panels = plt.subplots(-(-len(sweeps) // columns), columns, figsize=(14, 7.5))
    for panel, (name, points) in zip(panels.flat, sweeps.items(), strict=False):
        values = [p["value"] for p in points]
        panel.errorbar(
            values,
            [p["dev_accuracy"] for p in points],
            yerr=[(max(p["accuracies"]) - min(p["accuracies"])) / 2 for p in points],
            marker="o", capsize=3, linestyle="--" if "paper" in name else "-",
        )  # fmt: skip
        panel.set(xscale="log", ylim=(45, 85), ylabel="dev accuracy, %")
        panel.set_xticks(values, [f"{v:g}" for v in values])
        panel.minorticks_off()
        panel.set_title(name, fontsize=10)
        panel.grid(alpha=0.3)
    for panel in panels.flat[len(sweeps) :]:
        panel.axis("off")
    figure.suptitle("SST-2, frozen MiniLM; dashed: the paper's version, not a guarantee")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    table = json.loads((RESULTS / "sst2.json").read_text())
    plot_methods(table["rows"], RESULTS / "sst2.png")
    sweeps = RESULTS / "sst2_sweeps.json"
    if sweeps.exists():
        plot_sweeps(json.loads(sweeps.read_text())["sweeps"], RESULTS / "sst2_sweeps.png")
