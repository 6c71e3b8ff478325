"""Tables of docs/data.md and docs/persons.md from the JSON in benchmarks/results."""

from tables import read, row, table


def files():
    """What batches cost that are read from files: memory by size, and time of a step."""
    found = read("data_size")
    grown = {}
    for one in found["memory_megabytes"]:
        grown.setdefault(one["source"], []).append(one)
    lines = table("read from", "sizes", "resident memory grows by, MB", "perceptron",
                  "perceptron, `batched` parse", "pCTR, `batched` parse")  # fmt: skip
    for source, sizes in grown.items():
        cells = (f"{one['records']:,}" for one in sizes)
        megabytes = (f"{one['VmRSS']:g}" for one in sizes)
        ratios = (
            f"{found['step'][model][name]['ratio_of_pairs']:.2f}"
            for model, name in (
                ("perceptron", source),
                ("perceptron", f"{source}, batched"),
                ("pCTR", f"{source}, batched"),
            )
        )
        lines.append(row(source, " / ".join(cells), " / ".join(megabytes), *ratios))
    steps = (
        f"{1e3 * times['memory']['seconds']:.0f} ms ({model})"
        for model, times in found["step"].items()
    )
    said = (
        f"Sizes are numbers of records of {found['record_bytes']} bytes; the largest files have "
        f"{grown['memmap'][-1]['size']}. The last three columns show the time of a step of "
        f"`fit` divided by that of a step that reads from memory. The sources were timed in turns, "
        f"with batches of {found['batch']:,}. A step from memory takes {', '.join(steps)}. "
        f"{found['machine']}."
    )
    return [*lines, "", said]


def person_step():
    """Steps on persons against steps on as many single records."""
    found = read("person_step")["steps"]
    lines = table("model", "k", "persons / records", "fastest steps")
    for one in found:
        ratios = (f"{one[key]:.2f}" for key in ("ratio_of_pairs", "ratio_of_fastest"))
        lines.append(row(one["model"], one["max_records_per_unit"], *ratios))
    return lines


def persons_or_records():
    found = read("persons_or_records")
    lines = table("rows of a step", "k", "σ, persons", "σ, records", "unrelated", "alike")
    for one in found["settings"]:
        ratios = (
            one["records_noise"] / one[f"persons_noise_{how}"] for how in ("unrelated", "alike")
        )
        sigmas = (f"{one[f'{unit}_noise_multiplier']:.3f}" for unit in ("persons", "records"))
        cells = (f"{one['rows_of_a_step']:,}", one["records_of_a_person"], *sigmas)
        lines.append(row(*cells, *(f"{ratio:.2f}" for ratio in ratios)))
    said = (
        f"{found['persons']:,} persons of k records each, {found['steps']:,} steps, "
        f"ε = {found['epsilon']:g}, δ = {found['delta']:g}. The last two columns "
        "compare two noise-to-signal ratios of the mean gradient: the ratio for sampled records, "
        'divided by the ratio for sampled persons. "Unrelated" (orthogonal) and "alike" describe '
        "the gradients of one person."
    )
    return [*lines, "", said]
