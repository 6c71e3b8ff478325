"""docs/threat_model.md names tests that exist, and that `make test` runs."""

import ast
import pathlib
import re

TESTS = pathlib.Path(__file__).resolve().parent
PAGE = TESTS.parent / "docs" / "threat_model.md"


def test_make_test_runs_every_test_that_the_threat_model_names():
    named = set(re.findall(r"`(test_\w+)`", PAGE.read_text()))
    functions = [
        node
        for path in TESTS.rglob("test_*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef)
    ]
    left_out = {"pytest.mark.thorough", "pytest.mark.evidence"}
    run = {f.name for f in functions if not left_out & set(map(ast.unparse, f.decorator_list))}
    assert len(named) > 20 and not named - run
