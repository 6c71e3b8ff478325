"""What tfdp expects of other packages beyond their public interfaces."""

import subprocess
import sys

import keras
import numpy as np
import pytest

import tfdp


@pytest.mark.parametrize("kind", ["m.keras", "m.weights.h5"])
def test_files_of_the_inner_model_carry_the_charges(small, tmp_path, kind):
    model = small.model()
    model.fit(small.poisson(), verbose=0)
    inner = model.model
    if kind == "m.keras":
        inner.save(tmp_path / kind)
        loaded = keras.models.load_model(tmp_path / kind)
    else:
        inner.save_weights(tmp_path / kind)
        loaded = small.base()
        loaded.load_weights(tmp_path / kind)
    assert type(loaded) is keras.Sequential
    for a, b in zip(inner.get_weights(), loaded.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    again = tfdp.make_private(loaded)
    assert again.ledger == model.ledger and len(again.ledger)
    again.compile(small.optimizer(), loss=small.loss)
    assert again.privacy_statement().epsilon == model.privacy_statement().epsilon
    assert not any("elsewhere" in s for s in again.privacy_statement().assumptions)


def test_plain_keras_reads_the_files_of_an_inner_model(small, tmp_path):
    model = small.model()
    model.fit(small.poisson(), verbose=0)
    model.model.save(tmp_path / "m.keras")
    script = (
        "import sys, keras, numpy as np\n"
        "m = keras.models.load_model(sys.argv[1])\n"
        "assert 'tfdp' not in sys.modules\n"
        "print(float(np.abs(m.get_weights()[0]).sum()))\n"
    )
    shown = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "m.keras")],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    assert float(shown) == pytest.approx(float(np.abs(model.get_weights()[0]).sum()), rel=1e-6)
