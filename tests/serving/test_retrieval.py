"""Items are found from exported vectors: by keras_rs, and by tensorflow_recommenders alone."""

import os
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp

ROOT = pathlib.Path(__file__).resolve().parents[2]
LEGACY = ROOT / ".venv-retrieval" / "bin" / "python"


def best(users, items, k):
    """Ids of the k items of largest product, for each user; float64, by NumPy."""
    scores = np.asarray(users, np.float64) @ np.asarray(items, np.float64).T
    return np.argsort(-scores, axis=1)[:, :k]


@pytest.mark.thorough
def test_keras_rs_finds_what_the_exported_vectors_rank_highest(tmp_path):
    keras_rs = pytest.importorskip("keras_rs")
    x, item = keras.Input((6,)), keras.Input((4,))
    users, items = keras.layers.Dense(5), keras.layers.Dense(5)
    private = tfdp.make_private(
        keras.Model([x, item], keras.layers.Dot(1)([users(x), items(item)]))
    )
    rng = np.random.default_rng(0)
    seen, known = (rng.normal(size=(100, d)).astype("float32") for d in (6, 4))
    archive = keras.export.ExportArchive()
    archive.track(private)
    archive.add_endpoint("users", lambda v: users(v), [tf.TensorSpec([None, 6])])
    archive.add_endpoint("items", lambda v: items(v), [tf.TensorSpec([None, 4])])
    archive.write_out(str(tmp_path / "towers"), verbose=False)

    towers = tf.saved_model.load(str(tmp_path / "towers"))
    vectors = towers.items(known)
    retrieval = keras_rs.layers.BruteForceRetrieval(vectors, k=3, return_scores=False)
    found = np.asarray(retrieval(towers.users(seen[:20])))
    np.testing.assert_array_equal(found, best(users(seen[:20]), items(known), 3))


@pytest.mark.evidence
def test_tensorflow_recommenders_finds_the_same_in_a_process_without_tfdp(tmp_path):
    if not LEGACY.exists():
        pytest.skip("no .venv-retrieval: `make retrieval` makes it")
    pytest.importorskip("keras_rs")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    script = ROOT / "examples" / "two_tower.py"
    subprocess.run(
        [sys.executable, script, "--export", tmp_path / "towers"], check=True, env=environment
    )
    environment.pop("PYTHONPATH")
    without = "import importlib.util as u, sys; sys.exit(u.find_spec('tfdp') is not None)"
    subprocess.run([LEGACY, "-c", without], check=True, env=environment, cwd=tmp_path)
    subprocess.run(
        [LEGACY, ROOT / "examples" / "retrieve_tfrs.py", tmp_path / "towers",
         "--out", tmp_path / "found.npz"],
        check=True, env=environment, cwd=tmp_path,
    )  # fmt: skip
    found, held_out = np.load(tmp_path / "found.npz"), np.load(tmp_path / "towers/held_out.npz")
    towers = tf.saved_model.load(str(tmp_path / "towers"))
    users, items = towers.user_vectors(held_out["history"]), towers.item_vectors()
    expected = best(users, items, 10)
    for method in ("brute_force", "streaming"):
        # Float32 may exchange two items of nearly one score; their scores are the same then.
        scores = np.take_along_axis(users.numpy() @ items.numpy().T, expected, axis=1)
        np.testing.assert_allclose(found[f"{method}_scores"], scores, rtol=1e-4, atol=1e-5)
        assert (found[f"{method}_ids"] == expected).mean() > 0.999
    hits = (expected == held_out["following"][:, None]).any(1).mean()
    assert abs(found["share"] - hits) < 2e-3 and hits > 0.1  # 10 of 200 by chance: 0.05
