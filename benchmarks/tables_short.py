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
        *table("private step", "time"),
        row(f"{len(factors)} models: the fastest of TF Privacy, Opacus and JAX-Privacy",
            f"{min(factors):.1f} to {max(factors):.1f} times as long as tfdp"),
        row("transformers: tfdp",
            f"{min(ratios):.1f} to {max(ratios):.1f} times as long as Keras without privacy"),
        row(f"a table of {largest:,} rows",
            f"{sparse['adafest', largest]:.1f} ms with AdaFEST, {sparse['dense', largest]:,.0f} ms "
            "with noise on all rows"),
        "",
    ]  # fmt: skip
