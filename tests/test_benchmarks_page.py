"""docs/benchmarks.md and docs/persons.md show what the JSON in benchmarks/results holds."""

import importlib
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parents[1]


def test_no_figure_of_the_tables_was_typed_by_hand(monkeypatch):
    monkeypatch.syspath_prepend(str(HERE / "benchmarks"))
    render = importlib.import_module("render")
    for name in [name for name in sys.modules if name == "render" or name.startswith("tables")]:
        sys.modules.pop(name)
    page = render.PAGE.read_text()
    assert render.rendered(page) == page, "run `python benchmarks/render.py`"
    assert len(render.SECTIONS) >= 5
    persons = render.PERSONS.read_text()
    assert render.rendered(persons, render.OF_PERSONS) == persons, "run `benchmarks/render.py`"
    changed = page.replace("| 50 | separate | ", "| 50 | separate | 9")
    assert changed != page and render.rendered(changed) == page
