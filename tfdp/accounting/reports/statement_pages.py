"""A privacy statement as one HTML page, and as a section of a model card."""

from __future__ import annotations

import html
import math
from typing import TYPE_CHECKING

from tfdp.accounting.reports import statement_text
from tfdp.accounting.rounding import round_up

if TYPE_CHECKING:
    from tfdp.accounting.reports.statement import Statement

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto; padding: 0 1rem;
       color: #1a1a1a; background: #fff }
.epsilon { font-size: 1.6rem; border-left: .4rem solid #36c; padding: .4rem 1rem; margin: 1rem 0 }
.none { border-color: #b22 }
table { border-collapse: collapse; width: 100% }
th, td { text-align: left; vertical-align: top; padding: .3rem .8rem .3rem 0;
         border-bottom: 1px solid #ddd }
th { width: 11rem; font-weight: 600 }
"""


def to_markdown(statement: Statement) -> str:
    """The statement as Markdown: a section "Privacy", of the second level, for a model card."""
    lines = ["## Privacy", "", f"**{_headline(statement)}**", ""]
    lines += ["| | |", "|---|---|"]
    lines += [f"| {name} | {_in_cell(value)} |" for name, value in _facts(statement)]
    for title, items in _lists(statement):
        lines += ["", f"### {title}", ""]
        lines += [f"- {_escaped(item)}" for item in items]
    return "\n".join(lines)


def to_html(statement: Statement) -> str:
    """The statement as one HTML page that needs no other file."""
    holds = math.isfinite(statement.epsilon) and not statement.unstated and statement.kept
    parts = [
        "<!doctype html>", '<html lang="en">', '<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width">', "<title>Privacy statement</title>",
        f"<style>{_STYLE}</style>", "<h1>Privacy statement</h1>",
        f'<p class="epsilon{"" if holds else " none"}">{html.escape(_headline(statement))}</p>',
        "<table>",
    ]  # fmt: skip
    parts += [
        f"<tr><th>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>"
        for name, value in _facts(statement)
    ]
    parts.append("</table>")
    for title, items in _lists(statement):
        entries = "".join(f"<li>{html.escape(item)}</li>" for item in items)
        parts += [f"<h2>{html.escape(title)}</h2>", f"<ul>{entries}</ul>"]
    return "\n".join([*parts, "</html>"])


def _headline(statement):
    delta = f"delta = {round_up(statement.delta)}"
    if statement.unstated:
        return f"No finite epsilon can be stated, at {delta}"
    if math.isinf(statement.epsilon):
        return f"epsilon = infinity, {delta}: not private"
    return f"epsilon = {round_up(statement.epsilon)}, {delta}"


def _facts(statement):
    """(name, value) pairs; what they mean is said in the words of the text."""
    of = "" if statement.num_examples is None else f", of {statement.num_examples}"
    facts = [("Unit of privacy", f"{statement.unit}{of}")]
    if math.isfinite(statement.epsilon) and not statement.unstated:
        facts.append(("What it means", statement_text.in_words(statement)))
        facts.append(("Adjacency", statement.adjacency))
    facts.append(("Accountant", statement_text.ACCOUNTANTS[statement.accountant]))
    if statement.budget is not None:
        facts.append(("Budget", statement_text.budget_in_words(statement)))
    return facts


def _lists(statement):
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
