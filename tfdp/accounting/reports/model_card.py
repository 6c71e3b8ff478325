"""A model card as one HTML page: the statement, its curve, and what the owner says."""

import dataclasses
import html
import itertools
import math

from tfdp.accounting.charges.ledger import Ledger
from tfdp.accounting.charges.ledger_entry import LedgerEntry
from tfdp.accounting.charges.sampling_rules import RULES
from tfdp.accounting.reports.about import About
from tfdp.accounting.reports.statement import Statement
from tfdp.accounting.reports.statement_pages import facts, headline, lists
from tfdp.accounting.reports.svg_chart import line_chart
from tfdp.accounting.rounding import round_up

_STYLE = """
:root { color-scheme: light dark; --text: #1a1a1a; --page: #fff; --line: #ccc; --mark: #36c }
@media (prefers-color-scheme: dark) {
  :root { --text: #e6e6e6; --page: #17191c; --line: #444; --mark: #8ab4ff } }
* { box-sizing: border-box }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 50rem; margin: 2rem auto; padding: 0 1rem;
       color: var(--text); background: var(--page); overflow-wrap: break-word }
h1 { margin-bottom: .2rem; line-height: 1.2 }
h2 { font-size: 1.2rem; margin: 1.6rem 0 .3rem; border-bottom: 1px solid var(--line) }
h3 { font-size: 1rem; margin: .8rem 0 .2rem }
p, ul { margin: .3rem 0 } ul { padding-left: 1.2rem }
.epsilon { font-size: 1.5rem; border-left: .4rem solid var(--mark); padding: .3rem 1rem;
           margin: 1rem 0 }
.none { border-color: #b22 }
.unsaid, .source { opacity: .7; font-size: .9em } .unsaid { font-style: italic }
table { border-collapse: collapse; width: 100% }
th, td { text-align: left; vertical-align: top; padding: .2rem .8rem .2rem 0 }
th { width: 10rem; font-weight: 600 }
.charts { display: flex; flex-wrap: wrap; gap: 1rem } figure { flex: 1 1 17rem; margin: .5rem 0;
          max-width: 25rem } figcaption { font-size: .9em }
svg { width: 100%; height: auto; fill: var(--mark); font-size: 11px }
svg text { fill: var(--text) } svg .line { fill: none; stroke: var(--mark); stroke-width: 1.8 }
svg .axes { fill: none; stroke: var(--text) }
@media print {
  @page { size: A4; margin: 14mm }
  :root { --text: #000; --page: #fff; --line: #bbb; --mark: #24a }
  body { font-size: 9.5pt; line-height: 1.35; margin: 0; padding: 0; max-width: none }
  h2 { margin-top: 3.2mm; break-after: avoid } h3 { break-after: avoid }
  figure { max-width: 78mm; break-inside: avoid } tr, li { break-inside: avoid } }
"""
_POINTS = 8
_OF_THE_OWNER = "Stated by the owner, and not checked by tfdp. Epsilon does not cover it."
_UNSAID = "The owner of the model has stated nothing here."


def to_html(statement: Statement, about: About | None = None) -> str:
    """The model card as one HTML page that needs no other file, and prints on A4.

    Its sections are those of the model cards of Mitchell et al. (2019) and of Hugging Face.

    Args:
        statement: of the model.
        about: what its owner says; parts that are missing are named as missing.
    """
    about = About() if about is None else about
    holds = math.isfinite(statement.epsilon) and not statement.unstated and statement.kept
    listed = dict(lists(statement))
    parts = [
        "<!doctype html>", '<html lang="en">', '<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width">',
        f"<title>Model card: {html.escape(about.name or 'a private model')}</title>",
        f"<style>{_STYLE}</style>", f"<h1>{html.escape(about.name or 'Model card')}</h1>",
        _said(about.description),
        f'<p class="epsilon{"" if holds else " none"}">{html.escape(headline(statement))}</p>',
        "<h2>Model details</h2>", _details(about),
        "<h2>Intended use</h2>", _said(about.intended_use),
        "<h3>Out of scope</h3>", _said(about.out_of_scope),
        "<h2>Factors and limits</h2>", _said(about.factors),
        *_titled(listed, "Not covered by this guarantee"),
        "<h2>Training data</h2>", _said(about.training_data), *_titled(listed, "Batches"),
        "<h2>Metrics</h2>", _metrics(about.metrics), _charts(statement, about),
        "<h2>Privacy statement</h2>", _table(facts(statement)),
        *_titled(listed, "Why no epsilon can be stated"),
        *_titled(listed, "Mechanisms that touched the data"),
        "<h2>Caveats</h2>", _items(about.caveats) or _said(""),
        *_titled(listed, "Assumed, not checked"), *_titled(listed, "Remarks"),
        "</html>",
    ]  # fmt: skip
    return "\n".join(part for part in parts if part)


def epsilon_over_steps(statement: Statement) -> list[tuple[float, float]]:
    """(steps, ε after them) pairs, computed from the entries of a statement.

    What was charged beside the training counts from the first step on. Empty where no finite ε can
    be stated, and where steps do not cost one by one: a pass, or all steps together.
    """
    entries = [LedgerEntry.from_dict(entry) for entry in statement.entries]
    trainings = [e for e in entries if e.details.get("kind") == "training" and e.count > 1]
    total = sum(e.count for e in trainings)
    steps = sum(e.details.get("steps", e.count) for e in trainings)
    if not total or not math.isfinite(statement.epsilon) or any(map(_costs_by_pass, trainings)):
        return []
    points = []
    for done in sorted({max(1, round(total * (i + 1) / _POINTS)) for i in range(_POINTS)}):
        left, charged = done, []
        for entry in entries:
            count = min(left, entry.count) if entry in trainings else entry.count
            left -= count if entry in trainings else 0
            if count:
                charged.append(dataclasses.replace(entry, count=count))
        epsilon = Ledger(charged).epsilon(
            statement.delta, statement.accountant, statement.adjacency
        )
        points.append((steps * done / total, epsilon))
    return points


def upper_bound(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """A line through points of a curve that grows, nowhere below it: flat, at the next point."""
    return [
        point
        for (start, _), (end, value) in itertools.pairwise([(0, 0.0), *points])
        for point in ((start, value), (end, value))
    ]


def _costs_by_pass(entry):
    sampling = entry.details.get("sampling")
    return sampling is not None and RULES[sampling["kind"]].charged_by != "step"


def _charts(statement, about):
    charts = []
    spent = epsilon_over_steps(statement)
    if spent:
        label = f"epsilon at delta = {round_up(statement.delta)}"
        chart = line_chart(upper_bound(spent), "steps", label)
        charts.append((chart, "Privacy spent, computed from the mechanisms below."))
    if len(about.public_loss) > 1:
        losses = [(i + 1, float(loss)) for i, loss in enumerate(about.public_loss)]
        chart = line_chart(losses, "measurements in the order of training", "loss on public data")
        charts.append((chart, _OF_THE_OWNER))
    figures = "".join(f"<figure>{c}<figcaption>{told}</figcaption></figure>" for c, told in charts)
    return f'<div class="charts">{figures}</div>' if figures else ""


def _details(about):
    rows = [(name.capitalize(), getattr(about, name))
            for name in ("version", "owner", "contact", "license")]  # fmt: skip
    rows.append(("Privacy", "trained with tfdp; this card is computed from its ledger"))
    return _table([(name, value) for name, value in rows if value])


def _metrics(metrics):
    if not metrics:
        return _said("")
    return _table([(name, str(value)) for name, value in metrics.items()]) + (
        f'<p class="source">{_OF_THE_OWNER}</p>'
    )


def _said(text):
    return f"<p>{html.escape(text)}</p>" if text else f'<p class="unsaid">{_UNSAID}</p>'


def _titled(listed, title):
    return [f"<h3>{title}</h3>", _items(listed[title])] if title in listed else []


def _table(rows):
    cells = (f"<tr><th>{html.escape(n)}</th><td>{html.escape(v)}</td></tr>" for n, v in rows)
    return f"<table>{''.join(cells)}</table>"


def _items(items):
    entries = "".join(f"<li>{html.escape(item)}</li>" for item in items)
    return f"<ul>{entries}</ul>" if entries else ""
