"""Plots of the time and memory of steps."""

from tables import read
from tables_peers import SHORT, best_of, cells_of, names_of

from plots.style import Plot, key, title

OTHERS = {"TF Privacy": ("a", "s"), "Opacus": ("b", "^"), "JAX-Privacy": ("c", "D")}
LONG = {"T 50": "transformer, 50", "T 50, tied": "… tied table", "T 200": "transformer, 200",
        "T 200, tied": "… tied table", "clicks": "click model", "LoRA": "LoRA"}  # fmt: skip


def _peers():
    """{architecture: {library: its best private step / tfdp's, or None}}."""
    cells = cells_of(read("peers"))
    found = {}
    for name in names_of(cells):
        own = best_of(cells, name, "tfdp")
        others = {library: best_of(cells, name, library) for library in OTHERS}
        found[name] = {
            library: best and best["fastest_seconds"] / own["fastest_seconds"]
            for library, best in others.items()
        }
    return found


def _draw_peers(figure, data, colors):
    axes = figure.subplots()
    title(figure, "Time of a private step, as a multiple of tfdp's")
    names = list(data)
    axes.axvline(1, color=colors["tfdp"], linewidth=3)
    for place, name in enumerate(names):
        ratios = [ratio for ratio in data[name].values() if ratio]
        axes.plot([1, max(ratios)], [place, place], color=colors["grid"], linewidth=1.2, zorder=1)
        for library, (color, marker) in OTHERS.items():
            ratio = data[name][library]
            if ratio:
                axes.plot(ratio, place, marker, color=colors[color], alpha=0.9)
            else:
                axes.text(150, place, f"{library} fails", ha="right", va="center",
                          color=colors[color], size=11)  # fmt: skip
    axes.set_yticks(range(len(names)), [LONG.get(SHORT[n], SHORT[n]) for n in names])
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_xscale("log")
    ticks = [1, 2, 5, 10, 20, 50, 100]
    axes.set_xticks(ticks, [f"{t}×" for t in ticks])
    axes.minorticks_off()
    axes.set_xlim(0.9, 160)
    axes.grid(axis="x", linewidth=0.6)
    entries = [(name, colors[color], marker) for name, (color, marker) in OTHERS.items()]
    key(axes, entries, loc="lower right", bbox_to_anchor=(1.02, 1), ncols=3)
    axes.text(0.95, -0.75, "tfdp", color=colors["tfdp"], ha="right", weight="bold")


def _say_peers(data):
    ratios = {(name, library): r for name, of in data.items() for library, r in of.items() if r}
    nearest, farthest = min(ratios, key=ratios.get), max(ratios, key=ratios.get)
    return (
        f"Time of the fastest private step of TF Privacy, Opacus and JAX-Privacy as a multiple of "
        f"tfdp's, for {len(data)} models, on a logarithmic axis. The nearest is {nearest[1]} on "
        f"{SHORT[nearest[0]]} at {ratios[nearest]:.1f} times, the farthest {farthest[1]} on "
        f"{SHORT[farthest[0]]} at {ratios[farthest]:.0f} times."
    )


STEP_TIME = Plot("step_time", _peers, _draw_peers, _say_peers, height=4.6)
