"""Fault 20: no file holds the state of the noise or of the sampling; no process replays either."""

import ast
import itertools
import pathlib

import keras
import numpy as np
import processes
import pytest
import tensorflow as tf

import tfdp

# A process that restores one way, and prints its batches and the noise of its next step.
SCRIPT = """
import sys
import keras, numpy as np, tensorflow as tf, tfdp, tfdp.models
how, folder = sys.argv[1:]
keras.utils.set_random_seed(1)

@keras.saving.register_keras_serializable(package="fresh")
def zero_loss(y_true, y_pred):
    return 0.0 * tf.reduce_sum(y_pred, axis=-1)

def build():
    model = tfdp.make_private(keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)]))
    model.compile(
        tfdp.optimizers.DPOptimizer(keras.optimizers.SGD(1.0), noise_multiplier=1.0,
                                    num_examples=64, expected_batch_size=16),
        loss=zero_loss, run_eagerly=True,  # a trace takes longer than its one step
    )
    model.optimizer.build(model.trainable_variables)
    return model

batches = tfdp.data.poisson_batches(
    (np.arange(256, dtype=np.float32).reshape(64, 4), np.zeros(64, np.int32)), 16,
    steps_per_epoch=1,
)
if how == "save":
    model = build()
    model.fit(batches, verbose=0)
    model.save(folder + "/model.keras")
    model.save_weights(folder + "/model.weights.h5")
    tf.train.Checkpoint(model=model).save(folder + "/checkpoint")
    tfdp.serving.export(model, folder + "/exported")
    source = model.optimizer._noise
    (folder_key := open(folder + "/key.bin", "wb")).write(
        source._key.numpy().tobytes() + source._counter.numpy()[1:].tobytes())
    folder_key.close()
for way in ["keras", "weights", "checkpoint"]:
    if way == "keras":
        model = keras.models.load_model(folder + "/model.keras")
    else:
        model = build()
        if way == "weights":
            model.load_weights(folder + "/model.weights.h5")
        else:
            tf.train.Checkpoint(model=model).restore(tf.train.latest_checkpoint(folder))
    before = model.get_weights()[0]
    drawn = []
    seen = batches.map(lambda x, y, w: (x, y, w))
    model.fit(seen, verbose=0)
    noise = before - model.get_weights()[0]
    records = next(iter(batches))[0][:, 0].numpy()
    assert model.optimizer.steps_taken == 2, model.optimizer.charging.steps
    print(way, *noise.ravel()[:4], "|", *records[:6])
"""


def run(how, folder):
    return processes.Running(SCRIPT, how, folder)


def finish(process):
    output = process.finish().checked().stdout
    lines = [line for line in output.splitlines() if "|" in line]
    assert len(lines) == 3
    return [
        [tuple(float(v) for v in part.split()[-4:]) for part in line.split("|")] for line in lines
    ]


@pytest.fixture(scope="module")
def restored(tmp_path_factory):
    """(noise, records) of each way to restore, in the saving process and in two others."""
    folder = tmp_path_factory.mktemp("saved")
    found = finish(run("save", folder))
    others = [run("load", folder) for _ in range(2)]
    for process in others:
        found += finish(process)
    return folder, found


def test_processes_that_load_the_same_file_draw_different_noise(restored):
    _, found = restored
    noise = np.array([noise for noise, _ in found])
    assert len(noise) == 9
    assert len(np.unique(noise)) == noise.size


def test_a_resumed_run_draws_other_batches(restored):
    # Six of 64 records each, in order of the draw: equal by chance with probability below 1e-6.
    _, found = restored
    assert len({records for _, records in found}) == 9


def test_files_hold_no_state_of_the_noise(restored):
    folder, _ = restored
    secrets = (folder / "key.bin").read_bytes()
    files = [f for f in folder.rglob("*") if f.is_file() and f.name != "key.bin"]
    kinds = {f.suffix for f in files}
    assert {".keras", ".h5", ".pb"} <= kinds and len(files) >= 8
    for file in files:
        content = file.read_bytes()
        for word in (secrets[:8], secrets[8:16]):
            assert word not in content, file
        assert b"noise_key" not in content and b"noise_counter" not in content, file


def test_variables_of_a_model_do_not_hold_the_noise(small, tmp_path):
    model = small.model()
    model.fit(small.poisson(), verbose=0)
    names = [v.path for v in [*model.variables, *model.optimizer.variables]]
    assert not [n for n in names if "noise" in n]
    path = tf.train.Checkpoint(model=model).write(str(tmp_path / "all"))
    assert not [name for name, _ in tf.train.list_variables(path) if "noise" in name]


def test_continued_training_in_one_process_repeats_nothing(small, tmp_path):
    # The same weights restored twice: another key for every fit.
    def zero_loss(y_true, y_pred):
        return 0.0 * tf.reduce_sum(y_pred, axis=-1)

    model = small.model(loss=zero_loss)
    model.optimizer.build(model.trainable_variables)
    model.save_weights(tmp_path / "a.weights.h5")
    found = []
    for _ in range(3):
        model.load_weights(tmp_path / "a.weights.h5")
        before = model.get_weights()[0]
        model.fit(small.poisson(steps_per_epoch=1), verbose=0)
        found.append(before - model.get_weights()[0])
    assert len(np.unique(np.abs(found))) == np.size(found)


def test_unseeded_optimizers_differ_after_keras_seed(small):
    values = []
    for _ in range(2):
        keras.utils.set_random_seed(1)
        values.append(small.optimizer()._noise.normal((4,), 1.0).numpy())
    assert len(np.unique(values)) == 8


def test_every_fit_draws_from_entropy_of_its_own(small):
    # As in two copies of a running machine: equal states, from which training then goes on.
    models = [small.model(compile_kwargs={"run_eagerly": True}) for _ in range(2)]
    states = [model.optimizer._noise.variables for model in models]
    for mine, other in zip(*states, strict=True):
        other.assign(mine)
    data = (np.zeros((small.n, 3), "float32"), np.zeros(small.n, "int32"))
    changes = []
    for model in models:
        before = model.get_weights()[0]
        model.fit(small.poisson(data, steps_per_epoch=1), verbose=0)
        changes.append(model.get_weights()[0] - before)
    assert not np.any(changes[0] == changes[1])


@pytest.mark.parametrize("correlation", [
    None, tfdp.optimizers.BandedInverse(2), tfdp.optimizers.BandedMatrix(2),
])  # fmt: skip
def test_two_optimizers_draw_the_same_noise_only_from_one_seed(correlation):
    def keys(**seed):
        optimizer = tfdp.optimizers.DPOptimizer(
            keras.optimizers.SGD(1.0), noise_multiplier=1.0, num_examples=64,
            expected_batch_size=16, noise_correlation=correlation, **seed,
        )  # fmt: skip
        source = optimizer.noise_chain or optimizer._noise
        return [v.numpy().tolist() for v in source.variables[:2]]

    assert keys(seed=5) == keys(seed=5)
    drawn = [keys(), keys(), keys(seed=5), keys(seed=7)]
    for one, other in itertools.combinations(drawn, 2):
        assert one[0] != other[0] and one[1] != other[1]


ROOT = pathlib.Path(tfdp.__file__).parent
#: What holds a seed of its own: numbers that are no noise and choose no records.
SEEDED = {
    "training/checks/opened_gates.py",  # of weights that are zero, while a model is examined
    "distribution/self_check.py",  # draws of which the values are known
    "audit/chain_games.py",  # a trainer that is broken on purpose
}


def is_seeded(call):
    name = getattr(call.func, "attr", getattr(call.func, "id", ""))
    given = [*call.args, *(k.value for k in call.keywords)]
    draws = name.endswith("Source") or name in ("default_rng", "SeedSequence", "SeedGenerator")
    return draws and any(isinstance(one, ast.Constant) and one.value is not None for one in given)


def defaults_of(function):
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    named = zip(positional[::-1], arguments.defaults[::-1], strict=False)
    return [*named, *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]


def test_nothing_draws_from_a_seed_that_nobody_gave():
    found = set()
    for path in ROOT.rglob("*.py"):
        place = path.relative_to(ROOT).as_posix()
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and is_seeded(node):
                found.add(place)
            for argument, value in defaults_of(node) if isinstance(node, ast.FunctionDef) else ():
                given = isinstance(value, ast.Constant) and value.value is not None
                if argument.arg == "seed" and given and not place.startswith("data/datasets/"):
                    found.add(place)
    assert found == SEEDED
