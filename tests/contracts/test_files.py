"""Files say what was charged and what is public, and no more: bytes are compared.

Two worlds differ in one record, or in which run of how many was the best. Where the numbers that
they release are made the same, so is every byte that is written: names, order, sizes, counters and
dates too. Random names are fresh, and stand for themselves.
"""

import ast
import dataclasses
import pathlib
import secrets
import zipfile

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.saving import saving_lib
from tensorflow.core.protobuf import fingerprint_pb2
from tensorflow.core.util import event_pb2

import tfdp
from tfdp._compat.process_state import count_names_from
from tfdp._compat.undated import savez
from tfdp.accounting.charges.history import ChargeHistory
from tfdp.accounting.reports.model_card import to_html
from tfdp.accounting.reports.statement_pages import to_markdown
from tfdp.tuning import NumberOfRuns, alike_runs, tune

ROOT = pathlib.Path(tfdp.__file__).parent
DOCS = ROOT.parent / "docs"
N = 40
M = 60


@pytest.fixture
def names(monkeypatch):
    """The random names that were given out: fresh ones, of which every file may tell."""
    given, fresh, start = [], secrets.token_hex, ChargeHistory.start

    def token_hex(size):
        given.append(fresh(size))
        return given[-1]

    def named(self, mechanism, name=None):
        given.append(start(self, mechanism, name))
        return given[-1]

    monkeypatch.setattr(secrets, "token_hex", token_hex)
    monkeypatch.setattr(ChargeHistory, "start", named)
    return given


def contents(folder, names):
    """What lies in a folder: bytes by name, with one name for every random one."""
    found = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        name = str(path.relative_to(folder))
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                for member in archive.infolist():
                    found[f"{name}/{member.filename} {member.date_time}"] = archive.read(member)
        elif "tfevents" in name:  # named by host, process and time, as all of TensorBoard's
            found[str(path.parent.relative_to(folder))] = points_of(path)
        elif path.suffix == ".index":  # which holds check sums of the random names, too
            reader = tf.train.load_checkpoint(str(path.with_suffix("")))
            for key in sorted(reader.get_variable_to_shape_map()):
                found[f"{name}/{key}"] = bytes(np.asarray(reader.get_tensor(key)))
        elif path.name == "fingerprint.pb":
            prints = fingerprint_pb2.FingerprintDef.FromString(path.read_bytes())
            prints.uuid = ""  # random
            found[name] = prints.SerializeToString()
        else:
            found[name] = path.read_bytes()
    for name in names:
        for file, data in found.items():
            for code in ("utf-8", "utf-32-le"):  # the second in arrays of NumPy
                data = data.replace(name.encode(code), ("*" * len(name)).encode(code))
            found[file] = data
    return found


def points_of(path):
    """What an event file says of a training, but for the time of each point."""
    lines = []
    for record in tf.data.TFRecordDataset([str(path)]).as_numpy_iterator():
        event = event_pb2.Event.FromString(record)
        lines += [f"{event.step} {value}" for value in event.summary.value]
    return "\n".join(lines).encode()


def differing(one, other):
    """Names of files that are not the same in both."""
    assert one and list(one) == list(other)
    return [name for name in one if one[name] != other[name]]


def write_everything(model, folder):
    """Every kind of file that a trained model is written to."""
    folder.mkdir(exist_ok=True)
    model.save(folder / "model.keras")
    model.save_weights(folder / "model.weights.h5")
    tfdp.serving.export(model, folder / "exported")
    statement = model.privacy_statement(1e-6)
    for name, text in (("txt", str), ("html", to_html), ("md", to_markdown)):
        (folder / f"statement.{name}").write_text(text(statement))


def other_work(times):
    """What moves TensorFlow's counter, by an amount that a world has for itself."""
    for _ in range(times):
        tf.constant(1.0) + 1.0


def network(rate=0.0):
    frozen = keras.layers.Dense(4, activation="relu")
    model = tfdp.make_private(
        keras.Sequential(
            [keras.Input((3,)), frozen, keras.layers.Dropout(0.5), keras.layers.Dense(2)]
        )
    )
    frozen.trainable = False
    model.compile(
        tfdp.optimizers.DPOptimizer(
            keras.optimizers.SGD(rate), noise_multiplier=1.0, num_examples=N,
            expected_batch_size=10, seed=1,
        ),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        run_eagerly=True,  # a trace takes longer than these steps
    )  # fmt: skip
    return model


def trained_world(record, work, folder):
    """A training on records of which one is given; its steps move nothing."""
    count_names_from({})
    keras.utils.set_random_seed(0)
    x = np.random.default_rng(0).normal(size=(N, 3)).astype(np.float32)
    x[14] = record  # drawn in five of the six steps
    other_work(work)
    model = network()
    curve = tfdp.callbacks.PrivacyCurve(log_dir=folder / "logs")
    data = (x, (x[:, 0] > 0).astype(np.int32))
    batches = tfdp.data.poisson_batches(data, 10, seed=1, steps_per_epoch=2)
    model.fit(batches, epochs=2, verbose=0, callbacks=[curve])
    curve.plot(folder / "curve.png")
    write_everything(model, folder)
    model.export(folder / "by_keras", verbose=False)
    tf.train.Checkpoint(model=model).write(str(folder / "checkpoint"))
    backup = tfdp.distribution.BackupAndRestore(folder / "backup", delete_checkpoint=False)
    model.fit(batches, epochs=1, verbose=0, callbacks=[backup])


def test_files_of_a_training_do_not_tell_one_record(tmp_path, names):
    found = []
    for record, work in ((0.0, 0), (1e6, 500)):
        folder = tmp_path / str(work)
        trained_world(record, work, folder)
        found.append(contents(folder, names))
    assert len(found[0]) > 15 and not differing(*found)


def released_world(member):
    """As many pairs as fill a block of the noise; one person has one more, or nothing."""
    pairs, k = 2_048, np.arange(2_048)
    history = np.zeros((pairs + 1, 2), np.int64)
    history[:pairs, 0], history[:pairs, 1] = 1 + k // M, 1 + k % M
    if member:
        history[pairs] = M, M
    train = (history[:, :1], history[:, 1:])
    return tfdp.data.private_transitions(train, epsilon=0.1, delta=1e-6, num_items=M)


def with_numbers(release, numbers):
    """A release that drew the same numbers as another."""
    parts = {name: getattr(numbers, name) for name in ("indices", "values", "popularity")}
    details = {**numbers.details, "release": release.details["release"]}
    return dataclasses.replace(release, **parts, details=details)


def test_files_of_a_release_of_transitions_do_not_tell_one_person(tmp_path, names):
    numbers, found = None, []
    for member in (True, False):
        count_names_from({})
        release = released_world(member)
        numbers = release if numbers is None else numbers
        model = tfdp.models.TransitionRecommender(with_numbers(release, numbers), exclude_seen=True)
        write_everything(model, tmp_path / str(member))
        found.append(contents(tmp_path / str(member), names))
    assert not differing(*found)


@pytest.mark.thorough
def test_a_file_of_released_representations_does_not_tell_one_record(tmp_path, names):
    found, numbers = [], None
    for record in (0.0, 1e6):
        x = np.ones((N, 3), np.float32)
        x[-1] = record
        release = tfdp.data.release_mixtures(
            x, np.arange(N) % 2, 2, 1.0, 5, 4, noise_multiplier=2.0
        )
        numbers = numbers or (release.features, release.targets)
        same = dataclasses.replace(release, features=numbers[0], targets=numbers[1])
        same.save(tmp_path / f"{record}" / "release.npz")
        found.append(contents(tmp_path / f"{record}", names))
    assert not differing(*found)


def tuned_world(best, number, folder, monkeypatch):
    """A tuning whose best run is one of so many; all of them have the same randomness."""
    count_names_from({})
    monkeypatch.setattr(NumberOfRuns, "draw", lambda self: number)
    monkeypatch.setattr(alike_runs, "seed_from_entropy", lambda: keras.utils.set_random_seed(0))
    x = np.random.default_rng(0).normal(size=(N, 3)).astype(np.float32)
    runs = []

    def train(hp):
        model = network(hp.Choice("learning_rate", [0.1]))
        data = (x, (x[:, 0] > 0).astype(np.int32))
        batches = tfdp.data.poisson_batches(data, 10, steps_per_epoch=1, seed=1)
        model.fit(batches, verbose=0)
        runs.append(model)
        return model

    result = tune(train, lambda model: float(len(runs) == best), number_of_runs=3)
    assert len(runs) == number and result.model is runs[best - 1]
    write_everything(result.model, folder)


def test_files_of_a_tuning_do_not_tell_which_run_was_the_best_and_how_many_there_were(
    tmp_path, names, monkeypatch
):
    found = []
    for best, number in ((2, 2), (1, 1)):
        folder = tmp_path / f"{best} of {number}"
        tuned_world(best, number, folder, monkeypatch)
        found.append(contents(folder, names))
    assert not differing(*found)


def test_no_archive_says_when_it_was_written(tmp_path):
    keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]).save(tmp_path / "m.keras")
    with zipfile.ZipFile(tmp_path / "m.keras") as archive:
        assert {member.date_time for member in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        assert b"date" not in archive.read("metadata.json")
    loaded = keras.saving.load_model(tmp_path / "m.keras")
    assert loaded(np.ones((1, 3))).shape == (1, 2)


def test_what_keras_checks_of_archives_it_checks_of_those_that_others_opened(tmp_path):
    """Keras looks for decompression bombs in what `isinstance` says is a ZIP file."""
    with zipfile.ZipFile(tmp_path / "any.zip", "w") as archive:
        assert isinstance(archive, saving_lib.zipfile.ZipFile)
    assert not isinstance(tmp_path, saving_lib.zipfile.ZipFile)


def test_no_array_is_written_as_a_pickle_which_runs_code_when_it_is_read(tmp_path):
    with pytest.raises(ValueError, match="[Oo]bject arrays cannot be saved"):
        savez(tmp_path / "any.npz", names=np.array([{}], object))


#: What writes files, and why no file tells too much: a test of this page; or the page of docs that
#: says that the file is as secret as the data; or what is public about it.
TRAINING = "test_files_of_a_training_do_not_tell_one_record"
TRANSITIONS = "test_files_of_a_release_of_transitions_do_not_tell_one_person"
TUNING = "test_files_of_a_tuning_do_not_tell_which_run_was_the_best_and_how_many_there_were"
REPRESENTATIONS = "test_a_file_of_released_representations_does_not_tell_one_record"
SECRET = "threat_model.md"
DRAWS = "tests/beam/test_draws.py::test_files_of_a_draw_differ_where_the_record_was_drawn"
WRITERS = {
    "_compat/backups.py WholeBackups._save_model": TRAINING,
    "_compat/keras.py check_legacy_saving.save_model_to_hdf5": "refuses what was charged",
    "_compat/undated.py savez": REPRESENTATIONS,
    "accounting/reports/budget_table.py plot": "settings alone",
    "accounting/reports/curves.py plot": TRAINING,
    "accounting/planner.py plot": "settings alone",
    "audit/chain_games.py _Save.on_train_batch_end": "games on records that the audit makes",
    "audit/result.py plot": "games on records that the audit makes",
    "beam/draws.py _Write.process": DRAWS,
    "beam/sums.py _write": SECRET,
    "callbacks.py PrivacyCurve.on_train_begin": TRAINING,
    "commands/audit.py _run": "games on records that the audit makes",
    "commands/train.py _run": "a public catalogue, or one that the statement lists",
    "data/samplers/drawn_batches.py Manifest.write": DRAWS,
    "data/samplers/drawn_batches.py mark_as_trained": "the random name of the draw",
    "data/sampling/periods.py DisjointPeriods._locked": "nothing",
    "data/sampling/periods.py DisjointPeriods._save": SECRET,
    "data/releases/representation_release.py Release.save": REPRESENTATIONS,
    "data/releases/representations.py release_mixtures": REPRESENTATIONS,
    "data/releases/representations.py released_once": REPRESENTATIONS,
    "layers/sparse_embedding.py SparseEmbedding.save_own_variables": "weights, or none",
    "optimizers/dp_optimizer.py DPOptimizer.save_own_variables": TRAINING,
    "optimizers/run_charging.py HistoryState.serialize": TRAINING,
    "serving/export.py _write": TRANSITIONS,
    "serving/export.py export": TUNING,
    "training/charged_model.py ChargedModel.save_own_variables": TRAINING,
    "training/weights/keras_files.py install.save_own_variables": TRAINING,
    "training/make_private.py PrivateModel.export": TRAINING,
}
_WRITE = {
    "_save_model", "create_dataset", "create_file_writer", "dump", "export", "save", "savefig",
    "savez", "savez_compressed", "tofile", "TFRecordWriter", "write_bytes", "write_out",
    "write_text",
}  # fmt: skip


def writes(call):
    """Whether a call writes a file, by its name, or by a mode of `open`."""
    name = getattr(call.func, "attr", getattr(call.func, "id", ""))
    texts = [a.value for a in call.args if isinstance(a, ast.Constant)]
    texts += [k.value.value for k in call.keywords if isinstance(k.value, ast.Constant)]
    modes = [text for text in texts if isinstance(text, str) and set(text) <= set("rwxab+t")]
    opens = name in ("open", "GFile") and any(set(mode) & set("wxa+") for mode in modes)
    return name in _WRITE or opens


def writers():
    """Functions of the library that write files."""

    def visit(node, where):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Call) and writes(child):
                yield where
            is_named = isinstance(child, (ast.FunctionDef, ast.ClassDef))
            inside = f"{where}.{child.name}" if is_named else where
            if is_named and child.name in ("save_own_variables", "serialize"):
                yield inside  # called by Keras and TensorFlow
            yield from visit(child, inside)

    for path in sorted(ROOT.rglob("*.py")):
        for where in visit(ast.parse(path.read_text()), ""):
            yield f"{path.relative_to(ROOT)} {where[1:]}"


def test_every_function_that_writes_a_file_is_known_here():
    assert set(writers()) == set(WRITERS)
    for name in WRITERS.values():
        path, _, elsewhere = name.partition("::")
        if elsewhere:  # what this environment cannot run
            assert f"def {elsewhere}(" in (ROOT.parent / path).read_text()
        elif name.startswith("test_"):
            assert name in globals()


def test_pages_say_which_files_are_as_secret_as_the_data():
    page = " ".join((DOCS / SECRET).read_text().split())
    for file in ("drawn ahead of training", "`DisjointPeriods`", "temporary folder"):
        assert file in page
