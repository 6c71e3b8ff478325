"""What users say of a charge changes nothing that is computed or stated of it."""

import ast
import pathlib

import dp_accounting
import pytest

import tfdp
from tfdp.accounting import Ledger
from tfdp.accounting.charges.described import DESCRIBED, READ_BY_ACCOUNTING

ROOT = pathlib.Path(tfdp.__file__).parent
GAUSSIAN = dp_accounting.GaussianDpEvent(1.0)
# Parameters that a release reads of itself.
OWN = {"clip_norm", "delta", "expected_size", "feature_stddev"}
# Read by loops over names, or by name of the constant.
READ_OTHERWISE = {DESCRIBED, "max_records_per_unit", "not_covered", "remarks", "run"}
SETTERS = {
    "Ledger.add": lambda model, **details: Ledger().add("counts", GAUSSIAN, **details),
    "model.charge": lambda model, **details: model.charge("counts", GAUSSIAN, **details),
}


def reads(tree):
    """Names that code reads of what is called `details`, by index, `get` or `in`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            of, name = node.value, node.slice
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", None) in ("get", "pop"):
            of, name = node.func.value, (node.args or [None])[0]
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.In, ast.NotIn)):
            of, name = node.comparators[0], node.left
        else:
            continue
        text = ast.unparse(of)
        if text.endswith(("details", "details']")) and isinstance(name, ast.Constant):
            yield name.value


def names_read():
    found = set()
    for path in ROOT.rglob("*.py"):
        found |= set(reads(ast.parse(path.read_text())))
    return found


@pytest.fixture(scope="module")
def model(small):
    return small.model(small.base(), noise_multiplier=4.0)


@pytest.mark.thorough
def test_every_detail_that_is_read_is_known():
    found = names_read()
    assert {"period", "covers", "adjacency", "sampling", "release", "unit"} <= found
    assert found - OWN | READ_OTHERWISE == READ_BY_ACCOUNTING


@pytest.mark.parametrize("setter", SETTERS)
def test_no_field_that_accounting_reads_can_be_described(model, setter):
    arguments = {"num_examples", "unit"}  # of their own, which are checked
    for name in sorted(READ_BY_ACCOUNTING - arguments):
        with pytest.raises(ValueError, match=f"{name}.* names that accounting itself reads"):
            SETTERS[setter](model, **{name: "2026-W47"})
    for name, wrong in (("num_examples", -1), ("unit", "one person with all of its records")):
        with pytest.raises(ValueError, match=name):
            SETTERS[setter](model, **{name: wrong})


def test_what_describes_a_charge_is_kept_and_read_by_nothing(model):
    for week in ("w1", "w2"):
        model.charge("counts", GAUSSIAN, num_examples=40, week=week)
    entries = [e for e in model.ledger.entries if e.label == "counts"]
    assert [e.details[DESCRIBED] for e in entries] == [{"week": "w1"}, {"week": "w2"}]
    twice = dp_accounting.SelfComposedDpEvent(GAUSSIAN, 2)
    assert model.ledger.epsilon(1e-3) >= tfdp.accounting.epsilon(twice, 1e-3)


def test_charges_for_persons_are_said_by_name(small):
    model = small.model(small.base(), noise_multiplier=4.0)
    model.charge("counts", GAUSSIAN, unit="person")
    model.charge("counts", GAUSSIAN)
    assert model.ledger.mixes_units
