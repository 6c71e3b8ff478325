"""Importing tfdp is cheap, and enough to load what it saved."""

import subprocess
import sys

import keras
import processes

import tfdp
from tfdp import registration


def run(code):
    return subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout


def test_import_adds_at_most_half_a_second_to_tensorflow():
    """Programs in `processes` have imported both, and nothing of tfdp."""
    code = (
        "import sys, time\n"
        "assert {'tensorflow', 'keras'} < set(sys.modules) and 'tfdp' not in sys.modules\n"
        "start = time.perf_counter(); import tfdp\n"
        "print(time.perf_counter() - start)"
    )
    assert float(processes.run(code)) <= 0.5


def test_import_alone_loads_neither_tensorflow_nor_keras():
    run("import sys, tfdp; assert not {'tensorflow', 'keras'} & set(sys.modules)")


def test_every_registered_class_has_a_stand_in():
    for name in ("models", "layers", "optimizers", "metrics", "clipping"):
        getattr(tfdp, name)
    known = keras.saving.get_custom_objects()
    registered = {k.removeprefix("tfdp>") for k in known if k.startswith("tfdp>")}
    assert registered == set(registration.CLASSES)
    for name, module in registration.CLASSES.items():
        assert known[f"tfdp>{name}"].__module__ == module


def test_a_saved_model_loads_after_import_tfdp_alone(tmp_path):
    model = tfdp.make_private(keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]))
    model.compile(
        tfdp.optimizers.DPOptimizer(
            "sgd", noise_multiplier=1.0, num_examples=10, expected_batch_size=5
        ),
        loss="mse",
    )
    model.save(tmp_path / "m.keras")
    processes.run(f"import keras, tfdp; keras.models.load_model({str(tmp_path / 'm.keras')!r})")
