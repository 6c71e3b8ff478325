"""The table of docs/gpu.md. Written by render.py."""

from tables import read, row, table


def steps():
    found = read("gpu")
    programs = found["programs"]
    pairs = {}
    for one in programs.values():
        if one["kind"] in ("plain", "private"):
            pairs.setdefault((one["model"], one["batch"]), {})[one["kind"]] = one
    lines = table("model", "batch", "plain, ms", "private, ms", "private / plain",
                  "furthest from the same step on a CPU")  # fmt: skip
    for (model, batch), kinds in pairs.items():
        plain, private = (kinds[kind]["milliseconds"] for kind in ("plain", "private"))
        difference = kinds["private"].get("difference_from_cpu")
        lines.append(
            row(model, f"{batch:,}", f"{plain:.1f}", f"{private:.1f}", f"**{private / plain:.2f}**",
                "" if difference is None else f"{difference:.0e}")
        )  # fmt: skip
    sparse, dense = (
        next(p["milliseconds"] for p in programs.values() if p["kind"] == kind)
        for kind in ("AdaFEST", "dense")
    )
    chain, independent = (
        next(p for p in programs.values() if p["kind"] == kind)
        for kind in ("4 bands", "independent noise")
    )
    noise = next(p for p in programs.values() if p["kind"] == "noise")
    law = noise["law"]
    return [
        *lines,
        "",
        f"{found['device']}, JAX {found['jax']}. A private step on a table of a million rows × 64, "
        f"batch 1,024: {sparse:.1f} ms with AdaFEST, {dense:.1f} ms with noise on every row. A "
        f"private step of a {chain['model']}, batch {chain['batch']}: "
        f"{independent['milliseconds']:.1f} ms with independent noise, "
        f"{chain['milliseconds']:.1f} ms with noise that is correlated over steps (4 bands). "
        f"A draw of {law['values']:,} values of noise takes {noise['milliseconds']:.1f} ms. The "
        f"largest value is {law['largest']:.2f} standard deviations. The Kolmogorov distance of "
        f"the values from the normal distribution, times √n, is {law['kolmogorov']:.2f} (correct "
        "noise exceeds 2.7 once in a million draws).",
    ]
