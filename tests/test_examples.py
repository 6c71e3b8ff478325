"""The scripts in examples/ learn what is there to learn, within their budget."""

import pathlib
import runpy
import subprocess
import sys

import numpy as np
import pytest

EXAMPLES = pathlib.Path(__file__).resolve().parents[1] / "examples"
pytestmark = [pytest.mark.evidence, pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def run(monkeypatch):
    """Function (name, arguments) -> the names that a script leaves."""

    def run(name, *arguments):
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        return runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")

    return run


def test_tabular(run, tmp_path):
    left = run("tabular")
    statement = left["model"].privacy_statement()
    assert 2.9 < statement.epsilon <= 3 and statement.unit == "one person with all of its records"
    assert left["results"]["binary_accuracy"] > 0.7
    rows = ["person,outcome,age,visits"] + [f"p{i // 2},{i % 2},{i % 2},{i}" for i in range(400)]
    (tmp_path / "visits.csv").write_text("\n".join(rows))
    run("tabular", "--data", tmp_path / "visits.csv", "--epochs", 1)


def test_images(run, tmp_path):
    left = run("image_classifier")
    assert 2.9 < left["model"].privacy_statement().epsilon <= 3
    assert left["results"]["accuracy"] > 0.7
    images = np.random.default_rng(0).normal(size=(100, 8, 8, 3))
    np.savez(tmp_path / "images.npz", x=images, y=np.arange(100) % 3)
    run("image_classifier", "--data", tmp_path / "images.npz", "--epochs", 1)


def test_a_rule_of_ones_own_changes_no_norm(run):
    left = run("own_layer")
    np.testing.assert_allclose(left["with_rule"], left["without"], rtol=1e-4)


def test_two_towers_and_retrieval_by_keras_rs(run):
    pytest.importorskip("keras_rs")
    left = run("two_tower")
    assert 2.9 < left["model"].privacy_statement().epsilon <= 3
    assert left["results"]["hit_rate_10"] > 0.1  # 10 of 200 by chance: 0.05
    assert left["found"].shape == (1_000, 10)


def test_movielens(run, shared_data, tmp_path):
    left = run("movielens")
    assert left["results"]["ndcg_10"] > 0.3  # by chance: about 0.02
    for name in ("model", "former"):
        assert 7.9 < left[name].privacy_statement(left["delta"]).epsilon <= 8
    lines = (shared_data / "ml-1m" / "ml-1m.txt").read_text().splitlines()
    few = [line for line in lines if int(line.split()[0]) <= 400]
    (tmp_path / "few.txt").write_text("\n".join(few) + "\n")
    left = run("movielens", "--data", tmp_path / "few.txt", "--epochs", 1,
               "--export", tmp_path / "exported")  # fmt: skip
    assert (tmp_path / "exported" / "privacy_statement.json").is_file()


def test_criteo(run, shared_data):
    left = run("criteo")
    for name in ("model", "cross_model"):
        assert 2.9 < left[name].privacy_statement().epsilon <= 3
    # 4,000 held-out impressions: an AUC of 0.5 has a standard deviation of 0.01.
    assert left["results"]["auc"] > 0.54 and left["cross_results"]["auc"] > 0.54
    file = shared_data / "criteo" / "dac_first80k_decoded.tsv.gz"
    left = run("criteo", "--data", file, "--rows", 4_000, "--epochs", 1)
    assert left["data"].num_examples == 3_600


def test_sst2(run, shared_data, tmp_path):
    keras_hub = pytest.importorskip("keras_hub")
    left = run("sst2")
    statement = left["model"].privacy_statement()
    assert left["results"]["accuracy"] > 0.8
    assert 2.9 < statement.epsilon <= 3 and any("came from elsewhere" in a for a in
                                                statement.assumptions)  # fmt: skip
    # A preset in a folder, as `--preset` takes it.
    tokenizer = keras_hub.models.BertTokenizer(vocabulary=left["vocabulary"], lowercase=True)
    preset = str(tmp_path / "preset")
    keras_hub.models.BertTextClassifier(
        left["public"].backbone, num_classes=2,
        preprocessor=keras_hub.models.BertTextClassifierPreprocessor(tokenizer),
    ).save_to_preset(preset)  # fmt: skip
    for part in ("train", "dev"):
        lines = (shared_data / "sst2" / f"{part}.tsv").read_text().splitlines()[:401]
        (tmp_path / f"{part}.tsv").write_text("\n".join(lines) + "\n")
    left = run("sst2", "--data", tmp_path, "--preset", preset, "--epochs", 1)
    assert left["n"] == 400
    with pytest.raises(SystemExit) as raised:
        run("sst2", "--data", tmp_path)
    assert raised.value.code == 2


def test_an_unknown_option_ends_with_2():
    done = subprocess.run(
        [sys.executable, EXAMPLES / "tabular.py", "--epsilom", "3"], capture_output=True, text=True
    )
    assert done.returncode == 2 and "--epsilom" in done.stderr
