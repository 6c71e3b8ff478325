"""The table of README: what tfdp is better at. Written by render.py."""

from tables import read, row, table, with_interval
from tables_peers import factor, fastest_steps
from tables_transitions import PAPER

_AT = 8  # ε of the recommenders


def in_short():
    factors = [factor(ours, theirs) for _, ours, theirs in fastest_steps()]
    ratios = [s["ratio"] for s in read("step_time")["steps"] if s["policy"] == "float32"]
    sparse = {(m["method"], m["rows"]): 1e3 * m["seconds_per_step"]
              for m in read("sparse_step")["measured"]}  # fmt: skip
    largest = max(rows for _, rows in sparse)
    (found,) = (one for one in read("transitions_movielens_odds")["rows"]
                if one["model"] == "transitions" and one["epsilon"] == _AT)  # fmt: skip
    return [
        *table("", "tfdp", "beside it"),
        row("Time of a private step, nine models", "**1**",
             f"{min(factors):.1f} to {max(factors):.1f}: the fastest of TF Privacy, Opacus and "
             "JAX-Privacy"),
        row("Time of a private step of a transformer",
            f"**{min(ratios):.1f} to {max(ratios):.1f}**",
             "1: plain Keras"),
        row(f"Time of a step on a table of {largest:,} rows",
            f"**{sparse['adafest', largest]:.1f} ms** (AdaFEST)",
            f"{sparse['dense', largest] / 1e3:.1f} s: DP-SGD"),
        row(f"MovieLens-1M, next item, ε = {_AT}: NDCG@10 %",
             f"**{with_interval(found['summary']['ndcg_10'], 1)}** (one release)",
             f"{PAPER['movielens'][_AT]:.1f}: DPFormer, as published"),
        "",
    ]  # fmt: skip
