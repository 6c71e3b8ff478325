"""The table of README: times of private steps beside other ways. Written by render.py."""

from tables import read, row, table
from tables_peers import factor, fastest_steps


def in_short():
    factors = [factor(ours, theirs) for _, ours, theirs in fastest_steps()]
    ratios = [s["ratio"] for s in read("step_time")["steps"] if s["policy"] == "float32"]
    sparse = {(m["method"], m["rows"]): 1e3 * m["seconds_per_step"]
              for m in read("sparse_step")["measured"]}  # fmt: skip
    largest = max(rows for _, rows in sparse)
    return [
        *table("time of a private step", "tfdp", "compared with"),
        row("nine models, for each the fastest of TF Privacy, Opacus and JAX-Privacy", "**1**",
            f"{min(factors):.1f} to {max(factors):.1f}"),
        row("transformers, plain Keras at the same batch", f"**{min(ratios):.1f} to "
            f"{max(ratios):.1f}**", "1"),
        row(f"a table of {largest:,} rows, all of them noised (DP-SGD)",
            f"**{sparse['adafest', largest]:.1f} ms** (AdaFEST)",
            f"{sparse['dense', largest] / 1e3:.1f} s"),
        "",
    ]  # fmt: skip
