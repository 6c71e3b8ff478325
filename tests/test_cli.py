"""`tfdp budget` prints the library's own numbers, without TensorFlow."""

import itertools
import json
import math
import os
import runpy
import subprocess
import sys

import dp_accounting
import pytest
import slow

from tfdp import cli
from tfdp.accounting import (
    Ledger,
    LedgerEntry,
    PrivacyBudget,
    calibrate_noise_multiplier,
    epsilon,
    privacy_statement,
)
from tfdp.accounting.correlated_noise import (
    PREFIX_SUMS,
    noise_in_weights,
    optimized,
    sensitivity,
)
from tfdp.accounting.events.composition import compose
from tfdp.accounting.events.composition import training_event as step
from tfdp.accounting.reports import budget_table, text_bars
from tfdp.accounting.reports.statement import Statement
from tfdp.accounting.rounding import round_up
from tfdp.commands.startup_log import started_quietly
from tfdp.data.sampling.arguments import steps_of_epoch

_COMMON = ["--num-examples", "2000", "--batch-size", "100", "--delta", "1e-4"]
_ALL = ["--batch-size", "2000"]  # Gaussian steps, whose curves take no time


def _rows(output):
    table = output.split("over the steps\n")[1]
    return [tuple(map(float, line.split()[:2])) for line in table.splitlines() if line[:1] == " "]


@pytest.mark.thorough
def test_epsilons_become_noise_multipliers(capsys):
    assert cli.main(["budget", "--epsilon", "1", "2", *_COMMON, "--steps", "3"]) == 0
    rows = _rows(capsys.readouterr().out)
    for (reached, sigma), target in zip(rows, (1.0, 2.0), strict=True):
        expected = calibrate_noise_multiplier(PrivacyBudget(target, 1e-4), 0.05, 3)
        assert sigma == pytest.approx(expected, abs=1e-6)
        assert 0.998 * target < reached <= target


WAYS = list(itertools.product(["pld", "rdp"], ["add_or_remove_one", "replace_one"]))


# dp_accounting's own rule of the last takes 20 s.
@pytest.mark.parametrize("accountant, adjacency", slow.cases(WAYS, slow=[("pld", "replace_one")]))
def test_noise_multipliers_become_epsilons(capsys, accountant, adjacency):
    options = ["--accountant", accountant, "--adjacency", adjacency, "--steps", "2"]
    assert cli.main(["budget", "--noise-multiplier", "1.5", *_COMMON, *options]) == 0
    expected = epsilon(compose([(step(1.5, 0.05), 2)]), 1e-4, accountant, adjacency)
    assert _rows(capsys.readouterr().out)[0] == (pytest.approx(expected, abs=1e-4), 1.5)


def test_bands_make_rounds_of_steps(capsys):
    # 20 steps a pass make 21, of 3 each.
    options = ["--bands", "3", "--epochs", "2"]
    assert cli.main(["budget", "--noise-multiplier", "1.5", *_COMMON, *options]) == 0
    out = capsys.readouterr().out
    expected = epsilon(compose([(step(1.5, 0.15), 14)]), 1e-4)
    assert _rows(out)[0] == (pytest.approx(expected, abs=1e-4), 1.5)
    assert "steps = 42" in out and "cyclic Poisson sampling of 3 parts" in out
    wrong = ["--bands", "21", "--steps", "20"]
    assert cli.main(["budget", "--epsilon", "1", *_COMMON, *wrong]) == 2
    assert "bands=21" in capsys.readouterr().err


def test_no_figure_is_rounded_down():
    plan = budget_table.TrainingPlan.of(
        num_examples=2000, batch_size=100, steps=1, epochs=None, delta=1e-4,
        accountant="pld", adjacency="add_or_remove_one",
    )  # fmt: skip
    exact = (1.00001, 0.5000001)
    (printed,) = _rows(plan.format([exact]))
    assert printed == (1.0001, 0.500001)


@pytest.mark.thorough_after(1)
@pytest.mark.parametrize("size", ["280", "400", "600"])
def test_epochs_are_the_steps_that_fit_takes(capsys, size):
    steps = 10 * steps_of_epoch(None, 1000, int(size))
    options = ["--num-examples", "1000", "--batch-size", size, "--epochs", "10", "--delta", "1e-4"]
    assert cli.main(["budget", "--noise-multiplier", "3", *options]) == 0
    assert f"steps = {steps}," in capsys.readouterr().out
    assert cli.main(["plan", "--epsilon", "3", *options]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[1] == str(steps)


def test_the_accountant_is_that_of_a_statement_unless_another_is_asked_for(capsys):
    # So small a delta that the roundings of PLD matter; and so little noise that it takes too much
    # memory.
    for sigma, delta in (("1", "1e-13"), ("0.01", "1e-4")):
        options = ["--steps", "100", "--num-examples", "2000", "--batch-size", "2"]
        arguments = ["budget", "--noise-multiplier", sigma, *options, "--delta", delta]
        assert cli.main(arguments) == 0
        out = capsys.readouterr().out
        ledger = Ledger([LedgerEntry("training", step(float(sigma), 1e-3), 100)])
        expected = ledger.epsilon(float(delta))
        assert math.isfinite(expected) and "accountant rdp" in out
        assert _rows(out)[0] == (pytest.approx(expected, abs=1e-4), float(sigma))
    assert cli.main([*arguments, "--accountant", "pld"]) == 2
    assert 'Use accountant="rdp"' in capsys.readouterr().err


def test_a_delta_that_is_printed_is_not_below_the_one_that_holds(capsys):
    for options in (["--steps", "10"], ["--stream", "--epochs", "1"]):
        arguments = [*_COMMON, "--delta", "1.23456449e-4", *options]
        assert cli.main(["budget", "--noise-multiplier", "3", *arguments]) == 0
        assert "delta = 0.000123457" in capsys.readouterr().out


def test_an_epsilon_of_0_has_a_curve_of_0(capsys):
    options = ["--num-examples", "2", "--batch-size", "1", "--steps", "2", "--delta", "0.5"]
    assert cli.main(["budget", "--noise-multiplier", "1", *options]) == 0
    assert _rows(capsys.readouterr().out) == [(0.0, 1.0)]


def test_a_plot_is_written(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    path = tmp_path / "budget.png"
    options = [*_ALL, "--steps", "20", "--accountant", "rdp", "--plot", str(path)]
    assert cli.main(["budget", "--noise-multiplier", "1.5", "3", *_COMMON, *options]) == 0
    assert path.read_bytes()[:4] == b"\x89PNG"
    assert str(path) in capsys.readouterr().out


def test_the_terminal_shows_epsilon_over_the_steps_on_one_scale(capsys):
    options = [*_ALL, "--steps", "20", "--accountant", "rdp"]
    assert cli.main(["budget", "--noise-multiplier", "1", "9", *_COMMON, *options]) == 0
    large, small = (line.split()[2] for line in capsys.readouterr().out.splitlines()[-2:])
    assert list(large) == sorted(large) and large[-1] == "█" and large[0] < "▇"
    assert max(small) < "▄" and len(small) == len(large) == 16
    assert text_bars.curve([0.0, 4.0, math.inf], 8.0) == "▁▅█"


def test_the_package_runs_as_the_command(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["tfdp", "--help"])
    with pytest.raises(SystemExit) as raised:
        runpy.run_module("tfdp", run_name="__main__")
    assert raised.value.code == 0 and "usage: tfdp" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["plan", "budget", "train"])
@pytest.mark.parametrize("name", ["plot", "plot.txt", "no/folder.png"])
def test_a_plot_that_cannot_be_written_is_refused_before_anything_runs(capsys, command, name):
    with pytest.raises(SystemExit) as raised:
        cli.main([command, "--plot", name])
    error = capsys.readouterr().err
    assert raised.value.code == 2 and "argument --plot" in error and name[:2] in error


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--epsilon", "2", "--steps", "10", "--delta", "1e-2"], "at most 1/num_examples"),
        (["--epsilon", "-2", "--steps", "10"], "`epsilon`"),
        (["--noise-multiplier", "1", "--steps", "0"], "`steps`"),
        (["--noise-multiplier", "1", "--steps", "5", "--batch-size", "2001"], "`batch_size`"),
        (["--noise-multiplier", "1", "--steps", "5", "--fits", "2"], "--stream"),
        (["--noise-multiplier", "1e300", "--steps", "5"], "`noise_multiplier`"),
    ],
)
def test_arguments_that_make_no_sense_end_with_status_2(capsys, options, named):
    assert cli.main(["budget", *_COMMON, *options]) == 2
    assert named in capsys.readouterr().err


def _stream_rows(output):
    table = output.split("noise in weights\n")[1]
    return [tuple(map(float, line.split())) for line in table.splitlines()]


_STREAM = [*_COMMON, "--stream", "--epochs", "1"]


@pytest.mark.parametrize("fits", [1, 3])
def test_a_stream_costs_one_gaussian_for_each_fit_whatever_its_steps(capsys, fits):
    options = ["--noise-multiplier", "2", "--fits", str(fits)]
    assert cli.main(["budget", *_STREAM, *options]) == 0
    ((found, sigma, _),) = _stream_rows(capsys.readouterr().out)
    accountant = dp_accounting.pld.PLDAccountant(dp_accounting.NeighboringRelation.REPLACE_SPECIAL)
    accountant.compose(dp_accounting.GaussianDpEvent(2.0), fits)
    assert (found, sigma) == (pytest.approx(accountant.get_epsilon(1e-4), abs=2e-4), 2.0)


def test_a_stream_of_persons_has_the_noise_of_its_participations(capsys):
    assert cli.main(["budget", "--epsilon", "3", *_STREAM]) == 0
    ((_, one, left),) = _stream_rows(capsys.readouterr().out)
    persons = ["--max-participations", "3", "--min-separation", "5", "--num-persons", "900"]
    assert cli.main(["budget", "--epsilon", "3", *_STREAM, *persons]) == 0
    out = capsys.readouterr().out
    ((_, same, more),) = _stream_rows(out)
    assert one == same and more > 1.3 * left
    m = optimized(4, 20, PREFIX_SUMS, 3, 5)
    s = sensitivity(m, 20, 3, 5)
    assert f"sensitivity {round_up(s)}" in out
    assert more == pytest.approx(same * s * noise_in_weights(m, 20) / 100, rel=1e-2)


@pytest.mark.parametrize("wrong", [
    ["--adjacency", "zero_out"], ["--epochs", "1.5"], ["--max-participations", "2"],
    ["--num-persons", "20"], ["--plot", "x.png"], ["--bands", "2"],
    ["--max-participations", "2", "--min-separation", "2", "--epochs", "2"],
    ["--max-participations", "2", "--min-separation", "2", "--num-persons", "20000"],
    ["--epochs", "nan"], ["--epochs", "inf"], ["--batch-size", "nan"], ["--batch-size", "inf"],
])  # fmt: skip
def test_what_does_not_hold_for_a_stream_is_refused(capsys, wrong):
    assert cli.main(["budget", "--epsilon", "3", *_STREAM, *wrong]) == 2
    error = capsys.readouterr().err
    assert "Received" in error and ("1/num_persons" in error) == ("20000" in wrong)


@pytest.mark.parametrize("arguments", [["--help"], ["plan", "--help"]])
def test_help_imports_neither_tensorflow_nor_dp_accounting(arguments):
    code = (
        "import atexit, sys; from tfdp import cli;"
        "atexit.register(lambda: print('LOADED', [m for m in ('tensorflow', 'keras', "
        "'dp_accounting', 'scipy', 'matplotlib') if m in sys.modules]));"
        f"cli.main({arguments!r})"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "plan" in result.stdout
    assert "LOADED []" in result.stdout


def test_a_plan_shows_which_batch_size_leaves_the_least_noise(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    options = ["--num-examples", "2000", "--epochs", "5", "--epsilon", "2", "--delta", "1e-4"]
    path = tmp_path / "plan.png"
    arguments = ["plan", *options, "--batch-size", "100", "2000", "--accountant", "rdp"]
    assert cli.main([*arguments, "--plot", str(path)]) == 0
    _, small, large, written = capsys.readouterr().out.splitlines()
    assert "least noise" in large and "least noise" not in small and str(path) in written
    assert small.endswith(16 * "█")  # the other bar is shorter by what its noise is less
    shares = [float(line.split()[4]) / float(small.split()[4]) for line in (small, large)]
    assert large.split()[5] == text_bars.bar(shares[1]) and shares[1] < 0.9
    for line, batch in ((small, 100), (large, 2000)):
        size, steps, sigma, of_a_step, of_all = map(float, line.split()[:5])
        assert (size, steps) == (batch, 5 * 2000 / batch)
        expected = calibrate_noise_multiplier(
            PrivacyBudget(2, 1e-4), batch / 2000, int(steps), "rdp"
        )
        assert sigma == pytest.approx(expected, abs=1e-6)
        assert of_a_step == pytest.approx(sigma / batch, rel=1e-2)
        assert of_all == pytest.approx(sigma / batch / steps**0.5, rel=1e-2)
    assert path.read_bytes()[:4] == b"\x89PNG"
    assert cli.main(["plan", *options, "--batch-size", "3000"]) == 2
    assert "batch_size" in capsys.readouterr().err


def test_a_statement_is_printed_from_its_file(tmp_path, capsys):
    details = {"kind": "training", "num_examples": 2000}
    ledger = Ledger([LedgerEntry("training", step(1.5, 0.05), 60, details)])
    budget = PrivacyBudget(8.0, 1e-4)
    statement = privacy_statement(ledger, delta=1e-4, budget=budget)
    (tmp_path / "privacy_statement.json").write_text(statement.to_json())
    assert Statement.from_dict(json.loads(statement.to_json())) == statement
    assert cli.main(["statement", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{statement}\n"
    assert cli.main(["statement", str(tmp_path / "privacy_statement.json"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(statement.to_json())
    fields = statement.to_dict()
    damaged = {
        "epsilon": {**fields, "epsilon": 0.99 * statement.epsilon},
        "entries": {**fields, "entries": [{**fields["entries"][0], "count": 66}]},
        "delta": {**fields, "delta": 1e-6},
    }
    for name, other in damaged.items():
        (tmp_path / "other.json").write_text(json.dumps(other))
        assert cli.main(["statement", str(tmp_path / "other.json")]) == 2, name
        assert "damaged" in capsys.readouterr().err
    ledger.add("plain", dp_accounting.NonPrivateDpEvent())
    infinite = privacy_statement(ledger, delta=1e-4)
    assert str(Statement.from_dict(infinite.to_dict())) == str(infinite)
    for text in ("{}", "[]", "no JSON"):
        (tmp_path / "other.json").write_text(text)
        assert cli.main(["statement", str(tmp_path / "other.json")]) == 2
        assert "`path`" in capsys.readouterr().err
    assert cli.main(["statement", str(tmp_path / "nothing.json")]) == 2
    capsys.readouterr()
    assert cli.main(["statement", "model.keras"]) == 2
    assert "a saved model, not a statement: model.keras. Load it" in capsys.readouterr().err


def test_only_lines_of_tensorflow_are_kept_from_the_terminal(capfd, monkeypatch):
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)
    lines = (b"WARNING: All log messages before absl::InitializeLog() is called\n"
             b"E0000 00:00:17.8 3091 cuda_platform.cc:52] failed call to cuInit\n"
             b"Information about a budget\n")  # fmt: skip
    with started_quietly():
        os.write(2, lines)
    assert capfd.readouterr().err == "Information about a budget\n"
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "0")
    with started_quietly():
        os.write(2, lines)
    assert capfd.readouterr().err == lines.decode()
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL")
    with pytest.raises(ZeroDivisionError), started_quietly():
        os.write(2, lines)
        raise ZeroDivisionError
    os.write(2, b"later\n")
    assert capfd.readouterr().err == "Information about a budget\nlater\n"
