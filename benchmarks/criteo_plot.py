"""AUC against the reduction of the gradient size, as in figures 3 and 4 of the paper."""

import json

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

STYLES = {
    "dense": ("k", "*", "DP-SGD"), "fest": ("tab:blue", "s", "DP-FEST"),
    "adafest": ("tab:red", "o", "DP-AdaFEST"), "adafest+": ("tab:purple", "D", "DP-AdaFEST+"),
    "exponential": ("tab:green", "^", "exponential selection"), "lora": ("tab:brown", "v", "LoRA"),
}  # fmt: skip


def plot(source, target):
    """Writes one panel for each ε."""
    with open(source) as file:
        runs = json.load(file)["runs"]
    runs = [r for r in runs if "periods" not in r]
    plain = [r["auc"] for r in runs if r["epsilon"] is None]
    epsilons = sorted({r["epsilon"] for r in runs if r["epsilon"] is not None})
    figure, axes = plt.subplots(1, len(epsilons), figsize=(5 * len(epsilons), 4.2), sharey=True)
    for axis, epsilon in zip(axes, epsilons, strict=True):
        for method, (color, marker, label) in STYLES.items():
            points = sorted(
                (r["reduction"], r["auc"])
                for r in runs
                if r["epsilon"] == epsilon and r["method"] == method
            )
            if points:
                axis.scatter(*zip(*points, strict=True), c=color, marker=marker, s=30, label=label)
                axis.plot(*zip(*_frontier(points), strict=True), color=color, alpha=0.5)
        if plain:
            axis.axhline(sum(plain) / len(plain), color="gray", ls=":", label="not private")
        axis.set(xscale="log", title=f"ε = {epsilon:g}", xlabel="reduction of the gradient size")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("test AUC")
    axes[-1].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(target, dpi=120)


def _frontier(points):
    """The points that no other one beats in both."""
    return [p for p in points if not any(q[0] >= p[0] and q[1] > p[1] for q in points)]
