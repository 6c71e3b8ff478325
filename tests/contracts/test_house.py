"""The packages of the library import only packages below them."""

import ast
import graphlib
import pathlib
import re

import pytest

import tfdp

ROOT = pathlib.Path(tfdp.__file__).parent
#: From the ground up: a package may import the ones before it.
ROOMS = (
    "errors",
    "_validate",
    "argument_names",
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
    "experimental",
    "attention_release",
    "layers",
    "distribution",
    "training",
    "metrics",
    "models",
    "tuning",
    "audit",
    "serving",
    "callbacks",
    "registration",
    "commands",
    "cli",
    "__main__",
)
#: The same within a package, for its modules and subpackages; `__init__` is exempt.
INSIDE = {
    "accounting": (
        "budget",
        "correlated_noise",
        "banded_noise",
        "rounding",
        "losses",
        "events",
        "accountants",
        "calibration",
        "forward_noise",
        "release_series",
        "wishart_calibration",
        "charges",
        "reports",
        "planner",
        "ways",
        "literature",
    ),
    "data": (
        "provenance",
        "sources",
        "sampling",
        "samplers",
        "datasets",
        "releases",
    ),
    "clipping": (
        "recording",
        "probes",
        "sums",
        "rules",
        "plan",
        "independence",
        "crossentropy",
        "losses",
        "penalties",
        "shared",
        "in_parts",
        "engine",
        "inspect",
    ),
    "training": (
        "weights",
        "checks",
        "claims",
        "building",
        "row_selection",
        "present_rows",
        "step",
        "executions",
        "budget_stop",
        "whole_passes",
        "statements",
        "plain_training",
        "run",
        "charged_model",
        "dp_model",
        "make_private",
    ),
}


def imports_of(path):
    """Dotted names that a module imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def parts_of(path):
    """(room, what is in it, ...) of all that a module imports of tfdp, wherever in it."""
    for name in imports_of(path):
        if name.startswith("tfdp."):
            yield name.split(".")[1:]


def imported_from_above(path):
    """Rooms above, and parts of the same room above, from which a module imports."""
    room, *inner = path.relative_to(ROOT).with_suffix("").parts
    parts = list(parts_of(path))
    above = [name for name, *_ in parts if ROOMS.index(name) > ROOMS.index(room)]
    if room in INSIDE and inner != ["__init__"]:
        order = INSIDE[room]
        own = {one[1] for one in parts if one[0] == room and one[1:]}
        above += [name for name in own if order.index(name) > order.index(inner[0])]
    return above


def test_a_module_imports_only_from_rooms_below_it():
    paths = [path for path in sorted(ROOT.rglob("*.py")) if path != ROOT / "__init__.py"]
    assert len(paths) > 300
    found = {path.relative_to(ROOT): imported_from_above(path) for path in paths}
    assert not {path: above for path, above in found.items() if above}


@pytest.mark.parametrize("room", INSIDE)
def test_the_order_within_a_room_names_all_that_is_in_it(room):
    modules = {path.stem for path in (ROOT / room).glob("*.py")} - {"__init__"}
    inner = {path.parent.name for path in (ROOT / room).glob("*/__init__.py")}
    assert sorted(INSIDE[room]) == sorted(modules | inner)


def test_no_folder_is_a_long_list():
    for folder in {path.parent for path in ROOT.rglob("*.py")}:
        modules = len(list(folder.glob("*.py")))
        assert modules <= 15, f"split the folder: {folder.relative_to(ROOT)} has {modules} modules"


def test_benchmarks_import_each_other_in_no_circle():
    paths = {path.stem: path for path in (ROOT.parent / "benchmarks").glob("*.py")}
    first = {name: {one.split(".")[0] for one in imports_of(paths[name])} for name in paths}
    graph = {name: first[name] & set(paths) for name in paths}
    assert "sst2" in graph["sst2_scratch"]
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError


DESIGN = (ROOT.parent / "docs" / "design.md").read_text()
#: Where the lines are, which carry the same word as a comment.
LINES = {
    "selection/contribution_map.py": "SELECTS",
    "clipping/sums/factors.py": "CLIPS",
    "optimizers/run_charging.py": "CHARGES",
    "noise/grid.py": "ADDS NOISE",
}


@pytest.mark.parametrize("name, word", LINES.items())
def test_the_line_that_the_design_draws_is_marked_once(name, word):
    marks = {path: path.read_text().count(f"# {word}") for path in ROOT.rglob("*.py")}
    assert {str(path.relative_to(ROOT)): n for path, n in marks.items() if n} == {name: 1}
    assert DESIGN.split("```")[3].count(word) == 1


def test_every_module_that_the_design_names_exists():
    named = set(re.findall(r"`((?:\w+/)+\w+\.py)`", DESIGN))
    assert len(named) > 20
    places = (ROOT, ROOT.parent)  # of the library, and of its tests
    assert not [name for name in named if not any((place / name).exists() for place in places)]


def first_line(path):
    return ast.get_docstring(ast.parse(path.read_text())).splitlines()[0]


def drawing():
    """The rooms in their order, and the rooms in them, each by the first line of its docstring."""
    lines = []
    for room in ROOMS:
        packages = [(room, ROOT / room / "__init__.py")]
        inner = {p.parent.name: p for p in (ROOT / room).glob("*/__init__.py")}
        packages += [(f"  {n}", inner[n]) for n in INSIDE.get(room, inner) if n in inner]
        for name, path in packages:
            path = path if path.exists() else ROOT / f"{room}.py"
            lines.append(f"{name:<18} {first_line(path)}")
    return "text\n" + "\n".join(lines) + "\n"


def test_the_design_names_all_that_is_kept_on_objects_of_others():
    table = DESIGN.split("## State that sticks")[1].split("## Writing a rule")[0]
    for path in ROOT.rglob("*.py"):
        code = path.read_text()
        names = re.findall(r'"(_tfdp_\w+)"', code) + re.findall(r'vars\(\w+\)\["(\w+)"\]', code)
        assert not [name for name in names if f"`{name}`" not in table], path


def test_the_design_draws_the_rooms_by_what_they_say_of_themselves():
    assert DESIGN.split("```")[1] == drawing(), f"docs/design.md must draw:\n{drawing()}"


def test_from_fit_to_the_statement_a_reader_opens_at_most_18_modules():
    rows = re.findall(r"^\| (\d+) \| `([\w/]+\.py)`", DESIGN, re.M)
    assert [int(number) for number, _ in rows] == list(range(1, len(rows) + 1))
    assert len(rows) <= 18 and len({name for _, name in rows}) == len(rows)
    assert set(LINES) <= {name for _, name in rows}
    for name, what in LINES.items():  # and the picture of a step has them
        line = next(line for line in DESIGN.split("```")[3].splitlines() if name in line)
        assert what in line
