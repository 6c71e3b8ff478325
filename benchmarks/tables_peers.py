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
}


def _methods(rows):
    """(library, method) with a baseline, in the order in which they were timed."""
    return list(dict.fromkeys((r["library"], r["method"]) for r in rows if r.get("private")))


def _cells(found):
    return {(r["architecture"], r["library"], r["method"]): r for r in found["rows"]}


def _columns(found):
    measured = {r["architecture"] for r in found["rows"]}
    return [name for name in SHORT if name in measured]


def milliseconds(seconds):
    value = 1e3 * seconds
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def steps():
    found = read("peers")
    cells, names, reasons = _cells(found), _columns(found), []
    notes, lines = False, table("", *[SHORT[name] for name in names])
    best = {name: _fastest(found, name) for name in names}
    for library, method in _methods(found["rows"]):
        texts = []
        for name in names:
            cell = cells.get((name, library, method))
            if cell is None:
                texts.append("")
            elif "error" in cell:
                if cell["error"] not in reasons:
                    reasons.append(cell["error"])
                texts.append(f"({reasons.index(cell['error']) + 1})")
            else:
                text = milliseconds(cell["median_seconds"])
                text = f"**{text}**" if cell is best[name] else text
                notes |= "note" in cell
                texts.append(f"{text} · {cell['ratio']:.2f}" + ("*" if "note" in cell else ""))
        lines.append(row(f"{library}, {method}", *texts))
    remarks = [f"({i}) `{_shortened(reason)}`  " for i, reason in enumerate(reasons, 1)]
    if notes:
        remarks.insert(0, "\\* no rule of fast gradient clipping for a layer.  ")
    versions = "; ".join(
        ", ".join(f"{k} {v}" for k, v in of.items()) for of in found["versions"].values()
    )
    return [*lines, "", *remarks, "", f"Versions: {versions}. {found['machine']}.", ""]


def faster_peers():
    """Where another library's best step takes less time than tfdp's best, in the same run."""
    found, lines = read("peers"), []
    for name in _columns(found):
        best = {own: _fastest(found, name, own) for own in (True, False)}
        if None in best.values():
            continue
        ours, theirs = best[True], best[False]
        factor = theirs["median_seconds"] / ours["median_seconds"]
        others = f"{theirs['library']}, {theirs['method']}"
        verdict = f"{factor:.2f} times tfdp's ({ours['method']})"
        lines.append(row(SHORT[name], others, verdict))
    return [*table("", "fastest of the others", "its time"), *lines, ""]


def memory():
    found = read("peers")
    peaks = {
        (r["architecture"], r["library"], r["method"]): r["peak_bytes"] for r in found["peaks"]
    }
    names = [name for name in SHORT if any(key[0] == name for key in peaks)]
    lines = table("", *[SHORT[name] for name in names])
    for library, method in dict.fromkeys(key[1:] for key in peaks):
        texts = [peaks.get((name, library, method)) for name in names]
        texts = ["" if v is None else f"{v / 2**30:.2f}" for v in texts]
        lines.append(row(f"{library}, {method}", *texts))
    return [*lines, ""]


def _fastest(found, name, own=None):
    rows = [
        r
        for r in found["rows"]
        if r["architecture"] == name and r.get("private") and "error" not in r
        and own in (None, r["library"] == "tfdp")
    ]  # fmt: skip
    return min(rows, key=lambda r: r["median_seconds"], default=None)


def _shortened(reason, length=160):
    reason = reason.replace("\n", " ").replace("`", "'").replace("|", "/")
    return reason if len(reason) <= length else reason[:length] + "…"
