"""The scripts in examples/ learn what is there to learn, within their budget."""

import pathlib
import runpy

import numpy as np
import pytest

EXAMPLES = pathlib.Path(__file__).resolve().parents[1] / "examples"
pytestmark = [pytest.mark.evidence, pytest.mark.filterwarnings("ignore")]


def main_of(name):
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"]


def test_tabular(tmp_path):
    model, results = main_of("tabular")([])
    statement = model.privacy_statement()
    assert 2.9 < statement.epsilon <= 3 and statement.unit == "one person with all of its records"
    assert results["binary_accuracy"] > 0.7
    rows = ["person,outcome,age,visits"] + [f"p{i // 2},{i % 2},{i % 2},{i}" for i in range(400)]
    (tmp_path / "visits.csv").write_text("\n".join(rows))
    main_of("tabular")(["--data", str(tmp_path / "visits.csv"), "--epochs", "1"])


def test_images(tmp_path):
    model, results = main_of("image_classifier")([])
    assert 2.9 < model.privacy_statement().epsilon <= 3 and results["accuracy"] > 0.7
    images = np.random.default_rng(0).normal(size=(100, 8, 8, 3))
    np.savez(tmp_path / "images.npz", x=images, y=np.arange(100) % 3)
    main_of("image_classifier")(["--data", str(tmp_path / "images.npz"), "--epochs", "1"])


def test_a_rule_of_ones_own_changes_no_norm():
    without, with_rule = main_of("own_layer")()
    np.testing.assert_allclose(with_rule, without, rtol=1e-4)


def test_two_towers_and_retrieval_by_keras_rs():
    pytest.importorskip("keras_rs")
    model, results, found = main_of("two_tower")([])
    assert 2.9 < model.privacy_statement().epsilon <= 3
    assert results["hit_rate_10"] > 0.1  # 10 of 200 by chance: 0.05
    assert found.shape == (1_000, 10)
