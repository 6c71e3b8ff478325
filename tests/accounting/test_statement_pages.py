"""The statement as a page and as a section of a model card says all that its text says."""

import dataclasses
import html.parser
import json
import re

import dp_accounting
import pytest

from tfdp import cli
from tfdp.accounting import Ledger, LedgerEntry, PrivacyBudget, privacy_statement
from tfdp.accounting.charges.mechanisms import Notes
from tfdp.accounting.events.composition import training_event
from tfdp.accounting.reports.model_card import to_html
from tfdp.accounting.reports.statement_pages import to_markdown

NOTES = Notes(
    not_covered=("the <losses> shown",), assumptions=("a | b",), remarks=("a_b is *not* c",)
)


def stated(*more):
    sampling = {"kind": "poisson", "num_examples": 2000, "expected_batch_size": 100}
    details = {"kind": "training", "num_examples": 2000, "sampling": sampling, "steps": 60}
    ledger = Ledger([LedgerEntry("private training", training_event(1.5, 0.05), 60, details)])
    for event in more:
        ledger.add("plain", event)
    return privacy_statement(ledger, delta=1e-4, budget=PrivacyBudget(8.0, 1e-4), notes=NOTES)


class _Text(html.parser.HTMLParser):
    """The text of a page, and that its tags are closed."""

    def __init__(self, page):
        super().__init__()
        self.text, self._open = [], []
        self.feed(page)
        assert not self._open, self._open

    def handle_starttag(self, tag, attrs):
        if tag != "meta":
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def _words(text):
    return set(re.findall(r"[\w^<>|*./+-]{4,}", text.replace("\\", "")))


@pytest.mark.parametrize("more", [(), (dp_accounting.NonPrivateDpEvent(),)])
def test_nothing_that_the_text_says_is_missing(more):
    statement = stated(*more)
    page, card = " ".join(_Text(to_html(statement)).text), to_markdown(statement)
    said = _words(str(statement)) - {"Privacy", "statement", "=" * 17, "PRIVATE."}
    assert len(said) > 30
    for text in (page, card):
        missing = {w for w in said if w.strip(":.;,") not in text.replace("\\", "")}
        assert not missing, missing
    assert ("not private" in page) == bool(more) == ('class="epsilon none"' in to_html(statement))


def test_a_budget_that_was_not_kept_is_marked():
    statement = dataclasses.replace(stated(), budget=PrivacyBudget(0.1, 1e-4))
    assert 'class="epsilon none"' in to_html(statement) and "NOT KEPT" in to_html(statement)
    assert "NOT KEPT" in to_markdown(statement) and "NOT KEPT" in str(statement)


def test_marks_of_the_text_are_no_marks_of_the_page():
    statement = stated()
    assert "<losses>" not in to_html(statement) and "&lt;losses&gt;" in to_html(statement)
    assert r"\<losses\>" in to_markdown(statement) and r"a\_b is \*not\* c" in to_markdown(
        statement
    )


def test_the_command_prints_them(tmp_path, capsys):
    statement = stated()
    fields = {**statement.to_dict(), "releases_at_inference": [{"epsilon": 1.0}]}
    (tmp_path / "privacy_statement.json").write_text(json.dumps(fields))
    for option, start in (("--html", "<!doctype html>"), ("--markdown", "## Privacy")):
        assert cli.main(["statement", str(tmp_path), option]) == 0
        out = capsys.readouterr().out
        assert out.startswith(start) and "at every call" in out
    assert cli.main(["statement", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["releases_at_inference"] == [{"epsilon": 1.0}]
    bare = {"epsilon": "infinity", "remarks": ["The model was trained without privacy."]}
    (tmp_path / "privacy_statement.json").write_text(json.dumps(bare))
    assert cli.main(["statement", str(tmp_path)]) == 0
    assert "NOT PRIVATE. The model was trained without" in capsys.readouterr().out
    assert cli.main(["statement", str(tmp_path), "--html"]) == 2
    with pytest.raises(SystemExit) as raised:
        cli.main(["statement", str(tmp_path), "--html", "--json"])
    assert raised.value.code == 2
