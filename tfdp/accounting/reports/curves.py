"""Drawing what `tfdp.callbacks.PrivacyCurve` kept."""

import os

from tfdp.accounting.reports.figures import new_figure
from tfdp.accounting.rounding import round_down


def plot(points: list[dict], delta: float, path: str | os.PathLike):
    """Draws ε over steps and, where rows were selected, how many received noise.

    Args:
        points: of a `PrivacyCurve`.
        delta: δ of its ε.
        path: image file.

    Raises:
        ValueError: if matplotlib is missing.
    """
    sizes = [(p["step"], p["gradient_size"]) for p in points if "gradient_size" in p]
    rows = [(p["step"], p["survivors"]) for p in points if "survivors" in p]
    figure = new_figure(6.4, 4.0 + 3.0 * bool(sizes))
    axes, *below = figure.subplots(1 + bool(sizes), 1, squeeze=False, sharex=True)[:, 0]
    axes.plot(*_columns([(p["step"], p["epsilon"]) for p in points]), marker="o", markersize=3)
    sigmas = {round_down(p["noise_multiplier"]) for p in points if "noise_multiplier" in p}
    title = "Privacy spent"
    if len(sigmas) == 1:
        title += f", noise multiplier {sigmas.pop()}"
    axes.set(ylabel=f"epsilon at delta = {delta:g}", title=title, ylim=(0, None))
    axes.grid(alpha=0.3)
    if sizes:
        below[0].semilogy(*_columns(sizes), marker="o", markersize=3, label="scalars with noise")
        if rows:
            below[0].semilogy(*_columns(rows), marker="s", markersize=3, label="surviving rows")
        below[0].set(ylabel="of sparse tables, a step", title="What the selection let through")
        shown = [size for _, size in sizes + rows if size > 0]
        if shown:  # sizes hardly change: a decade of context keeps their noise small
            below[0].set_ylim(min(shown) / 3, max(shown) * 3)
        below[0].legend()
        below[0].grid(alpha=0.3, which="both")
    (axes, *below)[-1].set_xlabel("steps")
    figure.savefig(path, dpi=150)


def _columns(pairs):
    return [p[0] for p in pairs], [p[1] for p in pairs]
