"""The tables of docs/benchmarks.md about audits. Written by render.py."""

from tables import read, row, table


def audits():
    found = read("broken_trainers")
    sound = {
        name: r for name, r in found["sound"].items() if "bound" in r
    }  # the others are named tests, which pass
    lines = table("attack against tfdp as it is", "trials", "ε shown, at least", "ε claimed")
    for _, r in sorted(sound.items()):
        lines.append(row(r["by"].removeprefix("audit: "), f"{r['trials']:,}", f"{r['bound']:.2f}",
                         f"{r['claim']:.2f}"))  # fmt: skip
    lines += ["", *table("broken on purpose", "caught", "by")]
    for name, r in found["broken"].items():
        by = f"ε ≥ {r['bound']:.2f} shown, {r['claim']:.2f} claimed" if "bound" in r else (
            f"`{r['by']}`")  # fmt: skip
        lines.append(row(name, "yes" if r["caught"] else "**no**", by))
    dates = sorted(r["date"] for part in found.values() for r in part.values())
    return [*lines, "", f"Run from {dates[0]} to {dates[-1]}.", ""]
