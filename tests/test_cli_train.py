"""`tfdp train` makes of a file what TensorFlow serves alone, and `tfdp statement` shows it."""

import json

import numpy as np
import processes
import pytest

import tfdp
from tfdp import cli
from tfdp.accounting.reports.statement import Statement

_SERVE = """
import sys, tensorflow as tf
{imports}
served = tf.saved_model.load({path!r}).signatures["serving_default"]
answer = served({inputs})
assert not any(name.startswith("tfdp") for name in sys.modules)
print(sorted(answer), [v.shape[0] for v in answer.values()])
"""


def served(path, inputs, imports=""):
    """What a process that knows TensorFlow alone gets from an export."""
    code = _SERVE.format(path=str(path), inputs=inputs, imports=imports)
    return processes.run(code, cwd=path.parent).splitlines()[-1]


def train(folder, *arguments):
    path = folder / "exported"
    status = cli.main(["train", "--export", str(path), *map(str, arguments)])
    assert status == 0
    return path, Statement.from_dict(json.loads((path / "privacy_statement.json").read_text()))


@pytest.fixture
def orders(tmp_path):
    generator = np.random.default_rng(0)
    path = tmp_path / "orders.csv"
    rows = [
        f"c{user},{'tea jam rye oil fig'.split()[generator.integers(5)]},{time}"
        for user in range(64) for time in range(4)
    ]  # fmt: skip
    path.write_text("\n".join(["customer,sku,time", *rows]) + "\n")
    return path


@pytest.fixture
def catalogue(tmp_path):
    path = tmp_path / "catalogue.txt"
    path.write_text("\n".join(["tea", "jam", "rye", "oil", "fig", *map(str, range(6))]) + "\n")
    return path


TABLE = ("--user", "customer", "--item", "sku", "--timestamp", "time")


def test_a_recommender_from_a_table(tmp_path, orders, catalogue, capsys):
    path, statement = train(
        tmp_path, "--data", orders, *TABLE, "--items", catalogue, "--model", "transitions",
        "--epsilon", 4, "--delta", 0.01, "--max-length", 6, "--unit", "user",
    )  # fmt: skip
    assert 3.9 < statement.epsilon <= 4 and statement.delta == 0.01
    assert "the catalogue of items is public" in statement.assumptions
    out = capsys.readouterr().out
    assert "with privacy" in out and "do not publish" in out and str(statement) in out
    assert "not measured" in out and out.splitlines()[-1].startswith("Next: tfdp statement")
    assert "tensorflow/serving" in out and str(path) in out
    assert (path / "items.txt").read_text() == catalogue.read_text()
    answer = served(path, "sequences=tf.constant([[0, 2, 1]], tf.int64)")
    assert answer == "['items', 'scores'] [1, 1]"
    with pytest.raises(SystemExit) as raised:  # nothing is written over
        raise SystemExit(cli.main(["train", "--data", str(orders), *TABLE, "--model", "transitions",
                                   "--epsilon", "4", "--export", str(path)]))  # fmt: skip
    assert raised.value.code == 2 and "empty folder" in capsys.readouterr().err


def test_the_comparison_is_shown_on_the_terminal_and_is_in_no_file(
    tmp_path, catalogue, capsys, monkeypatch
):
    items = "tea jam rye oil fig".split()
    rows = [f"c{u},{items[(u + t) % 5]},{t}" for u in range(64) for t in range(4)]
    data = tmp_path / "cycle.csv"
    data.write_text("\n".join(["customer,sku,time", *rows]) + "\n")
    path, releases, files = tmp_path / "exported", tfdp.data.private_transitions, []

    def release(train, **settings):
        files.append({p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()})
        return releases(train, **settings)

    monkeypatch.setattr(tfdp.data, "private_transitions", release)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    train(tmp_path, "--data", data, *TABLE, "--items", catalogue, "--model", "transitions",
          "--epsilon", 0.05, "--compare")  # fmt: skip
    summary = capsys.readouterr().out.split("Summary")[1].splitlines()
    private, plain = (float(line.split("NDCG@10 ")[1].split()[0]) for line in summary[2:4])
    assert plain == 100 > private and "without privacy" in summary[3]  # 0.05 is all noise
    before_private, before_plain = files
    assert path / "privacy_statement.json" in before_plain.keys() - before_private.keys()
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before_plain


def test_data_that_are_all_held_out_end_with_one_line(tmp_path, capsys):
    data = tmp_path / "reviews.csv"
    data.write_text("review,vote\n" + "".join(f"film {i},up\n" for i in range(99)))
    held_out = tfdp.data.load_texts(data, "review", "vote", ("up", "down")).test[0]
    data.write_text(f"review,vote\n{held_out[0]},up\n")
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\nfilm\n")
    arguments = ["--text", "review", "--label", "vote", "--classes", "up", "down", "--vocabulary",
                 vocabulary, "--model", "text", "--epsilon", 3, "--data", data]  # fmt: skip
    assert cli.main(["train", "--export", str(tmp_path / "e"), *map(str, arguments)]) == 2
    assert "are held out" in capsys.readouterr().err


def test_a_catalogue_of_fewer_items_than_an_export_answers_with(tmp_path, orders, catalogue):
    catalogue.write_text("tea\njam\nrye\noil\nfig\n")
    path, _ = train(tmp_path, "--data", orders, *TABLE, "--items", catalogue,
                    "--model", "transitions", "--epsilon", 4)  # fmt: skip
    assert (path / "saved_model.pb").exists()


@pytest.mark.parametrize("model", ["transitions", "dpformer"])
def test_a_delta_above_1_over_n_is_refused_before_any_release(
    tmp_path, orders, catalogue, capsys, model
):
    arguments = ["--data", orders, *TABLE, "--items", catalogue, "--model", model,
                 "--export", tmp_path / "e", "--epsilon", 4, "--delta", 0.5]  # fmt: skip
    assert cli.main(["train", *map(str, arguments)]) == 2
    error = capsys.readouterr().err
    assert "--delta must be at most 1/n = 0.015625, where n = 64" in error
    assert "Releasing" not in error


@pytest.mark.evidence
def test_a_transformer_from_pairs(tmp_path, capsys):
    generator = np.random.default_rng(0)
    data = tmp_path / "pairs.txt"
    data.write_text("".join(f"{u} {generator.integers(1, 13)}\n" for u in range(1, 41)
                            for _ in range(4)))  # fmt: skip
    path, statement = train(
        tmp_path, "--data", data, "--model", "dpformer", "--epsilon", 6, "--epochs", 1,
        "--batch-size", 20, "--max-length", 4, "--num-items", 12,
    )  # fmt: skip
    assert 5.9 < statement.epsilon <= 6 and statement.delta == 0.1 / 40
    assert [e["label"] for e in statement.entries][0] == "item frequencies"
    assert statement.steps == 2
    assert "epsilon: " in capsys.readouterr().out  # the progress bar
    answer = served(path, "sequences=tf.constant([[3, 2, 1]], tf.int64)")
    assert answer == "['items', 'scores'] [1, 1]"


@pytest.mark.evidence
def test_clicks(tmp_path, capsys):
    generator = np.random.default_rng(0)
    rows = ["\t".join(map(str, [i % 2, *generator.integers(0, 9, 12), 0.5,
                                *generator.integers(0, 5, 26)])) for i in range(120)]  # fmt: skip
    data = tmp_path / "clicks.tsv"
    data.write_text("\n".join(rows) + "\n")
    path, statement = train(
        tmp_path, "--data", data, "--model", "ctr", "--epsilon", 3, "--epochs", 1,
        "--batch-size", 54, "--hash-buckets", 20,
    )  # fmt: skip
    assert 2.9 < statement.epsilon <= 3 and statement.unit == "one impression"
    assert statement.num_examples == 108
    out = capsys.readouterr().out
    assert "auc 0." in out and "do not publish" in out
    inputs = ", ".join(
        [f"C{i}=tf.zeros((2,), tf.int64)" for i in range(1, 27)] + ["integers=tf.zeros((2, 13))"]
    )
    assert served(path, inputs).endswith("[2]")


@pytest.mark.evidence
def test_clicks_of_a_table(tmp_path):
    generator = np.random.default_rng(0)
    rows = [f"{i % 2},ad{generator.integers(9)},site{generator.integers(3)}" for i in range(120)]
    data = tmp_path / "clicks.csv"
    data.write_text("\n".join(["clicked,ad,site", *rows]) + "\n")
    path, statement = train(
        tmp_path, "--data", data, "--model", "ctr", "--epsilon", 3, "--epochs", 1,
        "--batch-size", 54, "--hash-buckets", 20, "--label", "clicked",
        "--categories", "ad", "site",
    )  # fmt: skip
    assert 2.9 < statement.epsilon <= 3 and statement.num_examples == 108
    inputs = "ad=tf.zeros((2,), tf.int64), site=tf.zeros((2,), tf.int64)"
    assert served(path, inputs).endswith("[2]")


def test_texts(tmp_path, capsys):
    pytest.importorskip("tensorflow_text")
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "good", "bad", "film"]))
    data = tmp_path / "reviews.csv"
    rows = [row for i in range(30) for row in (f"good film {i},up", f'"bad, bad film {i}",down')]
    data.write_text("\n".join(["review,vote", *rows]) + "\n")
    columns = ["--data", data, "--text", "review", "--label", "vote", "--vocabulary", vocabulary]
    arguments = ["--model", "text", "--epsilon", 3, "--epochs", 1, *columns]
    path, statement = train(tmp_path, *arguments, "--classes", "down", "up")
    assert 2.9 < statement.epsilon <= 3 and statement.unit == "one text"
    n = statement.num_examples  # a hash of each text holds out about a tenth
    assert 42 <= n < 60 and "accuracy" in capsys.readouterr().out
    answer = served(path, "sentences=tf.constant(['a film'])", "import tensorflow_text")
    assert answer == "['labels', 'probabilities'] [1, 1]"
    capsys.readouterr()
    arguments += ["--export", tmp_path / "other"]
    assert cli.main(["train", *map(str, arguments), "--classes", "up", "sideways"]) == 2
    error = capsys.readouterr().err
    assert "`classes`" in error and "labels of 30 rows" in error and "down" not in error
    arguments += ["--classes", "down", "up", "--delta", 0.5]
    assert cli.main(["train", *map(str, arguments)]) == 2
    error = capsys.readouterr().err
    assert f"where n = {n}" in error and "Encoding" not in error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--epsilon", "-1"], "--epsilon must be positive"),
        (["--epsilon", "1", "--delta", "1"], "--delta must be below 1"),
        (["--epsilon", "1", "--delta", "0.5", "--items", "from_data"], "--delta must be at most"),
        (["--epsilon", "1", "--unit", "text"], "protects one user"),
        (["--epsilon", "1", "--data", "none.csv"], "--data must name a file"),
        (["--epsilon", "1"], 'Pass the public catalogue, items=[...]'),
        (["--epsilon", "1", "--user", "buyer"], "'buyer'"),
        (["--epsilon", "1", "--items", "none.txt"], "none.txt"),
        (["--epsilon", "1", "--epochs", "0"], "--epochs must be positive"),
        (["--epsilon", "1", "--compare"], "not private, so it works on a terminal only"),
        (["--epsilon", "1", "--model", "transitions", "--plot", "x.png"], "is charged once"),
        (["--epsilon", "1", "--model", "ctr", "--label", "x"], "--label needs --categories"),
        (["--epsilon", "1", "--model", "text"], "needs --text, --label, --vocabulary"),
    ],
)  # fmt: skip
def test_wrong_arguments_end_with_status_2_and_one_line(
    tmp_path, orders, capsys, arguments, message
):  # noqa: E501
    given = ["train", "--data", str(orders), "--model", "dpformer", *TABLE]
    assert cli.main([*given, "--export", str(tmp_path / "e"), *arguments]) == 2
    error = [line for line in capsys.readouterr().err.splitlines() if "…" not in line]
    assert len(error) == 1 and message in error[0], error
    assert not (tmp_path / "e").exists()
