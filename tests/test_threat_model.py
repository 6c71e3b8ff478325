"""docs/threat_model.md names tests that exist."""

import pathlib
import re

TESTS = pathlib.Path(__file__).resolve().parent
PAGE = TESTS.parent / "docs" / "threat_model.md"


def test_every_test_that_the_threat_model_names_exists():
    named = set(re.findall(r"`(test_\w+)`", PAGE.read_text()))
    defined = {
        name
        for path in TESTS.rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text(), re.M)
    }
    assert len(named) > 20 and not named - defined
