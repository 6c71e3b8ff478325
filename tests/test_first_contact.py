"""What somebody meets who has just installed tfdp: completion, help, types, extras."""

import ast
import importlib
import inspect
import pathlib
import pydoc
import re
import typing

import pytest
import tomllib

import tfdp

ROOT = pathlib.Path(tfdp.__file__).parents[1]
SUBPACKAGES = [name for name in tfdp.__all__ if inspect.ismodule(getattr(tfdp, name))]
MODULES = {name: getattr(tfdp, name) for name in SUBPACKAGES}
CALLABLES = {
    f"{module}.{name}": getattr(MODULES[module], name)
    for module in SUBPACKAGES
    for name in MODULES[module].__all__
    if callable(getattr(MODULES[module], name))
}


@pytest.mark.parametrize("name", ["", *SUBPACKAGES])
def test_completion_shows_what_is_public_and_nothing_else(name):
    module = MODULES[name] if name else tfdp
    assert dir(module) == sorted(module.__all__) and all(hasattr(module, n) for n in dir(module))


def _function(public):
    """What a class or function is called with; None where that is inherited from Keras."""
    if not inspect.isclass(public):
        return public
    return next((vars(public)[n] for n in ("__init__", "__new__") if n in vars(public)), None)


def _names_of_types(public):
    """Names that modules of a function, or of a class and its bases, import for types alone."""
    names = {}
    for home in {c.__module__ for c in getattr(public, "__mro__", [public])}:
        if home.startswith("tfdp"):
            for node in ast.parse(inspect.getsource(importlib.import_module(home))).body:
                if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
                    exec(ast.unparse(ast.Module(node.body, [])), names)
    return names


@pytest.mark.parametrize("name", CALLABLES)
def test_every_public_callable_has_types_that_exist(name):
    function = _function(CALLABLES[name])
    if function is None or not getattr(function, "__module__", "").startswith("tfdp"):
        return
    hints = typing.get_type_hints(function, localns=_names_of_types(CALLABLES[name]))
    parameters = list(inspect.signature(function).parameters.values())
    of_class = inspect.isclass(CALLABLES[name])
    own = [p for p in parameters[of_class:] if p.name not in ("args", "kwargs")]
    wanted = [p.name for p in own]
    missing = [p for p in [*wanted, *([] if of_class else ["return"])] if p not in hints]
    assert not missing, f"tfdp.{name}: no types of {missing}"
    for p in parameters:
        if p.name in hints and p.default is None:
            allowed = typing.get_args(hints[p.name])
            assert hints[p.name] is typing.Any or type(None) in allowed, f"tfdp.{name}: {p}"


def _texts():
    yield from (ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md"))
    yield from sorted((ROOT / "docs").rglob("*.md"))
    yield from sorted((ROOT / "tfdp").rglob("*.py"))


def _found(dotted):
    """What a dotted name stands for; raises what importing it raises."""
    value = tfdp
    for part in dotted.split(".")[1:]:
        try:
            value = getattr(value, part)
        except AttributeError:
            value = importlib.import_module(f"{value.__name__}.{part}")
    return value


def test_every_name_that_pages_and_docstrings_give_exists():
    wrong = set()
    for path in _texts():
        for name, call in re.findall(
            r"(?<![\w/.-])(tfdp(?:\.[A-Za-z_]\w*)+)(\()?", path.read_text()
        ):
            try:
                right = not call or callable(_found(name))
            except ImportError as error:  # of a package that is not installed here: not ours
                right = not (error.name or "").startswith("tfdp")
            except AttributeError:
                right = False
            if not right:
                wrong.add(f"{path.relative_to(ROOT)}: {name}{call}")
    assert not wrong, sorted(wrong)


def test_help_names_every_subpackage():
    text = pydoc.plain(pydoc.render_doc(tfdp))
    assert all(f"tfdp.{name}" in text for name in SUBPACKAGES) and "make_private" in text


@pytest.mark.thorough
def test_extras_install_what_is_imported_and_nothing_else():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    # Commands and plugins; and what keras_hub reads presets of Hugging Face with.
    imported = {"mkdocs-material", "mkdocs", "pytest-xdist", "ruff", "safetensors"}
    # Imported where they are there; the kernel that notebooks are executed by.
    imported |= {"jupytext", "nbclient", "ipykernel"}
    imported |= {"usearch"}  # in docs/two_towers.md alone
    for folder in ("tfdp", "tests", "benchmarks", "examples", "docs"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Import):
                    imported |= {alias.name.split(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom):
                    imported.add((node.module or "").split(".")[0])
    imported |= {"mkdocstrings"} if "mkdocstrings" in (ROOT / "mkdocs.yml").read_text() else set()
    for extra, requirements in project["optional-dependencies"].items():
        for requirement in requirements:
            name = requirement.split(">")[0].split("[")[0].split(";")[0].split("<")[0].strip()
            assert {name, name.replace("-", "_")} & imported, f"[{extra}] {requirement}"
