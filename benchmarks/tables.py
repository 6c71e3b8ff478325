"""Tables of docs/benchmarks.md from the JSON in benchmarks/results. Written by render.py."""

import json
import pathlib
import statistics

RESULTS = pathlib.Path(__file__).parent / "results"

SST2_METHODS = {
    "DP-SGD on the head": "DP-SGD on the head",
    "aggregated mixtures": "aggregated mixtures",
    "DP-FP, release once": "DP-FP, release once",
    "DP-FP, release once, discriminant": "DP-FP, release once, discriminant",
    "DP-FP, fresh noise, E = 3": "DP-FP, fresh noise, E = 3",
    "the paper's version (NOT a guarantee)": "the paper's version, **not a guarantee**",
}
EPSILONS = (1, 3, 8)


def read(name):
    """What `name`.json holds, or None."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def with_interval(value, digits=2):
    """`value` has a mean and a half width, which is None for a single run."""
    mean, half_width = f"{value['mean']:.{digits}f}", value["half_width"]
    return mean if half_width is None else f"{mean} ± {half_width:.{digits}f}"


def mean_and_half_width(values):
    """The mean, and half a 95% interval of it (Student), or None of a single value."""
    from scipy import stats

    mean, count = statistics.mean(values), len(values)
    if count == 1:
        return mean, None
    return mean, float(stats.t.ppf(0.975, count - 1)) * statistics.stdev(values) / count**0.5


def row(*cells):
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def table(*columns):
    return [row(*columns), "|" + "---|" * len(columns)]


def sparse_step():
    measured = {(m["method"], m["rows"]): 1e3 * m["seconds_per_step"]
                for m in read("sparse_step")["measured"]}  # fmt: skip
    lines = table("rows", "not private, tf.data", "not private, arrays",
                  "not private, Poisson batches", "AdaFEST", "AdaFEST, compiled",
                  "AdaFEST, 1 in 10⁴ rows by noise alone", "dense DP-SGD",
                  "dense DP-SGD with `tf.random.normal`")  # fmt: skip
    methods = ("plain", "plain, arrays", "plain, drawn", "adafest", "adafest, compiled",
               "adafest, many rows", "dense", "dense, cut tails")  # fmt: skip
    sizes = sorted({rows for _, rows in measured})
    for rows in sizes:
        times = [measured[method, rows] for method in methods]
        lines.append(row(f"{rows:,}", *(f"{t:.2f}" if t < 10 else f"{t:,.0f}" for t in times)))
    times = (measured[m, sizes[-1]] for m in methods)
    tf_data, arrays, drawn, adafest, compiled, _, dense, cut = times
    return [
        *lines,
        "",
        f"At {sizes[-1]:,} rows an AdaFEST step is {dense / adafest:,.0f} times as fast as a dense "
        f"step, and {cut / adafest:,.0f} times as fast as a dense step with the noise of other "
        f"libraries. Its time is {adafest / tf_data:.2f} of a step without privacy on a shuffled "
        f"`tf.data.Dataset`, {adafest / arrays:.2f} of one on arrays, and {adafest / drawn:.2f} of "
        f"one on the same Poisson batches. Compiled, with a `capacity` of 32 rows, it is "
        f"{compiled / tf_data:.2f}, {compiled / arrays:.2f} and {compiled / drawn:.2f}.",
        "",
    ]


def click_step():
    found = read("click_step")
    names = {"plain": "not private, tf.data", "plain, arrays": "not private, arrays",
             "plain, drawn": "not private, Poisson batches", "adafest": "AdaFEST"}  # fmt: skip
    lines = table("", "milliseconds a step", "time of AdaFEST / time of this step")
    for method, name in names.items():
        seconds = 1e3 * statistics.median(found["seconds"][method])
        lines.append(row(name, f"{seconds:.0f}", f"{found['adafest / plain'][method]:.2f}"))
    return [
        *lines,
        "",
        f"The model has {found['rows']:,} rows × {found['width']} in total and "
        f"{found['dense_parameters']:,} dense parameters. Batches have {found['batch']:,} records.",
        "",
    ]


def step_time():
    found = read("step_time")
    ratios = {(s["policy"], s["length"], s["tied"], s["xla"]): s for s in found["steps"]}
    lines = table(
        "positions", "head", "precision", "tf.function", "fastest steps", "XLA", "fastest steps"
    )
    for policy, length, tied in sorted({key[:3] for key in ratios}):
        pair = [ratios[policy, length, tied, xla] for xla in (False, True)]
        cells = [f"{s[key]:.2f}" for s in pair for key in ("ratio", "ratio_of_fastest")]
        head = "tied to the look-up" if tied else "separate"
        lines.append(row(length, head, policy.replace("_", " "), *cells))
    peak, largest = found["peak_bytes"], found.get("largest_batch")
    most = []
    if largest:
        most = [
            f"The largest batch whose private step stays within 8 GiB is {largest['private']}; for "
            f"the plain step it is {largest['plain']} ({largest['ratio']:.2f}).",
            "",
        ]
    return [
        *lines,
        "",
        f"At batch 512, vocabulary 23,715 and 50 positions with a tied head, the peak memory of a "
        f"private step is {peak['private'] / 2**30:.2f} GiB, {peak['ratio']:.2f} times that of a "
        f"plain step. Measured with TensorFlow {found['tensorflow']} and Keras {found['keras']}.",
        "",
        *most,
    ]


def cliffs():
    found = read("cliffs")
    lines = table("model", "private / plain", "fastest steps", "plain step, ms")
    for step in found["steps"]:
        cells = [f"{step[key]:.2f}" for key in ("ratio", "ratio_of_fastest")]
        lines.append(row(step["name"], *cells, f"{1e3 * step['plain_seconds']:.1f}"))
    return lines


def sst2():
    rows = {(r["method"], r["epsilon"]): r for r in read("sst2")["rows"]}
    lines = table("method", "labels covered", *(f"ε = {e}" for e in EPSILONS), "twin without noise")
    lines.append(row("non-private head", "", "", "", "", accuracy(rows["non-private", None])))
    for method, title in SST2_METHODS.items():
        covered = "yes" if rows[method, 3]["labels_covered"] else "no"
        twin = rows.get((f"twin of {method}", None))
        lines.append(row(
            title, covered, *(accuracy(rows[method, e]) for e in EPSILONS),
            f"{twin['dev_accuracy']:.1f}" if twin else "",
        ))  # fmt: skip
    true = (f"{rows[method, e]['true_epsilon']:.1f}" for e in EPSILONS)
    return [*lines, row("its true ε", "", *true, ""), ""]


def sst2_scratch():
    rows = {(r["method"], r["epsilon"]): r for r in read("sst2_scratch")["rows"]}
    lines = table(
        "method, end to end from scratch", "labels covered", *(f"ε = {e}" for e in EPSILONS),
        "without privacy",
    )  # fmt: skip
    lines.append(row("non-private", "", "", "", "", accuracy(rows["non-private", None])))
    private = (accuracy(rows["DP-SGD end to end", e]) for e in EPSILONS)
    lines.append(row("DP-SGD, 200 steps of 2,048", "yes", *private, ""))
    paper = accuracy(rows["the paper's version, end to end (NOT a guarantee)", 3])
    name = "the paper's version, gradients through the noise"
    return [*lines, row(name, "no", "", f"{paper}, **no ε at all**", "", ""), ""]


def accuracy(found):
    return with_interval({"mean": found["dev_accuracy"], "half_width": found["interval_95"]}, 1)


def random_allocation():
    found = read("random_allocation")
    lines = table("σ", "T", "epochs", "allocation", "Poisson, q = 1/T", "neither", "other bounds")
    for one in found["settings"]:
        lines.append(
            row(
                f"{one['noise_multiplier']:g}",
                one["steps_per_epoch"],
                one["epochs"],
                *(f"{one[k]:.3f}" for k in ("allocation", "poisson", "without_amplification")),
                f"{one['outside_lower']:.3f} to {one['outside_upper']:.3f}",
            )
        )
    said = f"δ = {found['delta']:g}. Other bounds: {found['outside']}."
    return [*lines, "", said]


def start_and_noise():
    found = read("start_and_noise")
    lines = table("values", "`tf.random.normal`, ms", "noise on the grid, ms", "ratio")
    for one in found["draws"]:
        times = (f"{1e3 * one[key]:.3g}" for key in ("normal", "release"))
        lines.append(row(f"{one['size']:,}", *times, f"{one['ratio']:.2f}"))
    slowest = max(found["budgets"], key=lambda one: one["seconds"])
    imports = found["imports"]
    return [
        *lines,
        "",
        f"Computing the noise of a budget takes {slowest['seconds']:.2f} s at most, over "
        f"{len(found['budgets'])} settings (ε from 0.5 to 8, 10 to 20,000 steps). `import tfdp` "
        f"takes {1e3 * imports['tfdp']:.0f} ms, the first use of an optimizer and of batches "
        f"{imports['with the optimizer']:.2f} s, and the first charge, which loads dp-accounting "
        f"and SciPy, {imports['with a charge'] - imports['with the optimizer']:.2f} s.",
        "",
    ]
