"""The tables of docs/benchmarks.md on other libraries, from peers.json. Written by render.py."""

from tables import read, row, table

SHORT = {
    "transformer, 50 positions": "T 50",
    "transformer, 50 positions, tied": "T 50, tied",
    "transformer, 200 positions": "T 200",
    "transformer, 200 positions, tied": "T 200, tied",
    "multilayer perceptron": "MLP",
    "GRU": "GRU",
    "convolutions, group normalisation": "CNN",
    "clicks, 26 tables": "clicks",
    "clicks, 12 larger tables": "clicks, 12",
    "encoder with LoRA": "LoRA",
}


KEY = ("architecture", "library", "method")


def cells_of(found):
    """{key: row}; a method that did not clip, or that could not be checked, has no time."""
    cells = {tuple(r[k] for k in KEY): dict(r) for r in found["rows"]}
    for check in found.get("checks", ()):
        key = tuple(check[k] for k in KEY)
        if "error" in check and key in cells:
            cells[key].setdefault("error", check["error"])
    return cells


def names_of(cells):
    return [name for name in SHORT if any(key[0] == name for key in cells)]


def best_of(cells, name, library):
    """The private method of `library` with the fastest step, or None where all of them fail."""
    rows = [
        r
        for (architecture, of, _), r in cells.items()
        if (architecture, of) == (name, library) and r["private"] and "error" not in r
    ]
    return min(rows, key=lambda r: r["fastest_seconds"], default=None)


def _fastest(cells, name, own):
    """The private method of tfdp, or of all others, with the fastest step."""
    libraries = {key[1] for key in cells if (key[1] == "tfdp") == own}
    best = [found for library in libraries if (found := best_of(cells, name, library))]
    return min(best, key=lambda r: r["fastest_seconds"], default=None)


def milliseconds(seconds):
    value = 1e3 * seconds
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def steps():
    found = read("peers")
    cells, reasons, noted = cells_of(found), [], False
    names = names_of(cells)
    fastest = [_fastest(cells, name, own) for name in names for own in (True, False)]
    lines = table("", *[SHORT[name] for name in names])

    def text(cell):
        if cell is None:
            return ""
        if "error" in cell:
            if cell["error"] not in reasons:
                reasons.append(cell["error"])
            return f"({reasons.index(cell['error']) + 1})"
        time = milliseconds(cell["fastest_seconds"])
        if not cell["private"]:
            return time
        mark = "\\*" if "note" in cell else ""
        best = any(cell is other for other in fastest)
        plain = cells[cell["architecture"], cell["library"], cell["baseline"]]
        time = f"**{time}**" if best else time
        if "error" in plain:
            return f"{time}{mark}"
        return f"{time}{mark} · {cell['fastest_seconds'] / plain['fastest_seconds']:.2f}"

    for library, method in dict.fromkeys(key[1:] for key in cells):
        noted |= any("note" in r for key, r in cells.items() if key[1:] == (library, method))
        texts = [text(cells.get((name, library, method))) for name in names]
        lines.append(row(f"{library}, {method}", *texts))
    remarks = [f"({i}) `{_shortened(reason)}`  " for i, reason in enumerate(reasons, 1)]
    if noted:
        remarks.insert(0, "\\* without fast gradient clipping, because a layer lacks a rule.  ")
    versions = "; ".join(
        ", ".join(f"{k} {v}" for k, v in of.items()) for of in found["versions"].values()
    )
    rounds = f"{found['machine']}, {found['threads']} threads"
    return [*lines, "", *remarks, "", f"Versions: {versions}. {rounds}.", ""]


def fastest_steps(results="peers"):
    """(architecture, tfdp's fastest private step, that of all others), rows of one run."""
    cells = cells_of(read(results))
    pairs = [(n, _fastest(cells, n, True), _fastest(cells, n, False)) for n in names_of(cells)]
    return [(name, ours, theirs) for name, ours, theirs in pairs if ours and theirs]


def factor(ours, theirs):
    """How many times as long the other step takes."""
    return theirs["fastest_seconds"] / ours["fastest_seconds"]


def fastest():
    """The fastest step of another library against tfdp's, in the same run, on two machines."""
    other = {name: both for name, *both in fastest_steps("peers_avx2")}
    lines = table("", "fastest of the others", "its time / tfdp's", "the same on another machine")
    for name, *both in fastest_steps():
        lines.append(
            row(SHORT[name], *_compared(*both), ": ".join(_compared(*other.get(name, ()))))
        )
    return [*lines, ""]


def _compared(ours=None, theirs=None):
    """(the other method, its factor and tfdp's method)."""
    if ours is None:
        return ("not measured",)
    return (
        f"{theirs['library']}, {theirs['method']}",
        f"{factor(ours, theirs):.2f} ({ours['method']})",
    )


def checks():
    """The largest error of each library against single examples."""
    lines = table("", "checked: methods on architectures", "largest relative error")
    rows = [r for r in read("peers").get("checks", ()) if "relative_error" in r]
    for library in dict.fromkeys(r["library"] for r in rows):
        own = [r["relative_error"] for r in rows if r["library"] == library]
        lines.append(row(library, len(own), f"{max(own):.0e}"))
    return [*lines, ""]


def memory():
    rows = read("peers").get("peaks", ())
    if not rows:
        return ["The peak memory of the other libraries has not been measured yet.", ""]
    peaks = {tuple(r[k] for k in KEY): r["peak_bytes"] for r in rows}
    names = names_of(peaks)
    lines = [
        "Peak memory in GiB of a separate process after a few steps, including the library itself:"
    ]
    lines += ["", *table("", *[SHORT[name] for name in names])]
    for library, method in dict.fromkeys(key[1:] for key in peaks):
        texts = [peaks.get((name, library, method)) for name in names]
        texts = ["" if v is None else f"{v / 2**30:.2f}" for v in texts]
        lines.append(row(f"{library}, {method}", *texts))
    return [*lines, ""]


def _shortened(reason, length=160):
    reason = reason.replace("\n", " ").replace("`", "'").replace("|", "/")
    return reason if len(reason) <= length else reason[:length] + "…"
