"""Cases that `make thorough` or `make evidence` run; others of the test stand for them."""

import pytest


def cases(every, slow=(), thorough=()):
    """Values for `pytest.mark.parametrize`: all of `every`, with the mark of the tier that runs it.

    Args:
        slow: the values that only `make evidence` runs.
        thorough: those that `make thorough` runs.
    """
    missing = [value for value in (*slow, *thorough) if value not in every]
    assert not missing, f"no such cases: {missing}"
    return [_marked(value, value in slow, value in thorough) for value in every]


def _marked(value, slow, thorough):
    if not slow and not thorough:
        return value
    values = value if isinstance(value, tuple) else (value,)
    return pytest.param(*values, marks=pytest.mark.evidence if slow else pytest.mark.thorough)
