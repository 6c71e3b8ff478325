"""The tables and plots of the pages show what the JSON in benchmarks/results holds."""

import importlib
import pathlib
import re
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parents[1]


@pytest.fixture
def render(monkeypatch):
    monkeypatch.syspath_prepend(str(HERE / "benchmarks"))
    module = importlib.import_module("render")
    yield module
    for name in list(sys.modules):
        if name == "render" or name.startswith(("tables", "plots")):
            sys.modules.pop(name)


def test_no_figure_of_the_tables_was_typed_by_hand(render):
    assert sum(map(len, render.PAGES.values())) >= 20
    for name, sections in render.PAGES.items():
        page = (render.DOCS / name).read_text()
        assert render.rendered(page, sections) == page, "run `python benchmarks/render.py`"
    page = (render.DOCS / "benchmarks.md").read_text()
    changed = page.replace("| 50 | separate | ", "| 50 | separate | 9")
    assert changed != page and render.rendered(changed, render.BENCHMARKS) == page


def test_plots_are_drawn_from_the_json_as_it_is(render):
    pytest.importorskip("PIL")
    for name, plot in render.plots.PLOTS.items():
        for theme in ("light", "dark"):
            stored = render.plots.stored_digest(plot.path(theme))
            assert stored == plot.digest(), f"{name}: run `python benchmarks/render.py`"
    images = {path.name for path in render.plots.IMAGES.glob("*_light.png")}
    assert images == {plot.path("light").name for plot in render.plots.PLOTS.values()}


def test_a_changed_figure_makes_a_plot_stale(render, monkeypatch):
    plot = render.plots.PLOTS["step_time"]
    steps = sys.modules["plots.steps"]
    found = steps.read("peers")
    before = plot.digest()
    monkeypatch.setattr(steps, "read", lambda name: found)
    assert plot.digest() == before
    for row in found["rows"]:
        if row["library"] == "tfdp" and row["private"]:
            row["fastest_seconds"] *= 1.1
    assert plot.digest() != before


def test_every_plot_is_on_a_page_and_says_in_words_what_it_shows(render):
    shown = set()
    for path in render.pages_with_plots():
        page = path.read_text()
        assert render.with_pictures(page, path) == page, "run `python benchmarks/render.py`"
        for alt, source in re.findall(r'<img width="\d+%?" alt="([^"]*)" src="([^"]+)">', page):
            assert (path.parent / source).exists(), f"{path.name} shows {source}"
            assert len(alt) > 60 and any(c.isdigit() for c in alt), f"{path.name}, {source}: {alt}"
            shown.add(source.rsplit("/", 1)[-1])
    assert shown == {plot.path("light").name for plot in render.plots.PLOTS.values()}
