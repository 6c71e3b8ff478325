"""Tables of docs/two_towers.md from the JSON in benchmarks/results."""

import statistics

from tables import read, row, table


def catalogue():
    """Recall on a made catalogue whose best possible recall is known."""
    found = read("catalogue")
    settings = found["settings"]
    lines = table("trained", "recall@100", "of the best possible", "noise multiplier")
    best = found["best possible"]
    for one in found["rows"]:
        name = "without privacy"
        if one["epsilon"] is not None:
            name = f"ε = {one['epsilon']:g}, noise at the {one['noise_at']}"
        noise = f"{one['noise_multiplier']:.2f}" if one["epsilon"] is not None else ""
        recall = one["recall_100"]
        lines.append(row(name, f"{recall:.3f}", f"{100 * recall / best:.0f}%", noise))
    lines.append(row("(best possible)", f"{best:.3f}", "100%", ""))
    said = (
        f"{found['items']:,} items with public features, {settings['users']:,} users of one pair "
        f"each, {settings['steps']} steps of {settings['batch']:,} users and "
        f"{settings['negatives']:,} negatives, one seed; δ = 1/{10 * settings['users']:,}. "
        f"At random: {found['at random']:.4f}. Measured on 2,000 other users: standard error "
        f"{(best * (1 - best) / 2000) ** 0.5:.3f}. `benchmarks/catalogue.py`."
    )
    return [*lines, "", said]


def movielens():
    """Two towers beside the release of transitions, on MovieLens-1M, one user being the unit."""
    found, released = read("two_towers_movielens"), read("transitions_movielens")
    lines = table("model", "ε", "runs", "NDCG@10 %", "HIT@10 %")
    rows = [(one["model"], one["epsilon"], one["runs"]) for one in released["rows"]]
    rows = [r for r in rows if r[1] in (8.0, None)]
    for one in sorted(found["rows"], key=lambda r: r["all_items"]):
        name = "two towers, full softmax" if one["all_items"] else "two towers"
        name += "" if one["epsilon"] else ", no privacy"
        rows.append((name, one["epsilon"], one["runs"]))
    for name, epsilon, runs in rows:
        means = (statistics.mean(r[m] for r in runs) for m in ("ndcg_10", "hit_10"))
        shown = f"{epsilon:g}" if epsilon else "∞"
        lines.append(row(name, shown, str(len(runs)), *(f"{m:.2f}" for m in means)))
    settings = found["settings"]
    said = (
        f"MovieLens-1M, {found['num_users']:,} users, {found['num_items']:,} items; the last item "
        f"of each user among all items; δ = 1/{found['num_users']:,}. Two towers: "
        f"{settings['steps']} steps of {settings['users']:,} users, {settings['pairs']} pairs "
        f"each, untuned, {settings['negatives']} negatives, vectors of {settings['width']} "
        "numbers. "
        "`benchmarks/two_towers_sequences.py`, `benchmarks/transitions.py`."
    )
    return [*lines, "", said]
