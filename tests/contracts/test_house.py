"""The rooms of the library know only the rooms below them."""

import ast
import pathlib

import pytest

import tfdp

ROOT = pathlib.Path(tfdp.__file__).parent
#: From the ground up: a room may import what stands before it.
ROOMS = (
    "errors",
    "_validate",
    "_compat",
    "runtime",
    "noise",
    "accounting",
    "data",
    "clipping",
    "selection",
    "optimizers",
    "attention_release",
    "layers",
    "distribution",
    "experimental",
    "training",
    "models",
    "serving",
    "callbacks",
    "metrics",
    "registration",
    "cli",
)


def imports_of(path):
    """Names of the rooms that a module imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            if name.startswith("tfdp."):
                yield name.split(".")[1]


def _modules():
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if parts != ("__init__",):
            yield pytest.param(path, parts[0], id=".".join(parts))


@pytest.mark.parametrize("path, room", list(_modules()))
def test_a_module_imports_only_from_rooms_below_it(path, room):
    above = [name for name in imports_of(path) if ROOMS.index(name) > ROOMS.index(room)]
    assert not above, f"{path.relative_to(ROOT)} imports from {above}"
