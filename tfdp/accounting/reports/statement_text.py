"""A privacy statement in words that a reader without a background in privacy can follow."""

import math
import textwrap

from tfdp.accounting.charges.ledger_entry import ABOUT_INPUT, period_of
from tfdp.accounting.charges.mechanisms import correlation_from_dict
from tfdp.accounting.charges.sampling import PERSON, Sampling
from tfdp.accounting.events.description import describe
from tfdp.accounting.events.registry import event_from_dict
from tfdp.accounting.rounding import round_up

_NEIGHBOURS = {
    "add_or_remove_one": "is added or removed",
    "replace_one": "is replaced by any other",
    "zero_out": "is blanked out (its contribution becomes zero) or restored",
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
        ("Assumed, not checked:", assumed_in_words(statement)),
        ("Remarks:", statement.remarks),
    ):
        if items:
            lines.append(title)
            lines += [f"  - {item}" for item in items]
    return "\n".join(_wrap(line) for line in lines)


EMPTY = "No mechanism has touched the data yet."


def _headline(statement):
    delta = round_up(statement.delta)
    if statement.unstated:
        lines = [f"epsilon = infinity at delta = {delta}: NO FINITE EPSILON CAN BE STATED."]
        return lines + [f"  - {reason}" for reason in statement.unstated]
    if math.isinf(statement.epsilon):
        return [f"epsilon = infinity at delta = {delta}: NOT PRIVATE."]
    of = "" if statement.num_examples is None else f", of {statement.num_examples}"
    adjacency = "" if is_about_input(statement) else f"Adjacency: {statement.adjacency}. "
    lines = [
        f"epsilon = {round_up(statement.epsilon)}, delta = {delta}",
        f"Unit of privacy: {statement.unit}{of}.",
        adjacency + in_words(statement),
    ]
    return lines + without_amplification(statement)


def is_about_input(statement):
    """Whether it is about an input of inference: the unit then says which inputs are neighbours."""
    return any(details.get("kind") == ABOUT_INPUT for details in _details(statement.entries))


def in_words(statement):
    """The definition of differential privacy with the statement's numbers; for a finite epsilon."""
    change = f"{statement.unit} {_NEIGHBOURS[statement.adjacency]}"
    if is_about_input(statement):
        change = "the input changes in one such unit"
    return (
        f"If {change}, the probability p of any set of outcomes rises to at most "
        f"e^{round_up(statement.epsilon)} * p + {round_up(statement.delta)}."
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
            "the smaller epsilon is not a guarantee."
        )
    return lines


def budget_in_words(statement):
    """What was asked for, and whether it was kept."""
    budget = statement.budget
    line = f"epsilon = {budget.epsilon:g}, delta = {round_up(budget.delta)}"
    return f"{line}; {'kept' if statement.kept else 'NOT KEPT'}"


def entry_in_words(entry):
    """One mechanism that touched the data, as often as it did."""
    selection = entry["details"].get("selection")
    chosen = f", rows of sparse tables chosen by {selection['name']}" if selection else ""
    period = period_of(entry["details"])
    of = f", period {period[1]!r}" if period else ""
    event = describe(event_from_dict(entry["event"]))
    return f"{entry['label']}{of}: {entry['count']} x {event}{chosen}"


def drawn_in_words(statement):
    """How the batches of each training were drawn."""
    lines = []
    for entry in statement.entries:
        details = entry["details"]
        if "sampling" not in details:
            continue
        sampling = Sampling.from_dict(details["sampling"])
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
        f"A batch holds at most {most}. Larger draws are cut. The delta "
        f"above includes {round_up(statement.overflow_delta)} for this."
    ]


def assumed_in_words(statement):
    """What nobody checked, and that n is public, which every proof takes for granted; a list."""
    if statement.num_examples is None:
        return [*statement.assumptions]
    number = f"the number of units of privacy, {statement.num_examples}, is public"
    return [number, *statement.assumptions]


def _details(entries):
    """The details of entries, and of the trainings that a tuning made one of."""
    for entry in entries:
        yield entry["details"]
        yield from _details(entry["details"].get("one_run", ()))


def _drawn(sampling, steps):
    most, records = sampling.max_records_per_unit, sampling.num_records
    in_each = "" if steps is None else f" in each of {steps} steps"
    size = f"{sampling.expected_batch_size:g}"
    probability = round_up(sampling.sampling_probability, 6)
    if records is not None:
        return (
            f"Poisson sampled, each record separately with probability {probability}{in_each} "
            f"({size} of {records} records expected). At most {most} records of each person take "
            "part; they were chosen once. The accounting covers steps that contain several of "
            "them."
        )
    return sampling.rule.words.format(
        one="record" if most is None else "person",
        number=f"{sampling.num_examples}{'' if most is None else ' persons'}",
        size=size,
        probability=probability,
        in_each=in_each,
        with_most="" if most is None else f", with at most {most} of its records",
        among="" if steps is None else f", {steps} steps",
        one_of_steps="step" if steps is None else f"one of {steps} steps",
        steps_of_pass=sampling.allocation_steps,
        passes=_passes(sampling),
        bands=sampling.bands,
        part_probability="" if sampling.bands is None else round_up(sampling.part_probability, 6),
    )


def _passes(sampling):
    """How often a record of a stream was used, at most."""
    passes = sampling.passes or 1
    if sampling.max_participations is not None:
        return (
            f"nobody is in more than {sampling.max_participations} of them, "
            f"{sampling.min_separation} or more steps apart, and later records were left out"
        )
    return "each once" if passes == 1 else f"each at most {passes} times, once a pass"


def _correlated(correlation):
    """What the epsilon of a chain of correlated noise covers."""
    if correlation is None:
        return ""
    chain = correlation_from_dict(correlation)
    cancelled = (
        f" The noise of a step cancels part of the noise of up to {chain.bands - 1} steps before "
        "it."
    )
    if not chain.is_one_event:
        return (
            f"{cancelled} Each {chain.bands} steps are one mechanism; epsilon counts all that were "
            "begun."
        )
    return (
        f"{cancelled} All steps, up to {chain.steps}, are one mechanism: from the first step on, "
        "epsilon covers all of them. A training run that ends early has the same epsilon."
    )


def _wrap(line):
    indent = "    " if line.startswith("  - ") else "  "
    return textwrap.fill(line, 96, subsequent_indent=indent)
