"""The tables about clicks: statistics of them, and one pass in order. Written by render.py."""

from tables import mean_and_half_width, read, row, table, with_interval


def _shown(values, digits):
    mean, half_width = mean_and_half_width(values)
    return with_interval({"mean": mean, "half_width": half_width}, digits)


def click_statistics():
    found = read("click_statistics")
    if found is None:
        return []
    epsilons = sorted({r["epsilon"] for r in found["runs"] if r["epsilon"]}) + [None]
    names = list(dict.fromkeys(r["model"] for r in found["runs"]))
    lines = table("AUC", *(f"ε = {e:g}" if e else "without privacy" for e in epsilons))
    lines.append(row("the odds as they are released, no training", *_cells(
        epsilons, [(r["epsilon"], r["before_training"]["auc"]) for r in found["runs"]
                   if r["model"] == names[0]])))  # fmt: skip
    for name in names:
        runs = [(r["epsilon"], r["auc"]) for r in found["runs"] if r["model"] == name]
        lines.append(row(name, *_cells(epsilons, runs)))
    dense = read("criteo")["runs"]
    runs = [(r["epsilon"], r["auc"]) for r in dense if r["method"] == "dense"]
    lines.append(row("dense DP-SGD on pCTR, without the release", *_cells(epsilons, runs)))
    share = found["recipe"]["share"]
    losses = [r["log_loss"] for r in found["runs"] if r["model"] == names[0] and r["epsilon"] == 3]
    return [
        *lines,
        "",
        f"The release gets {100 * share:g}% of the 1/σ² that ε buys. The log loss of {names[0]} at "
        f"ε = 3 is {_shown(losses, 4)}. ± is half a 95% interval of the mean over runs (fresh "
        "noise, batches and initial weights). A number without ± is a single run.",
        "",
    ]


def one_pass():
    found = read("criteo_stream")
    if found is None:
        return []
    epsilons = sorted({r["epsilon"] for r in found["runs"] if r["epsilon"]})
    lines = table("AUC", *(f"ε = {e:g}" for e in epsilons))
    for way in dict.fromkeys(r["way"] for r in found["runs"] if r["epsilon"]):
        runs = [(r["epsilon"], a) for r in found["runs"] if r["way"] == way for a in r["auc"]]
        lines.append(row(way, *_cells(epsilons, runs)))
    recipe = found["recipe"]
    held_out = f"{recipe['held_out']:,}"
    plain = [r["auc"][0] for r in found["runs"] if r["epsilon"] is None]
    without = f" Without privacy: {plain[0]:.4f}." if plain else ""
    return [
        *lines,
        "",
        f"`benchmarks/criteo_stream.py`: logistic regression on {recipe['weights']:,} hashed "
        f"weights, batches of {recipe['batch']}, one pass over Criteo's first 72,000 rows, δ = "
        f"1/n; the learning rate was chosen, without a charge, on the {held_out} rows before the "
        f"last {held_out}; AUC is measured on the last {held_out}.{without} ± is half the width of "
        "the 95% interval of the mean over runs.",
        "",
    ]


def one_pass_of_tables():
    found = read("criteo_stream_tables")
    if found is None:
        return []
    epsilons = (1.0, 3.0, 8.0)
    lines = table("model", "batches and noise", *(f"AUC at ε = {e:g}" for e in epsilons))
    private = [r for r in found["runs"] if r["epsilon"]]
    for model, way in dict.fromkeys((r["model"], r["way"]) for r in private):
        of_way = [r for r in private if (r["model"], r["way"]) == (model, way)]
        runs = [(r["epsilon"], auc) for r in of_way for auc in r["auc"]]
        lines.append(row(model, way, *_cells(epsilons, runs)))
    for r in found["runs"]:
        if not r["epsilon"]:
            lines.append(row(r["model"], "in order, without privacy", "", "", _shown(r["auc"], 4)))
    recipe = found["recipe"]
    return [
        *lines,
        "",
        f"`benchmarks/criteo_stream_tables.py`: 26 tables of {recipe['hash_buckets']:,} rows and "
        f"a layer of {recipe['hidden_units'][0]} units, plain SGD, batches of {recipe['batch']}, "
        "on the same rows as above. The rate was chosen in the same way, by one run for each rate. "
        "Without privacy, the last column holds the AUC of SGD that does not clip. "
        "± is half the width of the 95% interval of the mean over runs.",
        "",
    ]


def one_pass_of_millions():
    """Generated clicks from files, and what four weeks of them cost when one run crashes."""
    found = read("clicks_stream")
    lines = table("batches and noise", "AUC", "learning rate", "noise multiplier")
    for run in found["runs"]:
        cells = (f"{run['auc']:.4f}", f"{run['rate']:g}", f"{run['noise_multiplier']:.2f}")
        lines.append(row(run["way"], *cells))
    first, weeks = found["runs"][0], found["weeks"]
    costs = [f"{one['epsilon']:.2f}" for one in weeks["runs"]]
    return [
        *lines,
        "",
        f"`benchmarks/clicks_stream.py`: {first['num_examples']:,} generated records from files, "
        f"26 tables, AdaFEST, ε = {first['epsilon']:.2f}, δ = 1/(10·n), batches of "
        f"{first['batch']:,}, one run each. The learning rate was chosen on a tenth as many "
        "records of another seed.",
        "",
        f"A stream of four weeks with {weeks['persons_of_a_week']:,} other persons each, "
        f"σ = {weeks['noise_multiplier']:g}: after one and after two weeks ε is {costs[0]} and "
        f"{costs[1]}. The third week crashes in its middle; the run that goes on is a second chain "
        f"of that week, and ε is {costs[3]} from then on, after the fourth week, too.",
        "",
    ]


def _cells(epsilons, runs):
    by_epsilon = {e: [auc for found, auc in runs if found == e] for e in epsilons}
    return [_shown(values, 4) if values else "" for values in by_epsilon.values()]
