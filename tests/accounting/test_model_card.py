"""The model card draws what the ledger says, and marks what its owner says as such."""

import dataclasses
import json

import dp_accounting
import numpy as np
import pytest

from tfdp import cli
from tfdp.accounting import Ledger, LedgerEntry, epsilon, privacy_statement
from tfdp.accounting.events.composition import compose, training_event
from tfdp.accounting.reports.about import About
from tfdp.accounting.reports.model_card import epsilon_over_steps, to_html, upper_bound

STEP, RELEASE = training_event(1.5, 0.05), dp_accounting.GaussianDpEvent(4.0)
ABOUT = """
name = "Films <next>"
intended_use = "To rank <films>."
caveats = ["Rare films are missed."]
public_loss = [2.0, 1.5, 1.25]
[metrics]
"NDCG@10" = 0.099
"""


def stated(*more):
    details = {"kind": "training", "num_examples": 2000, "steps": 60}
    ledger = Ledger([LedgerEntry("private training", STEP, 60, details)])
    for event in more:
        ledger.add("counts", event)
    return privacy_statement(ledger, delta=1e-4)


def test_the_curve_ends_at_the_stated_epsilon_and_is_the_accountants_before():
    points = dict(epsilon_over_steps(stated(RELEASE)))
    assert list(points.values()) == sorted(points.values()) and len(points) == 8
    assert points[60] == stated(RELEASE).epsilon
    at_half = compose([(STEP, 30), (RELEASE, 1)])  # a release counts from the first step on
    assert points[30] == pytest.approx(epsilon(at_half, 1e-4, "pld"), rel=1e-6)


def test_the_line_that_is_drawn_is_nowhere_below_what_the_steps_cost():
    line = upper_bound(epsilon_over_steps(stated(RELEASE)))
    places, heights = zip(*line, strict=True)
    assert places[0] == 0 and line[-1] == (60, stated(RELEASE).epsilon)
    for step in (1, 4, 11, 37, 59):
        drawn = np.interp(step, places, heights)
        assert drawn >= epsilon(compose([(STEP, step), (RELEASE, 1)]), 1e-4, "pld")


def test_no_curve_is_drawn_of_passes_which_cost_as_a_whole_when_they_begin():
    for kind, drawn in (("poisson", 8), ("stream", 0), ("shuffled", 0), ("allocated", 0)):
        sampling = {"kind": kind, "num_examples": 2000, "expected_batch_size": 100}
        details = {"kind": "training", "steps": 60, "sampling": sampling}
        entry = LedgerEntry("private training", STEP, 60, details)
        statement = dataclasses.replace(stated(), entries=[entry.to_dict()])
        assert len(epsilon_over_steps(statement)) == drawn


def test_no_curve_is_drawn_without_a_finite_epsilon_or_without_steps():
    assert epsilon_over_steps(stated(dp_accounting.NonPrivateDpEvent())) == []
    released = privacy_statement(Ledger([LedgerEntry("counts", RELEASE, 1, {})]), delta=1e-4)
    assert epsilon_over_steps(released) == [] and "<svg" not in to_html(released)


def test_the_owner_is_quoted_as_the_owner_and_silence_is_named():
    card, bare = to_html(stated(), About.from_toml(ABOUT)), to_html(stated())
    for said in ("Films &lt;next&gt;", "To rank &lt;films&gt;.", "Rare films are missed.", "0.099"):
        assert said in card and said not in bare
    assert card.count("<svg") == 2 and bare.count("<svg") == 1
    assert card.count("Stated by the owner") == 2 and "Stated by the owner" not in bare
    assert 0 < card.count("has stated nothing here") < bare.count("has stated nothing here")


def test_a_card_loads_nothing_from_elsewhere():
    card = to_html(stated(), About.from_toml(ABOUT))
    assert not any(mark in card for mark in ("http", "src=", "href=", "url(", "<script", "@import"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nmae = 'x'", "no entry 'nmae'"),
        ("caveats = 'one'", "must be a list"),
        ("public_loss = ['low']", "must hold numbers"),
        ("public_loss = [nan]", "must hold numbers"),
        ("name =", "Invalid"),
    ],
)
def test_what_an_owner_says_is_read_strictly(text, message):
    with pytest.raises(ValueError, match=message):
        About.from_toml(text)


def test_the_command_takes_what_the_owner_says(tmp_path, capsys):
    (tmp_path / "privacy_statement.json").write_text(json.dumps(stated().to_dict()))
    about = tmp_path / "about.toml"
    about.write_text(ABOUT)
    assert cli.main(["statement", str(tmp_path), "--html", "--about", str(about)]) == 0
    assert "To rank &lt;films&gt;." in capsys.readouterr().out
    assert cli.main(["statement", str(tmp_path), "--about", str(about)]) == 2
    assert "Add --html" in capsys.readouterr().err
