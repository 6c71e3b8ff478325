"""The table of scales before clipping and of AdamBC. Written by render.py."""

from tables import mean_and_half_width, read, row, table, with_interval

TASKS = {
    "clicks": "clicks, AUC %", "sentences": "sentences, accuracy %", "items": "items, NDCG@10 %",
}  # fmt: skip


def scales():
    """What each way changed, with 95% intervals over pairs of runs."""
    found = read("adam_and_scales")
    if found is None:
        return []
    runs = {(run["task"], run["way"]): run for run in found["runs"]}
    tasks = [task for task in TASKS if (task, "Adam") in runs]
    ways = dict.fromkeys(run["way"] for run in found["runs"])
    lines = table("", *(TASKS[task] for task in tasks))
    for way in ways:
        cells = [_cell(runs.get((task, way))) for task in tasks]
        lines.append(row(way if way == "Adam" else f"{way}, difference", *cells))
    least = {t: min(len(run["scores"]) for (of, _), run in runs.items() if of == t) for t in tasks}
    pairs = ", ".join(f"{number} for {task}" for task, number in least.items())
    return [
        *lines,
        "",
        f"± is half a 95% interval. Those of differences are over pairs of runs: {pairs}.",
        "",
    ]


def _cell(run):
    if run is None:
        return ""
    if "better_than_adam" in run:
        shown = with_interval(run["better_than_adam"])
        return shown if shown.startswith("-") else f"+{shown}"
    mean, half_width = mean_and_half_width(run["scores"])
    return with_interval({"mean": mean, "half_width": half_width})
