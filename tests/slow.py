"""Cases that `make evidence` runs; the others of the same test stand for them in `make test`."""

import pytest


def cases(every, slow):
    """Values for `pytest.mark.parametrize`: all of `every`, those in `slow` marked as evidence."""
    missing = [value for value in slow if value not in every]
    assert not missing, f"no such cases: {missing}"
    return [_evidence(value) if value in slow else value for value in every]


def _evidence(value):
    values = value if isinstance(value, tuple) else (value,)
    return pytest.param(*values, marks=pytest.mark.evidence)
