"""Tables of docs/benchmarks.md about the release of transitions. Written by render.py."""

from tables import read, with_interval

PAPER = {  # DPFormer, tables 1 and 2: NDCG@10 of DPFormer, whose accounting is not stated
    "movielens": {5: 5.88, 8: 7.70, 10: 8.42},
    "amazon_games": {5: 1.64},
}
PAPER |= {f"{name}_odds": numbers for name, numbers in PAPER.items()}
TITLES = {
    "movielens": "MovieLens-1M",
    "movielens_odds": "MovieLens-1M, votes by odds (`TransitionOdds`)",
    "amazon_games": "Amazon Games",
    "amazon_games_odds": "Amazon Games, votes by odds",
}


def transitions():
    lines = []
    for name, title in TITLES.items():
        found = read(f"transitions_{name}")
        if found is None:
            continue
        protocol = found["protocol"]
        lines += [
            f"{title}: {protocol['num_users']:,} users, {protocol['num_items']:,} items, "
            f"δ = 1/{protocol['num_users']:,}.",
            "",
            "| model | ε | runs | NDCG@10 % | HIT@10 % | seen left out: NDCG@10 % | HIT@10 % "
            "| paper's DPFormer, NDCG@10 % |",
            "|---|---|---|---|---|---|---|---|",
        ]
        for row in found["rows"]:
            cells = [with_interval(row["summary"][key]) for key in
                     ("ndcg_10", "hit_10", "ndcg_10_unseen", "hit_10_unseen")]  # fmt: skip
            epsilon = "∞" if row["epsilon"] is None else f"{row['epsilon']:g}"
            paper = ""
            if row["model"] == "transitions" and row["epsilon"]:
                paper = str(PAPER[name].get(row["epsilon"], ""))
            lines.append(
                f"| {row['model']} | {epsilon} | {len(row['runs'])} | "
                + " | ".join(cells)
                + f" | {paper} |"
            )
        lines.append("")
    return lines


def dpformer():
    found = read("transitions_dpformer")
    if found is None:
        return []
    arguments, summary = found["arguments"], found["summary"]
    lines = [
        f"DPFormer around the release, ε = {arguments['epsilon']:g} in total, {len(found['runs'])} "
        f"paired runs. The release gets {100 * arguments['share']:g}% of 1/σ², and "
        f"{arguments['steps']} steps of {arguments['batch_size']:,} expected users get the rest.",
        "",
        "| NDCG@10 %, MovieLens-1M | mean |",
        "|---|---|",
    ]
    names = {
        "release_alone": "the release alone",
        "re_attention": "DPFormer around it",
        "vanilla": "the same without Re-Attention",
        "re_attention - vanilla": "gain from Re-Attention, paired",
    }
    return [
        *lines,
        *(f"| {text} | {with_interval(summary[key])} |" for key, text in names.items()),
        "",
    ]


def release():
    found = read("transition_release")
    if found is None:
        return []
    busy = " that did other work, too" if found["load"] > 2 else ""
    return [
        f"One release with {found['arguments']['items']:,} items, "
        f"{found['arguments']['users']:,} users and {found['pairs']:,} pairs "
        f"({found['distinct_pairs']:,} distinct) takes {found['seconds']:.0f} s on two cores{busy} "
        f"(load {found['load']:.1f}), with {found['seconds_of_computing']:.0f} s of computing. The "
        f"process holds at most {found['peak_gib']:.1f} GiB, {found['gib_before']:.1f} of them "
        f"before the release begins. {found['survivors']:,} entries survive at "
        f"{found['threshold']:.2f}σ.",
        "",
    ]


def everything():
    return [*transitions(), *dpformer(), *release()]
