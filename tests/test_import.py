"""Importing tfdp is cheap, and enough to load what it saved."""

import ast
import importlib
import pathlib
import pkgutil
import subprocess
import sys

import keras
import processes
import pytest

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


def test_accountants_are_loaded_when_a_charge_is_made():
    """dp_accounting and SciPy's statistics take longer to load than all of tfdp."""
    processes.run(
        "import sys, tfdp\n"
        "tfdp.optimizers.DPOptimizer, tfdp.make_private, tfdp.models.DPFormer, tfdp.layers\n"
        "tfdp.data.poisson_batches, tfdp.selection.AdaFEST\n"
        "heavy = {'dp_accounting', 'scipy.stats', 'scipy.optimize', 'scipy.signal'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
        "tfdp.accounting.Ledger()\n"
        "assert heavy <= set(sys.modules)"
    )


@pytest.mark.parametrize("name", ["accounting", "data", "layers", "models"])
def test_names_on_demand_are_those_that_editors_see(name):
    room = getattr(tfdp, name)
    source = ast.parse(pathlib.Path(room.__file__).read_text())
    (seen,) = [n.body for n in source.body if isinstance(n, ast.If)]
    homes = {alias.name: node.module for node in seen for alias in node.names}
    assert sorted(homes) == sorted(room.__all__) == dir(room)
    for public, module in homes.items():
        value = getattr(importlib.import_module(module), public)
        assert getattr(room, public) is value
        assert vars(room).pop(public) is value  # and found again below
        assert getattr(room, public) is value


@pytest.mark.parametrize("name", ["accounting", "data", "layers", "models"])
def test_no_name_on_demand_is_that_of_a_module(name):
    """Importing the module would take the name's place."""
    room = getattr(tfdp, name)
    assert not {m.name for m in pkgutil.iter_modules(room.__path__)} & set(room.__all__)
    assert getattr(room, "no_such_name", None) is None


def test_modules_of_a_room_are_found_by_attribute():
    processes.run(
        "import tfdp; assert tfdp.accounting.charges.mechanisms.NoPrivacy.__name__ == 'NoPrivacy'"
    )


def test_every_registered_class_has_a_stand_in():
    for name in ("models", "layers", "optimizers", "metrics", "clipping"):
        room = getattr(tfdp, name)
        assert all(hasattr(room, public) for public in dir(room))
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


@pytest.mark.thorough
def test_keras_that_tensorflow_imports_after_tfdp_knows_its_classes():
    run(
        "import tfdp, tensorflow, keras\nassert 'tfdp>DPModel' in keras.saving.get_custom_objects()"
    )
