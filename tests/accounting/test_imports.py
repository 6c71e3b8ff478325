"""Accounting works where TensorFlow is not installed."""

import json
import pathlib
import re
import subprocess
import sys

import pytest

import tfdp
from tfdp.accounting.events import registry


def test_accounting_imports_neither_tensorflow_nor_keras():
    code = (
        "import sys, tfdp.accounting; import tfdp.accounting.reports.budget_table;"
        "print([m for m in ('tensorflow', 'keras', 'jax', 'torch') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (result.returncode, result.stdout.strip()) == (0, "[]"), result.stderr


OWN_EVENTS = {
    "PoissonSampledConcentratedDpEvent": {"sampling_probability": 0.5, "noise_multiplier": 1.0},
    "RandomAllocationGaussianDpEvent": {"num_steps": 3, "noise_multiplier": 1.0},
    "VisiblySampledGaussianDpEvent": {"sampling_probability": 0.5, "noise_multiplier": 1.0},
    "WishartDpEvent": {"num_samples": 5000, "relative_sensitivity": 0.001},
}


def test_every_own_event_is_among_those_that_load():
    modules = pathlib.Path(tfdp.accounting.__file__).parent.rglob("*.py")
    registered = re.compile(r"^@register_event\n(?:@.*\n)*class (\w+)", re.MULTILINE)
    found = {name for path in modules for name in registered.findall(path.read_text())}
    assert found == set(registry._HOMES) == set(OWN_EVENTS)


@pytest.mark.thorough_after(2)
@pytest.mark.parametrize("name", OWN_EVENTS)
def test_a_ledger_loads_where_nothing_else_was_imported(name):
    entry = {"class_name": name, **OWN_EVENTS[name]}
    code = (
        "import json, sys; from tfdp.accounting.events.registry import event_from_dict\n"
        f"event = event_from_dict(json.loads({json.dumps(entry)!r}))\n"
        f"assert type(event).__name__ == {name!r}"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
