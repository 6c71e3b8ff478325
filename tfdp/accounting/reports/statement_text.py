"""A privacy statement in words that a reader without a background in privacy can follow."""

import decimal
import math
import textwrap

from tfdp.accounting.charges.ledger_entry import period_of
from tfdp.accounting.charges.sampling import PERSON
from tfdp.accounting.correlated_noise import Correlation
from tfdp.accounting.events.registry import event_from_dict

_NEIGHBOURS = {
    "add_or_remove_one": "adding or removing {unit}",
    "replace_one": "replacing {unit} by any other",
    "zero_out": "blanking out {unit} (its contribution becomes zero)",
}
ACCOUNTANTS = {
    "pld": "privacy loss distributions (PLD)",
    "rdp": "Rényi differential privacy (RDP)",
}


def render(statement):
    """The text of a `Statement`, about 10 to 25 lines."""
    lines = ["Privacy statement", "================="]
    lines += _headline(statement)
    lines.append(f"Accountant: {ACCOUNTANTS[statement.accountant]}.")
    if statement.budget is not None:
        lines.append(f"Budget: {budget_in_words(statement)}.")
    lines.append("Mechanisms that touched the data:" if statement.entries else EMPTY)
    lines += [f"  - {entry_in_words(entry)}" for entry in statement.entries]
    lines += [f"Batches: {how}" for how in drawn_in_words(statement)] + cut_off_in_words(statement)
    for title, items in (
        ("Not covered by this guarantee:", statement.not_covered),
        ("Assumed, not checked:", statement.assumptions),
        ("Remarks:", statement.remarks),
    ):
        if items:
            lines.append(title)
            lines += [f"  - {item}" for item in items]
    return "\n".join(_wrap(line) for line in lines)


EMPTY = "No mechanism has touched the data yet."


def _headline(statement):
    if statement.unstated:
        lines = [
            f"epsilon = infinity at delta = {statement.delta:.4g}: NO FINITE EPSILON CAN BE STATED."
        ]
        return lines + [f"  - {reason}" for reason in statement.unstated]
    if math.isinf(statement.epsilon):
        return [f"epsilon = infinity at delta = {statement.delta:.4g}: NOT PRIVATE."]
    of = "" if statement.num_examples is None else f", of {statement.num_examples}"
    lines = [
        f"epsilon = {round_up(statement.epsilon)}, delta = {statement.delta:.4g}",
        f"Unit of privacy: {statement.unit}{of}.",
        f"Adjacency: {statement.adjacency}. {in_words(statement)}",
    ]
    return lines + without_amplification(statement)


def in_words(statement):
    """What a finite epsilon says."""
    change = _NEIGHBOURS[statement.adjacency].format(unit=statement.unit)
    return (
        f"By {change}, the probability of any outcome changes by at most a factor "
        f"e^{round_up(statement.epsilon)}, except with probability {statement.delta:.4g}."
    )


def without_amplification(statement):
    """What shuffled batches cost, and do not save; a list of at most one sentence or two."""
    lines = []
    if statement.assumed_epsilon is not None:
        one = statement.unit if statement.unit == PERSON else "a record"
        times = "once" if statement.appearances == 1 else f"{statement.appearances} times"
        lines.append(
            f"This epsilon has no amplification by sampling: {one} was used at most {times} in "
            "shuffled batches, once per epoch. With Poisson sampling epsilon would be "
            f"{round_up(statement.assumed_epsilon)}. The pipeline did not sample in this way, so "
            "that smaller epsilon is not a guarantee."
        )
    return lines


def budget_in_words(statement):
    """What was asked for, and whether it was kept."""
    budget = statement.budget
    line = f"epsilon = {budget.epsilon:g}, delta = {budget.delta:.4g}"
    return f"{line}; {'kept' if statement.kept else 'NOT KEPT'}"


def entry_in_words(entry):
    """One mechanism that touched the data, as often as it did."""
    selection = entry["details"].get("selection")
    chosen = f", rows of sparse tables chosen by {selection['name']}" if selection else ""
    period = period_of(entry["details"])
    of = f", period {period[1]!r}" if period else ""
    event = describe(event_from_dict(entry["event"]))
    return f"{entry['label']}{of}: {entry['count']} x {event}{chosen}"


def describe(event):
    """One line on an event's kind and parameters."""
    if hasattr(event, "in_words"):
        return event.in_words()
    name = type(event).__name__.removesuffix("DpEvent")
    if name == "PoissonSampled":
        inner = describe(event.event)
        return f"{inner}, Poisson sampled with probability {event.sampling_probability:.6g}"
    if name == "PoissonSampledConcentrated":
        sampled = event.sampling_probability
        how = f", Poisson sampled with probability {sampled:.6g}" if sampled < 1 else ""
        sigma = f"{event.noise_multiplier:.6g}"
        return f"mechanism as concentrated as Gaussian noise of multiplier {sigma}{how}"
    if name == "MixtureOfGaussians":
        most = max(event.sensitivities)
        mean = sum(w * c for w, c in zip(event.sampling_probs, event.sensitivities, strict=True))
        return (
            f"Gaussian noise of multiplier {event.standard_deviation:.6g} on a sum that one unit "
            f"of privacy moves by a random number of clip norms ({mean:.6g} on average, at most "
            f"{most:g})"
        )
    if name == "Gaussian":
        return f"Gaussian noise of multiplier {event.noise_multiplier:.6g}"
    if name == "Laplace":
        return f"Laplace noise of multiplier {event.noise_multiplier:.6g}"
    if name == "SelfComposed":
        return f"{event.count} x {describe(event.event)}"
    if name == "Composed":
        return " and ".join(describe(part) for part in event.events)
    if name == "RepeatAndSelect":
        how = f"{event.mean:g} on average, shape {event.shape:g}"
        return f"the best of a random number of runs ({how}) of: {describe(event.event)}"
    if name == "NonPrivate":
        return "release without noise (not private)"
    return str(event)


def drawn_in_words(statement):
    """How the batches of each training were drawn."""
    lines = []
    for entry in statement.entries:
        details = entry["details"]
        if "sampling" not in details:
            continue
        sampling = details["sampling"]
        steps = details.get("steps", entry["count"])
        if details.get("kind") != "training":
            steps = None
        lines.append(_drawn(sampling, steps) + _correlated(details.get("correlation")))
    return list(dict.fromkeys(lines))


def cut_off_in_words(statement):
    """What cutting off batches costs; a list of at most one sentence."""
    if not statement.overflow_delta > 0:
        return []
    capacities = []
    for details in _details(statement.entries):
        if "sampling" in details and details.get("overflow_probability", 0) > 0:
            sampling = details["sampling"]
            persons = sampling.get("max_records_per_unit") and not sampling.get("num_records")
            what = "persons" if persons else "records"
            capacities.append(f"{sampling['max_batch_size']} {what}")
    most = " or ".join(dict.fromkeys(capacities))
    return [
        f"A batch holds at most {most}. Larger draws are cut, which takes "
        f"{statement.overflow_delta:.3g} of the delta above."
    ]


def _details(entries):
    """The details of entries, and of the trainings that a tuning made one of."""
    for entry in entries:
        yield entry["details"]
        yield from _details(entry["details"].get("one_run", ()))


def _drawn(sampling, steps):
    kind = sampling["kind"].removeprefix("declared_")
    size, number = sampling["expected_batch_size"], sampling["num_examples"]
    of = "" if steps is None else f" in each of {steps} steps"
    most, one = sampling.get("max_records_per_unit"), "record"
    records = sampling.get("num_records")
    probability = size / (number if records is None else records)
    if records is not None:
        return (
            f"Poisson sampled, each record separately with probability {probability:.6g}{of} "
            f"({size:g} of {records} records expected). Of each person, at most {most} records "
            "take part, which were chosen once. The accounting covers steps that contain several "
            "of them."
        )
    if most is not None:
        one, number = "person", f"{number} persons"
        of += f", with at most {most} of its records"
    if kind == "full_batch":
        every = "step" if steps is None else f"one of {steps} steps"
        return f"every record in every {every}."
    if kind == "shuffled":
        return f"shuffled, {size:g} of {number}{of}; not Poisson sampled."
    if kind == "stream":
        return f"a stream in its order, {size:g} of {number}{of}; {_passes(sampling)}."
    if kind == "allocated":
        among = "" if steps is None else f", {steps} steps"
        with_most = "" if most is None else f", with at most {most} of its records"
        return (
            f"random allocation, each {one} in one of the {round(1 / probability)} steps "
            f"of an epoch{with_most} ({size:g} of {number} expected in a step){among}."
        )
    return (
        f"Poisson sampled, each {one} with probability {probability:.6g}{of} "
        f"({size:g} of {number} expected)."
    )


def _passes(sampling):
    """How often a record of a stream was used, at most."""
    passes, most = sampling.get("passes") or 1, sampling.get("max_participations")
    if most is not None:
        return (
            f"nobody is in more than {most} of them, {sampling['min_separation']} or more steps "
            "apart, and later records were left out"
        )
    return "each once" if passes == 1 else f"each at most {passes} times, once a pass"


def _correlated(correlation):
    """What a chain of correlated noise costs, and when."""
    if correlation is None:
        return ""
    chain = Correlation(**correlation)
    return (
        f" The noise of a step takes back noise of up to {chain.bands - 1} steps before it: all "
        f"steps, up to {chain.steps}, are one mechanism. Its epsilon is that of all of them from "
        "the first step on; a training that ends early costs as much."
    )


def round_up(value):
    """Four significant digits, never below the value: what is printed must not be too small."""
    if value == 0 or math.isinf(value):
        return f"{value:g}"
    exact = decimal.Decimal(repr(float(value)))
    digit = decimal.Decimal(1).scaleb(exact.adjusted() - 3)
    rounded = exact.quantize(digit, decimal.ROUND_CEILING)
    return f"{rounded.normalize():f}"


def round_up_to(value, decimals):
    """The value rounded up to a number of decimals, as a float never below it."""
    if not math.isfinite(value):
        return value
    digit = decimal.Decimal(1).scaleb(-decimals)
    rounded = float(decimal.Decimal(repr(float(value))).quantize(digit, decimal.ROUND_CEILING))
    return rounded if rounded >= value else math.nextafter(rounded, math.inf)


def _wrap(line):
    indent = "    " if line.startswith("  - ") else "  "
    return textwrap.fill(line, 96, subsequent_indent=indent)
