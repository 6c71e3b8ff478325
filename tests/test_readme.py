"""What README shows runs as a user types it."""

import pathlib
import re

import numpy as np
import pytest

import tfdp

README = pathlib.Path(__file__).resolve().parents[1] / "README.md"


def blocks(language, page=README):
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)


def test_the_two_commands_come_first():
    (first, *_) = re.findall(r"```\w*\n(.*?)```", README.read_text(), re.DOTALL)
    assert first.split("\n")[:2] == ["make demo", "make test"]


def test_any_keras_model(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(blocks("python")[0], names)
    assert "epsilon = " in capsys.readouterr().out
    assert (tmp_path / "exported" / "privacy_statement.json").is_file()
    assert names["model"].privacy_statement().epsilon <= 3


@pytest.mark.filterwarnings("ignore")
def test_recommender(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    generator = np.random.default_rng(0)
    users = np.repeat(np.arange(1, 601), 5)
    items = generator.integers(1, 21, users.size)
    (tmp_path / "ml-1m.txt").write_text(
        "".join(f"{u} {i}\n" for u, i in zip(users, items, strict=True))
    )
    names = {}
    exec("import keras, tfdp\n" + blocks("python")[1], names)
    assert 7.9 < names["model"].privacy_statement(1e-4).epsilon <= 8
    assert (tmp_path / "exported" / "privacy_statement.json").is_file()
    code = blocks("python")[2].replace("epochs=100", "epochs=2, verbose=0")
    exec("import keras, tfdp\n" + code, names)
    assert names["model"].ledger.entries[0].label == "item frequencies"
    assert names["model"].optimizer.steps_taken == 2


def test_sparse_tables():
    code = blocks("python")[3].replace("synthetic_clicks()", "synthetic_clicks(5000)")
    names = {}
    exec("import keras, tfdp\n" + code.replace("epochs=4", "epochs=1, verbose=0"), names)
    model = names["model"]
    assert model.optimizer.steps_taken == 2 and model.privacy_statement().epsilon < 3
    assert 0 < model.history.history["gradient_size"][0] < 9.5e6  # all would be 9.6 million


def test_texts(tmp_path, monkeypatch):
    pytest.importorskip("tensorflow_text")
    monkeypatch.chdir(tmp_path)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "good", "bad", "film"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    names = {"public_encoder": None, "texts": ["good film", "bad film"] * 50}
    names["labels"] = np.array([1, 0] * 50)
    code = blocks("python")[4].replace("epochs=20", "epochs=2, verbose=0")
    exec("import keras, tfdp\n" + code, names)
    assert 2.99 < names["model"].privacy_statement(1e-5).epsilon <= 3


def test_the_page_on_tuning(monkeypatch, capsys):
    monkeypatch.setattr(tfdp.tuning.NumberOfRuns, "draw", lambda self: 2)
    names = {}
    (code,) = blocks("python", README.parent / "docs" / "tuning.md")
    exec(code, names)
    assert "best of a random number" in capsys.readouterr().out
    assert 1 < names["best"].model.privacy_statement(1e-4).epsilon < 10


def test_the_page_on_transitions(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {}
    for code in blocks("python", README.parent / "docs" / "transitions.md"):
        small = code.replace(
            "8_000, num_items=300, max_length=50", "300, num_items=30, max_length=8"
        )
        exec(small, names)
    assert "epsilon = " in capsys.readouterr().out
    assert names["best"].shape == (300, 31)
    assert names["model"].transitions is names["prior"]
    assert names["model"].privacy_charges() == [names["release"].entry]
