"""Benchmarks take their arguments and record what they measure in one way."""

import argparse
import importlib
import json
import pathlib

import pytest

FOLDER = pathlib.Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.fixture
def imported(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module


def test_small_changes_what_is_not_given(imported, monkeypatch):
    def parsed(*arguments):
        monkeypatch.setattr("sys.argv", ["benchmark", *arguments])
        parser = argparse.ArgumentParser()
        parser.add_argument("--repeats", type=int, default=9)
        return imported("record").parse(parser, repeats=2)

    assert parsed().repeats == 9 and parsed().out is None
    assert parsed("--small").repeats == 2 and parsed("--small", "--repeats", "5").repeats == 5


def test_a_result_can_be_read_after_each_measurement(imported, tmp_path):
    path = tmp_path / "new" / "found.json"
    result = imported("record").Result(path, steps=[])
    for step in range(2):
        result["steps"].append(step)
        result.write()
        assert json.loads(path.read_text())["steps"] == list(range(step + 1))
    assert {"machine", "load", "date", "tensorflow", "keras"} <= result.keys()
    assert [p.name for p in path.parent.iterdir()] == ["found.json"]
    imported("record").Result(None).write()


def test_what_make_bench_runs_is_recorded_in_this_way(imported):
    for name in imported("quick").NAMES:
        text = (FOLDER / f"{name}.py").read_text()
        assert "record.parse(" in text and "record.Result(" in text, name
        assert 'add_argument("--out"' not in text and "json.dump(" not in text, name
