"""Tables of docs/two_towers.md from the JSON in benchmarks/results."""

import statistics

from tables import mean_and_half_width, read, row, table


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


def sequences(name, title):
    """Two towers beside other private recommenders on one data set, one user being the unit."""
    found = read(f"two_towers_{name}")
    kinds = {
        "two towers": (False, None), "two towers, softmax over all items": (True, None),
        "two towers, vectors from a release": (False, "release"),
    }  # fmt: skip
    rows = {"a release of transitions, `TransitionOdds`": _of_release(name)}
    for kind, settings in kinds.items():
        of_kind = {
            one["epsilon"] or None: one["runs"]
            for one in found["rows"]
            if (one["all_items"], one.get("start")) == settings
        }
        rows[kind] = {e: [r["ndcg_10"] for r in runs] for e, runs in of_kind.items()}
        if settings[1]:
            before = {
                e: [r["before training"]["ndcg_10"] for r in runs] for e, runs in of_kind.items()
            }
            rows["the same before training, at three quarters of ε"] = before
    rows["DPFormer"] = _of_dpformer(name)
    columns = (5.0, 8.0, 10.0, None)
    lines = table("NDCG@10 %", *(f"ε = {e:g}" if e else "no privacy" for e in columns))
    for kind, values in rows.items():
        if values:
            lines.append(row(kind, *(_shown(values.get(e)) for e in columns)))
    settings, factors = found["settings"], found["factors"]
    said = (
        f"{title}, {found['num_users']:,} users, {found['num_items']:,} items; the last item of "
        f"each user among all items; δ = 1/{found['num_users']:,}. Means, with 95% intervals of "
        f"five runs; other cells are of one to three. Two towers: {settings['steps']} steps of "
        f"{settings['users']:,} users, {settings['pairs']} pairs each, untuned, "
        f"{settings['negatives']} negatives, vectors of {settings['width']} numbers, from a "
        f"release {factors['width']}. `benchmarks/two_towers_sequences.py`, "
        "`benchmarks/transitions.py`."
    )
    return [*lines, "", said]


def _of_release(name):
    found = read(f"transitions_{name}_odds")["rows"]
    return {
        one["epsilon"]: [run["ndcg_10"] for run in one["runs"]]
        for one in found
        if one["model"] in ("transitions", "transitions, no privacy")
    }


def _of_dpformer(name):
    runs = read(f"paper_{name}")["runs"]
    return {
        run["settings"]["epsilon"]: [run["ndcg_10"]]
        for run in runs
        if run["settings"]["model"] == "dpformer"
    }


def _shown(values):
    if not values:
        return ""
    if len(values) < 5:
        return f"{statistics.mean(values):.2f}"
    return "{:.2f} ± {:.2f}".format(*mean_and_half_width(values))


def movielens():
    return sequences("movielens", "MovieLens-1M")


def amazon_games():
    return sequences("amazon_games", "Amazon Games")
