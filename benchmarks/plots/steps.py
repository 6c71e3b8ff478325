"""Plots of the time and memory of steps."""

from tables import read
from tables_peers import KEY, SHORT, best_of, cells_of, names_of

from plots.style import Plot, key, log_ticks, rows_of, title

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


def _long(names):
    return [LONG.get(SHORT[name], SHORT[name]) for name in names]


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
    rows_of(axes, _long(names))
    axes.set_xscale("log")
    log_ticks(axes.xaxis, [1, 2, 5, 10, 20, 50, 100], "{}×")
    axes.set_xlim(0.9, 160)
    entries = [(name, colors[color], marker) for name, (color, marker) in OTHERS.items()]
    key(axes, entries, loc="lower right", bbox_to_anchor=(1.02, 1), ncols=3)
    axes.text(0.95, -0.75, "tfdp", color=colors["tfdp"], ha="right", weight="bold")


def _say_peers(data):
    ratios = {(name, library): r for name, of in data.items() for library, r in of.items() if r}
    nearest, farthest = min(ratios, key=ratios.get), max(ratios, key=ratios.get)
    return (
        f"Time of a private step of TF Privacy, of Opacus and of JAX-Privacy (each in its fastest "
        f"mode) as a multiple of tfdp's, for {len(data)} models, on a logarithmic axis. The "
        f"nearest is {nearest[1]} on "
        f"{SHORT[nearest[0]]} at {ratios[nearest]:.1f} times, the farthest {farthest[1]} on "
        f"{SHORT[farthest[0]]} at {ratios[farthest]:.0f} times."
    )


STEP_TIME = Plot("step_time", _peers, _draw_peers, _say_peers, height=4.6)


def _memory():
    """{architecture: {library: GiB of a process with its fastest private step}}."""
    peers = read("peers")
    cells = cells_of(peers)
    peaks = {tuple(r[k] for k in KEY): r["peak_bytes"] for r in peers["peaks"]}
    found = {}
    for name in names_of(cells):
        best = {library: best_of(cells, name, library) for library in ("tfdp", *OTHERS)}
        keys = {library: tuple(r[k] for k in KEY) for library, r in best.items() if r}
        found[name] = {lib: peaks[key] / 2**30 for lib, key in keys.items() if key in peaks}
    return found


def _draw_memory(figure, data, colors):
    axes = figure.subplots()
    title(figure, "Memory of a process that trains, GiB")
    libraries = {"tfdp": ("tfdp", "o"), **OTHERS}
    for place, of in enumerate(data.values()):
        for library, gib in of.items():
            color, marker = libraries[library]
            axes.plot(gib, place, marker, color=colors[color], alpha=0.9)
    rows_of(axes, _long(data))
    axes.set_xlim(0, None)
    entries = [(name, colors[color], marker) for name, (color, marker) in libraries.items()]
    key(axes, entries, loc="lower right", bbox_to_anchor=(1.02, 1), ncols=4, fontsize=12)


def _say_memory(data):
    large = data["transformer, 200 positions"]
    said = ", ".join(f"{library} {gib:.1f}" for library, gib in large.items())
    return (
        f"Peak memory of a process with the fastest private step of each library, for {len(data)} "
        f"models, in GiB. A transformer of 200 positions: {said}."
    )


def _transformers():
    """[[name, private step / plain Keras step], ...] of transformers."""
    found = []
    for step in read("step_time")["steps"]:
        name = f"{step['length']} positions{', tied' if step['tied'] else ''}"
        half = ", bfloat16" if "bfloat16" in step["policy"] else ""
        found.append([f"{name}{half}", step["xla"], step["ratio_of_fastest"]])
    return found


def _draw_transformers(figure, data, colors):
    axes = figure.subplots()
    title(figure, "Transformers: private step / plain Keras step")
    names = list(dict.fromkeys(name for name, *_ in data))
    axes.axvline(1, color=colors["muted"], linewidth=1.2)
    kinds = {False: ("tfdp", "o"), True: ("a", "s")}
    for name, xla, ratio in data:
        color, marker = kinds[xla]
        axes.plot(ratio, names.index(name), marker, color=colors[color])
    rows_of(axes, names)
    axes.set_xlim(0.7, 1.45)
    log_ticks(axes.xaxis, [0.8, 1, 1.2, 1.4], "{}×")
    entries = [("tf.function", colors["tfdp"], "o"), ("XLA", colors["a"], "s")]
    key(axes, entries, loc="lower right", bbox_to_anchor=(1.02, 1), ncols=2)


def _say_transformers(data):
    return (
        "Time of tfdp's private step as a multiple of the plain Keras step, for transformers: "
        + (
            "; ".join(
                f"{'XLA' if kind else 'tf.function'} {min(of):.2f} to {max(of):.2f}"
                for kind in (False, True)
                if (of := [ratio for _, xla, ratio in data if xla == kind])
            )
            + "."
        )
    )


def _small():
    """[[name, private step / plain Keras step], ...] of small models, the cheapest first."""
    steps = read("cliffs")["steps"]
    return sorted(([s["name"], s["ratio_of_fastest"]] for s in steps), key=lambda pair: pair[1])


def _draw_small(figure, data, colors):
    axes = figure.subplots()
    title(figure, "Small models: private step / plain Keras step")
    names, ratios = zip(*data, strict=True)
    axes.axvline(1, color=colors["muted"], linewidth=1.2)
    axes.hlines(range(len(data)), 1, ratios, color=colors["tfdp"], linewidth=1.4, alpha=0.6)
    axes.plot(ratios, range(len(data)), "o", color=colors["tfdp"], markersize=7)
    rows_of(axes, names)
    axes.tick_params(axis="y", labelsize=11)
    axes.set_xlim(0.7, 2.5)
    log_ticks(axes.xaxis, [1, 1.5, 2, 2.5], "{}×")


def _say_small(data):
    (low, least), *_, (high, most) = data
    return (
        f"Time of tfdp's private step as a multiple of the plain Keras step, for {len(data)} small "
        f"models, from {least:.2f} ({low}) to {most:.2f} ({high})."
    )


def _rows():
    """{method: [[rows, milliseconds], ...]} of a step on one embedding table."""
    measured = read("sparse_step")["measured"] + read("sparse_step_100_million_rows")["measured"]
    return {
        method: sorted(
            [m["rows"], 1e3 * m["seconds_per_step"]] for m in measured if m["method"] == method
        )
        for method in ("dense", "plain", "adafest")
    }


def _draw_rows(figure, data, colors):
    axes = figure.subplots()
    title(figure, "A step by rows of the table, milliseconds")
    texts = {
        "dense": ("b", "^", "dense DP-SGD", (0.82, 0.92)),
        "plain": ("a", "s", "not private", (0.45, 0.19)),
        "adafest": ("tfdp", "o", "tfdp, AdaFEST", (0.8, 0.03)),
    }
    for method, (color, marker, text, place) in texts.items():
        axes.plot(*zip(*data[method], strict=True), marker=marker, color=colors[color])
        axes.text(*place, text, color=colors[color], transform=axes.transAxes, ha="center")
    axes.set(xscale="log", yscale="log", ylim=(0.3, 4000))
    log_ticks(axes.xaxis, [1e5, 1e6, 1e7, 1e8])
    axes.set_xticklabels(["100,000", "1 million", "10 million", "100 million"])
    log_ticks(axes.yaxis, [1, 10, 100, 1000])
    axes.grid(axis="y", linewidth=0.6)


def _say_rows(data):
    dense, sparse, plain = ({r: ms for r, ms in data[m]} for m in ("dense", "adafest", "plain"))
    rows = max(dense)
    return (
        f"Milliseconds of a step against the rows of an embedding table, both logarithmic. At "
        f"{rows:,} rows: dense DP-SGD {dense[rows]:,.0f}, AdaFEST {sparse[rows]:.1f}, without "
        f"privacy {plain[rows]:.1f}. AdaFEST at {max(sparse):,} rows: {sparse[max(sparse)]:.1f}."
    )


MEMORY = Plot("memory", _memory, _draw_memory, _say_memory, height=4.6)
TRANSFORMERS = Plot("transformers", _transformers, _draw_transformers, _say_transformers)
SMALL_MODELS = Plot("small_models", _small, _draw_small, _say_small, height=6.4)
TABLE_ROWS = Plot("table_rows", _rows, _draw_rows, _say_rows)
