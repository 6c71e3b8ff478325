"""Plots of claims and noise: attacks, samplers, batch sizes, attention."""

from tables import read

from plots.style import Plot, key, log_ticks, rows_of, title


def _attacks(part):
    """[[name, ε shown, ε claimed], ...] of what was attacked in games, the strongest first."""
    found = {}
    for name, result in read("broken_trainers")[part].items():
        if "bound" in result:
            name = name if part == "broken" else result["by"].removeprefix("audit: ")
            found[name] = max(found.get(name, [0, 0]), [result["bound"], result["claim"]])
    return [[name, *of] for name, of in sorted(found.items(), key=lambda pair: -pair[1][0])]


def _draw_attacks(figure, data, colors, text, color, marker):
    axes = figure.subplots()
    title(figure, text)
    for place, (_, shown, claimed) in enumerate(data):
        axes.plot([shown, claimed], [place, place], color=colors["grid"], linewidth=1.2, zorder=1)
        axes.plot(claimed, place, "|", color=colors["ink"], markersize=15, markeredgewidth=3)
        axes.plot(shown, place, marker, color=colors[color])
    rows_of(axes, [name for name, *_ in data])
    axes.tick_params(axis="y", labelsize=11.5)
    axes.set_xlim(0, None)
    axes.set_xlabel("ε")
    entries = [("shown, at least", colors[color], marker), ("claimed", colors["ink"], "|")]
    key(axes, entries, loc="lower right", bbox_to_anchor=(1.02, 1), ncols=2)


def _draw_sound(figure, data, colors):
    _draw_attacks(figure, data, colors, "Attacks on tfdp as it is", "tfdp", "o")


def _draw_broken(figure, data, colors):
    _draw_attacks(figure, data, colors, "Attacks on tfdp, broken on purpose", "a", "s")


def _say_sound(data):
    closest = max(data, key=lambda row: row[1] / row[2])
    return (
        f"ε shown by {len(data)} attacks on tfdp as it is, each below the ε that is claimed. The "
        f"closest: {closest[0]}, {closest[1]:.2f} shown, {closest[2]:.2f} claimed."
    )


def _say_broken(data):
    closest = min(data, key=lambda row: row[1] / row[2])
    return (
        f"ε shown by attacks on {len(data)} ways to break tfdp, each above the ε that is claimed. "
        f"The closest: {closest[0]}, {closest[1]:.2f} shown, {closest[2]:.2f} claimed."
    )


def _allocation():
    kept = ("noise_multiplier", "steps_per_epoch", "epochs", "allocation", "poisson",
            "without_amplification")  # fmt: skip
    rows = [[one[k] for k in kept] for one in read("random_allocation")["settings"]]
    return sorted(rows, key=lambda row: row[3] / row[4])


def _draw_allocation(figure, data, colors):
    axes = figure.subplots()
    title(figure, "ε at equal noise")
    for place, (*_, allocation, poisson, neither) in enumerate(data):
        axes.plot([allocation, neither], [place, place], color=colors["grid"], linewidth=1.2,
                  zorder=1)  # fmt: skip
        axes.plot(neither, place, "^", color=colors["muted"])
        axes.plot(poisson, place, "s", color=colors["a"])
        axes.plot(allocation, place, "o", color=colors["tfdp"])
    rows_of(axes, [f"σ {s:g}: {e} × {t:,}" for s, t, e, *_ in data])
    axes.set_xscale("log")
    log_ticks(axes.xaxis, [0.5, 1, 2, 5, 10, 20])
    axes.set_xlabel("ε;   rows: noise multiplier: epochs × steps of an epoch", size=12)
    entries = [("allocation", colors["tfdp"], "o"), ("Poisson", colors["a"], "s"),
               ("not amplified", colors["muted"], "^")]  # fmt: skip
    key(axes, entries, loc="lower right", bbox_to_anchor=(1.02, 1), ncols=3)


def _say_allocation(data):
    def said(row):
        s, t, e, allocation, poisson, _ = row
        return f"{allocation:.2f} for {poisson:.2f} at σ = {s:g} and {e} epochs of {t} steps"

    return (
        f"ε of random allocation, Poisson samples and no amplification at equal noise, for "
        f"{len(data)} settings. Allocation gains most at few steps, {said(data[0])}, and least, "
        f"{said(data[-1])}."
    )


UNITS = {  # of the original: unit, distance of neighbours in α; its colour, marker and name
    ("feature", None): ("tfdp", "o", "a feature"),
    ("token", 0.1): ("b", "D", "a token, moved by 0.1 α"),
    ("token", None): ("c", "^", "a token, any change"),
    ("sequence", None): ("a", "s", "the whole sequence"),
}
LENGTH, WIDTH = 16, 64


def _attention():
    """{unit: [[ε, standard error / largest logit], ...]} of Gaussian noise."""
    rows = [r for r in read("attention_release")["errors"]
            if (r["length"], r["width"]) == (LENGTH, WIDTH)]  # fmt: skip
    return {
        name: sorted(
            [r["epsilon"], r["gaussian_noise"]["std_over_range"]]
            for r in rows
            if (r["unit"], r["neighbor_distance"]) == case
        )
        for case, (*_, name) in UNITS.items()
    }


def _draw_attention(figure, data, colors):
    axes = figure.subplots()
    title(figure, "Error of a released logit / largest logit")
    axes.axhline(1, color=colors["muted"], linewidth=1.2, linestyle=(0, (2, 2)))
    axes.text(330, 150, "dashed: a constant is as close", ha="right", size=12,
              color=colors["muted"])  # fmt: skip
    for color, marker, name in UNITS.values():
        axes.plot(*zip(*data[name], strict=True), marker=marker, color=colors[color])
    axes.set(xscale="log", yscale="log")
    log_ticks(axes.xaxis, [0.1, 1, 10, 100])
    log_ticks(axes.yaxis, [0.001, 0.01, 0.1, 1, 10, 100])
    axes.set_xlabel("ε of one release")
    axes.grid(axis="y", linewidth=0.6)
    entries = [(name, colors[color], marker) for color, marker, name in UNITS.values()]
    key(axes, entries, loc="lower left", bbox_to_anchor=(-0.1, 1), ncols=2)


def _say_attention(data):
    at_1 = {name: dict(map(tuple, points))[1.0] for name, points in data.items()}
    said = ", ".join(f"{name} {error:.2g}" for name, error in at_1.items())
    return (
        f"Standard error of a released attention logit as a share of the largest logit against ε, "
        f"for {LENGTH} tokens of width {WIDTH}, both logarithmic. At ε = 1, by what is protected: "
        f"{said}."
    )


def _plan():
    """[[batch size, noise of a step, noise of all steps], ...] as multiples of the least."""
    planned = read("plan")["planned"]
    least = {key: min(one[key] for one in planned) for key in ("step_noise", "total_noise")}
    return [[one["batch_size"], *(one[key] / least[key] for key in least)] for one in planned]


def _draw_plan(figure, data, colors):
    axes = figure.subplots()
    title(figure, "Noise by batch size at one ε, least = 1")
    sizes, step, total = zip(*data, strict=True)
    axes.plot(sizes, step, marker="s", color=colors["a"])
    axes.plot(sizes, total, marker="o", color=colors["tfdp"])
    axes.text(2_600, 6.2, "of one step", color=colors["a"])
    axes.text(900, 1.5, "of all steps", color=colors["tfdp"], weight="bold")
    axes.set(xscale="log", yscale="log", xlabel="expected batch size of 60,000 records")
    log_ticks(axes.xaxis, sizes[::2] + sizes[-1:], "{:,}")
    log_ticks(axes.yaxis, [1, 2, 5, 10])
    axes.grid(axis="y", linewidth=0.6)


def _say_plan(data):
    (batch, step, total), *_ = data
    return (
        f"Noise on the mean gradient against the batch size at one ε and number of epochs. From "
        f"all records at once to batches of {batch:,}, the noise of a step grows {step:.1f} times, "
        f"that of all steps together {total:.2f} times."
    )


AUDITS = Plot("audits", lambda: _attacks("sound"), _draw_sound, _say_sound, height=4.8)
BROKEN = Plot("broken", lambda: _attacks("broken"), _draw_broken, _say_broken, height=6.2)
ALLOCATION = Plot("allocation", _allocation, _draw_allocation, _say_allocation, height=4.6)
ATTENTION_RELEASE = Plot("attention_release", _attention, _draw_attention, _say_attention)
PLAN = Plot("plan", _plan, _draw_plan, _say_plan)
