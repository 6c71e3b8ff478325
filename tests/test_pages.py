"""Every code block of README and of the pages runs as printed."""

import contextlib

import page_setups
import pytest
from page_blocks import LANGUAGES, ROOT, Page, blocks_of

README = ROOT / "README.md"
PAGES = {
    str(path.relative_to(ROOT)): path
    for path in [README, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
}
WITH_CODE = [
    n for n, p in PAGES.items() if {b.language for b in blocks_of(p.read_text())} - {"text"}
]


@pytest.fixture
def page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with contextlib.ExitStack() as stack:
        yield Page(tmp_path, monkeypatch, stack)


@pytest.mark.parametrize("name", PAGES)
def test_every_block_says_what_it_is(name):
    text = PAGES[name].read_text()
    found = blocks_of(text)
    assert len(found) * 2 == sum(line.startswith("```") for line in text.splitlines())
    for block in found:
        assert block.language in LANGUAGES, f"{name}:{block.line}: ```{block.language}"
        assert set(block.given) <= set(page_setups.SETUPS), f"{name}:{block.line}"
        if block.language == "python":
            compile(block.code, f"{name}:{block.line}", "exec")


def test_the_two_commands_come_first():
    first = blocks_of(README.read_text())[0]
    assert first.code.split("\n")[:2] == ["make demo", "make test"]


@pytest.mark.filterwarnings("ignore")
def test_readme_in_short(page, capsys):
    pytest.importorskip("keras_hub")  # `make test` has it; the lowest versions are without extras
    page_setups.short(page)
    assert page.run(README, page_setups.SETUPS) >= 2
    check_readme(page, capsys.readouterr().out, short=True)


@pytest.mark.evidence
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", WITH_CODE)
def test_a_page_runs_as_printed(name, page, capsys):
    assert page.run(PAGES[name], page_setups.SETUPS)
    CHECKS.get(name, lambda page, out: None)(page, capsys.readouterr().out)


def check_readme(page, out, short=False):
    printed = next(b.code for b in blocks_of(README.read_text()) if b.language == "text")
    assert short or printed.strip() in out
    for folder in ("exported", "exported_recommender"):
        assert (page.folder / folder / "privacy_statement.json").is_file()
    statement = page.names["model"].privacy_statement(1e-5)
    assert 7.99 < statement.epsilon <= 8 and "user" in statement.unit


def check_statement(page, out, name="docs/statement.md"):
    """The statement that a page shows, as far as it does, up to the noise of each run."""
    texts = [b.code for b in blocks_of(PAGES[name].read_text()) if b.language == "text"]
    printed = texts[0].removesuffix("...\n")
    shown = out[out.index("Privacy statement") :]
    assert shown[: len(printed)].split() == printed.split()


def check_quick_start(page, out):
    check_statement(page, out, "docs/quick_start.md")


CHECKS = {
    "README.md": check_readme,
    "docs/quick_start.md": check_quick_start,
    "docs/statement.md": check_statement,
}


def test_every_page_is_in_the_menu_of_the_site():
    menu = (ROOT / "mkdocs.yml").read_text()
    missing = [n for n in PAGES if n.startswith("docs/") and f": {n[5:]}\n" not in menu]
    assert not missing, f"nav: of mkdocs.yml lacks {missing}"


def test_the_search_of_the_site_loads_nothing_from_elsewhere():
    # The plugin `offline` takes a script of this name for its own, which it would load from a site.
    settings = (ROOT / "mkdocs.yml").read_text()
    assert "- offline" in settings and "    - iframe-worker.js " in settings
    assert "window.Worker = window.IFrameWorker" in (ROOT / "docs/iframe-worker.js").read_text()
