"""The tables of the pages show what the JSON in benchmarks/results holds."""

import importlib
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parents[1]


def test_no_figure_of_the_tables_was_typed_by_hand(monkeypatch):
    monkeypatch.syspath_prepend(str(HERE / "benchmarks"))
    render = importlib.import_module("render")
    for name in [name for name in sys.modules if name == "render" or name.startswith("tables")]:
        sys.modules.pop(name)
    assert sum(map(len, render.PAGES.values())) >= 20
    for name, sections in render.PAGES.items():
        page = (render.DOCS / name).read_text()
        assert render.rendered(page, sections) == page, "run `python benchmarks/render.py`"
    page = (render.DOCS / "benchmarks.md").read_text()
    changed = page.replace("| 50 | separate | ", "| 50 | separate | 9")
    assert changed != page and render.rendered(changed, render.BENCHMARKS) == page
