"""The rooms of the library know only the rooms below them."""

import ast
import graphlib
import pathlib
import re

import pytest

import tfdp

ROOT = pathlib.Path(tfdp.__file__).parent
#: From the ground up: a room may import what stands before it.
ROOMS = (
    "errors",
    "_validate",
    "fixed_settings",
    "_compat",
    "runtime",
    "noise",
    "accounting",
    "data",
    "clipping",
    "selection",
    "beam",
    "optimizers",
    "attention_release",
    "layers",
    "distribution",
    "experimental",
    "training",
    "models",
    "tuning",
    "audit",
    "serving",
    "callbacks",
    "metrics",
    "registration",
    "commands",
    "cli",
)


def imports_of(path):
    """Dotted names that a module imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def rooms_of(path):
    """Names of the rooms that a module imports, wherever in it."""
    for name in imports_of(path):
        if name.startswith("tfdp."):
            yield name.split(".")[1]


def _modules():
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if parts != ("__init__",):
            yield pytest.param(path, parts[0], id=".".join(parts))


@pytest.mark.parametrize("path, room", list(_modules()))
def test_a_module_imports_only_from_rooms_below_it(path, room):
    above = [name for name in rooms_of(path) if ROOMS.index(name) > ROOMS.index(room)]
    assert not above, f"{path.relative_to(ROOT)} imports from {above}"


def test_benchmarks_import_each_other_in_no_circle():
    paths = {path.stem: path for path in (ROOT.parent / "benchmarks").glob("*.py")}
    first = {name: {one.split(".")[0] for one in imports_of(paths[name])} for name in paths}
    graph = {name: first[name] & set(paths) for name in paths}
    assert "sst2" in graph["sst2_scratch"]
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError


DESIGN = (ROOT.parent / "docs" / "design.md").read_text()
PLACES = {
    "selection/contribution_map.py": "SELECTS",
    "clipping/factors.py": "CLIPS",
    "optimizers/charging.py": "CHARGES",
    "noise/grid.py": "ADDS NOISE",
}


def test_every_module_that_the_design_names_exists():
    named = set(re.findall(r"`((?:\w+/)+\w+\.py)`", DESIGN)) - {"tests/contracts/test_house.py"}
    assert len(named) > 20
    assert not [name for name in named if not (ROOT / name).exists()]


def test_the_design_draws_the_rooms_in_their_order():
    drawing = DESIGN.split("```")[1]
    rooms = [word for word in re.findall(r"\w+", drawing) if word in ROOMS]
    first = sorted(set(rooms), key=rooms.index)
    assert [r for r in ROOMS if r in first] == first and {"noise", "training"} <= set(first)


def test_from_fit_to_the_statement_a_reader_opens_at_most_20_modules():
    rows = re.findall(r"^\| (\d+) \| `([\w/]+\.py)`", DESIGN, re.M)
    assert [int(number) for number, _ in rows] == list(range(1, len(rows) + 1))
    assert len(rows) <= 20 and len({name for _, name in rows}) == len(rows)
    assert set(PLACES) <= {name for _, name in rows}
    for name, what in PLACES.items():  # and the picture of a step has them
        line = next(line for line in DESIGN.split("```")[3].splitlines() if name in line)
        assert what in line
