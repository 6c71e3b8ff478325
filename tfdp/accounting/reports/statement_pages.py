"""A privacy statement in parts for a model card, and as a section of one in Markdown."""

import math

from tfdp.accounting.reports import statement_text
from tfdp.accounting.reports.statement import Statement
from tfdp.accounting.rounding import round_up


def to_markdown(statement: Statement) -> str:
    """The statement as Markdown: a section "Privacy", of the second level, for a model card."""
    lines = ["## Privacy", "", f"**{headline(statement)}**", ""]
    lines += ["| | |", "|---|---|"]
    lines += [f"| {name} | {_in_cell(value)} |" for name, value in facts(statement)]
    for title, items in lists(statement):
        lines += ["", f"### {title}", ""]
        lines += [f"- {_escaped(item)}" for item in items]
    return "\n".join(lines)


def headline(statement):
    """ε and δ, or why there is none."""
    delta = f"delta = {round_up(statement.delta)}"
    if statement.unstated:
        return f"No finite epsilon can be stated, at {delta}"
    if math.isinf(statement.epsilon):
        return f"epsilon = infinity, {delta}: not private"
    return f"epsilon = {round_up(statement.epsilon)}, {delta}"


def facts(statement):
    """(name, value) pairs; what they mean is said in the words of the text."""
    of = "" if statement.num_examples is None else f", of {statement.num_examples}"
    rows = [("Unit of privacy", f"{statement.unit}{of}")]
    if math.isfinite(statement.epsilon) and not statement.unstated:
        rows.append(("What it means", statement_text.in_words(statement)))
        if not statement_text.is_about_input(statement):
            rows.append(("Adjacency", statement.adjacency))
    rows.append(("Accountant", statement_text.ACCOUNTANTS[statement.accountant]))
    if statement.budget is not None:
        rows.append(("Budget", statement_text.budget_in_words(statement)))
    return rows


def lists(statement):
    """(title, sentences) pairs, without empty ones."""
    entries = [statement_text.entry_in_words(entry) for entry in statement.entries]
    lists = (
        ("Why no epsilon can be stated", statement.unstated),
        ("Mechanisms that touched the data", entries or [statement_text.EMPTY]),
        ("Batches", _batches(statement)),
        ("Not covered by this guarantee", statement.not_covered),
        ("Assumed, not checked", statement_text.assumed_in_words(statement)),
        ("Remarks", statement.remarks),
    )
    return [(title, items) for title, items in lists if items]


def _batches(statement):
    """How they were drawn; sentences that stand by themselves."""
    drawn = [how[0].upper() + how[1:] for how in statement_text.drawn_in_words(statement)]
    return [
        *drawn,
        *statement_text.cut_off_in_words(statement),
        *statement_text.without_amplification(statement),
    ]


def _escaped(text):
    """Markdown shows it as it is."""
    for mark in "\\`*_[]<>#":
        text = text.replace(mark, f"\\{mark}")
    return text


def _in_cell(text):
    return _escaped(text).replace("|", "\\|").replace("\n", " ")
