"""Draws by Apache Beam, on the direct runner; needs the extra [beam]."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import dp_accounting
import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tfdp.accounting import LedgerEntry
from tfdp.data.provenance.dataset_tags import assumptions_of, releases_of
from tfdp.data.provenance.origins import Origin, OriginArray

beam = pytest.importorskip("apache_beam")

N, STEPS = 300, 8
SIGNATURE = (tf.TensorSpec((), tf.int32), tf.TensorSpec((2,), tf.float32))
SOURCE = [(np.int32(i + 1), np.full(2, i + 1, np.float32)) for i in range(N)]


def parse(record):
    return record


def draw(directory, records=None, **changes):
    given = {
        "num_examples": N, "expected_batch_size": 60, "steps": STEPS, "parse": parse,
        "signature": SIGNATURE, "steps_per_file": 3,
    }  # fmt: skip
    from tfdp.beam import Indexed, draw_batches

    return draw_batches(Indexed(SOURCE) if records is None else records, directory,
                        **{**given, **changes})  # fmt: skip


def members(directory):
    """(STEPS, N) whether each record is in each batch; whatever else is in it is padding."""
    rows = []
    for x, y, weight in tfdp.data.load_batches(directory).as_numpy_iterator():
        np.testing.assert_array_equal(y, np.stack([x, x], 1))
        np.testing.assert_array_equal(weight, x > 0)
        counts = np.bincount(x, minlength=N + 1)[1:]
        assert counts.max() <= 1
        rows.append(counts)
    return np.stack(rows)


def test_every_record_is_in_the_steps_that_its_key_says(tmp_path, monkeypatch):
    secret = b"0" * 32
    monkeypatch.setattr("secrets.token_bytes", lambda size: secret)
    directory = draw(tmp_path / "one")
    found = members(directory)
    membership = tfdp.data.sampling.keyed_membership.Membership(secret, 60 / N, STEPS)
    expected = np.zeros((STEPS, N), int)
    for i in range(N):
        expected[[step for step, _ in membership.of(i)], i] = 1
    np.testing.assert_array_equal(found, expected)
    # The same secret gives the same bytes, in whatever order the runner worked.
    again = draw(tmp_path / "two")
    for one, two in zip(*(sorted(pathlib.Path(d).glob("*/*.tfrecord")) for d in (directory, again)),
                        strict=True):  # fmt: skip
        assert one.read_bytes() == two.read_bytes()
    for path in pathlib.Path(directory).rglob("*"):
        assert path.is_dir() or secret not in path.read_bytes()


def test_files_of_a_draw_differ_where_the_record_was_drawn(tmp_path, monkeypatch):
    """Where the same secret and name are drawn: files are as secret as the data, and no more so;
    the manifest, and which files there are, tell nothing at all."""
    from tfdp.beam import Indexed

    secret, i = b"2" * 32, 23
    monkeypatch.setattr("secrets.token_bytes", lambda size: secret)
    monkeypatch.setattr("secrets.token_hex", lambda size: "3" * size)
    blank = (np.int32(0), np.zeros(2, np.float32))
    found = []
    for name, source in (("one", SOURCE), ("other", [*SOURCE[:i], blank, *SOURCE[i + 1 :]])):
        draw(tmp_path / name, Indexed(source))
        files = sorted(p for p in (tmp_path / name).rglob("*") if p.is_file())
        found.append({str(p.relative_to(tmp_path / name)): p.read_bytes() for p in files})
    one, other = found
    assert list(one) == list(other) and "manifest.json" in one and len(one) == 4
    steps = [
        step
        for step, _ in tfdp.data.sampling.keyed_membership.Membership(secret, 60 / N, STEPS).of(i)
    ]
    drawn = {f"{step // 3:05d}" for step in steps}
    assert {name.split("/")[1][:5] for name in one if one[name] != other[name]} == drawn != set()
    assert len(drawn) < 3  # a file without the record is the same


def test_records_are_what_parse_returns_of_them():
    from tfdp.beam.draws import _Draw
    from tfdp.beam.rows import decoded_row, encoded_row

    specs = (tf.TensorSpec((), tf.string), tf.TensorSpec((2,), tf.float32))
    whole = (*specs, tf.TensorSpec((), tf.float32))
    draw = _Draw(None, 1, lambda text: (text, np.array([1.5, -2.0], ">f4")), whole, 1, Origin())
    draw.setup()
    for text in (b"abc\0\0", b"\0", "x\0"):
        found = decoded_row(encoded_row(draw._parsed(text)), whole)
        assert found[0].item() == (text.encode() if isinstance(text, str) else text)
        np.testing.assert_array_equal(found[1], [1.5, -2.0])
        assert found[2] == 1.0


def test_numbers_of_numpy_are_kept_in_the_manifest(tmp_path):
    persons = beam.Create([(i % 100, one) for i, one in enumerate(SOURCE)])
    numbers = {"num_examples": 100, "expected_batch_size": 20, "max_records_per_unit": 3}
    numbers |= {"steps": STEPS, "max_batch_size": 90, "steps_per_file": 3}
    draw(tmp_path / "one", persons, **{name: np.int64(n) for name, n in numbers.items()})
    sampling = tfdp.data.sampling_of(tfdp.data.load_batches(tmp_path / "one"))
    assert (sampling.num_examples, sampling.max_records_per_unit) == (100, 3)


def test_what_records_were_made_with_is_charged_or_refused(tmp_path):
    from tfdp.beam import Indexed, Log, private_frequency

    entry = LedgerEntry("before", dp_accounting.GaussianDpEvent(2.0), 1, {"release": "r"})
    origin = Origin((entry,), ("made before",))
    charged = [(x, OriginArray.of(y, origin)) for x, y in SOURCE]
    for name, given in (("whole", {}), ("parsed", {"parse": lambda i: charged[i]})):
        source = Indexed(charged if name == "whole" else list(range(N)))
        batches = tfdp.data.load_batches(draw(tmp_path / name, source, **given))
        assert releases_of(batches) == (entry,)
        assert "made before" in assumptions_of(batches)
    assert releases_of(tfdp.data.load_batches(draw(tmp_path / "plain"))) == ()
    with pytest.raises(Exception, match="must be given as `Indexed"):
        draw(tmp_path / "keyed", beam.Create(list(enumerate(charged))))
    ids = OriginArray.of(np.array([1, 2]), origin)
    log = Log(lambda: beam.Create([("ann", ids)]), tmp_path / "scratch")
    with pytest.raises(Exception, match="must not be made with a release"):
        private_frequency(log, 1.0, 1e-6, num_items=3, length=2)


def test_sources_by_labels_are_refused():
    from tfdp.beam import Indexed

    with pytest.raises(ValueError, match="`source` must return record i as item i"):
        Indexed({0: 1})


def test_draws_differ_and_are_cut_at_the_capacity(tmp_path):
    first = members(draw(tmp_path / "first", max_batch_size=60))
    second = members(draw(tmp_path / "second", max_batch_size=60))
    assert (first != second).any()
    assert max(first.sum(1).max(), second.sum(1).max()) == 60
    sampling = tfdp.data.sampling_of(tfdp.data.load_batches(tmp_path / "first"))
    assert 0.3 < sampling.overflow_probability < 0.6


def test_records_of_a_pipeline_need_keys_of_their_own_and_their_true_number(tmp_path):
    pairs = [(f"user {i}", SOURCE[i]) for i in range(N)]
    found = members(draw(tmp_path / "keyed", beam.Create(pairs)))
    assert found.sum() > 0
    with pytest.raises(Exception, match="must give every record a unique key"):
        draw(tmp_path / "twice", beam.Create([*pairs[:-1], pairs[0]]))
    with pytest.raises(Exception, match="must be the number of records, which is 300"):
        draw(tmp_path / "other n", beam.Create(pairs), num_examples=N + 1)
    with pytest.raises(ValueError, match="must be the number of records, 300"):
        draw(tmp_path / "other n", num_examples=N + 1)
    for name in ("twice", "other n"):
        with pytest.raises(ValueError, match="must contain a finished draw"):
            tfdp.data.load_batches(tmp_path / name)


def test_a_run_that_failed_leaves_no_draw_and_the_next_one_a_whole_one(tmp_path):
    def fails(record):
        if record[0] == N - 5:
            raise OSError("the disk is gone")
        return record

    with pytest.raises(Exception, match="the disk is gone"):
        draw(tmp_path, parse=fails, expected_batch_size=N, steps=2)
    with pytest.raises(ValueError, match="must contain a finished draw"):
        tfdp.data.load_batches(tmp_path)
    draw(tmp_path)
    assert members(tmp_path).shape == (STEPS, N)
    with pytest.raises(ValueError, match="must not contain a draw"):
        draw(tmp_path)


def test_strings_are_padded_with_empty_ones_and_tell_no_size(tmp_path):
    draw(
        tmp_path, parse=lambda r: (b"x" * int(r[0]), r[1]),
        signature=(tf.TensorSpec((), tf.string), SIGNATURE[1]),
    )  # fmt: skip
    for x, y, weight in tfdp.data.load_batches(tmp_path).as_numpy_iterator():
        np.testing.assert_array_equal([len(one) for one in x], y[:, 0])
        np.testing.assert_array_equal(weight, y[:, 0] > 0)
    assert all(
        size is None for _, size in tfdp.data.samplers.drawn_batches.Manifest.read(tmp_path).files
    )


def test_records_that_are_not_as_the_signature_says_are_refused(tmp_path):
    with pytest.raises(Exception, match="must return arrays as described by `signature`"):
        draw(tmp_path, parse=lambda r: (r[0], r[1][:1]))
    with pytest.raises(ValueError, match="Argument `signature` must hold tf.TensorSpec of known"):
        draw(tmp_path, signature=(tf.TensorSpec((None,), tf.int32), SIGNATURE[1]))
    with pytest.raises(ValueError, match="Argument `signature` must be a tuple"):
        draw(tmp_path, signature=SIGNATURE[0])


PERSONS, MOST = 60, 3
OWN = [[i + 1 for i in range(N) if i % 83 % PERSONS == p] for p in range(PERSONS)]


def test_persons_are_drawn_with_at_most_so_many_of_their_records(tmp_path, monkeypatch):
    secret = b"1" * 32
    monkeypatch.setattr("secrets.token_bytes", lambda size: secret)
    keyed = [(f"person {p}", SOURCE[i - 1]) for p, own in enumerate(OWN) for i in own]
    given = {"num_examples": PERSONS, "expected_batch_size": 20, "max_records_per_unit": MOST}
    draw(tmp_path / "one", beam.Create(keyed), **given)
    draw(tmp_path / "two", beam.Create(keyed[::-1]), **given)
    for path in (tmp_path / "one").glob("*/*.tfrecord"):  # in whatever order they were read
        (other,) = (tmp_path / "two").glob(f"*/{path.name}")
        assert path.read_bytes() == other.read_bytes()
    sampling = tfdp.data.sampling_of(tfdp.data.load_batches(tmp_path / "one"))
    assert (sampling.num_examples, sampling.max_records_per_unit) == (PERSONS, MOST)
    membership = tfdp.data.sampling.keyed_membership.Membership(secret, 20 / PERSONS, STEPS)
    taken = {}
    batches = tfdp.data.load_batches(tmp_path / "one").as_numpy_iterator()
    for step, (x, y, weight) in enumerate(batches):
        np.testing.assert_array_equal(y, np.stack([x, x], 1))
        np.testing.assert_array_equal(weight, x > 0)
        rows = x.reshape(-1, MOST)
        drawn = {next(p for p in range(PERSONS) if row[0] in OWN[p]): row for row in rows if row[0]}
        keys = (f"person {p}" for p in range(PERSONS))
        steps = [dict(membership.of(b"s" + key.encode())) for key in keys]
        assert set(drawn) == {p for p in range(PERSONS) if step in steps[p]}
        for p, row in drawn.items():
            own = row[row > 0]
            assert set(own) <= set(OWN[p]) and len(set(own)) == len(own) == min(MOST, len(OWN[p]))
            taken.setdefault(p, []).append(frozenset(own))
    many = [p for p in taken if len(OWN[p]) > MOST and len(taken[p]) > 2]
    assert many and any(len(set(taken[p])) > 1 for p in many)  # drawn anew for each step


class InWindows(beam.PTransform):
    """A source that puts every record into a window of its own, as logs by the hour do."""

    def __init__(self, records):
        super().__init__()
        self._records = records

    def expand(self, begin):
        stamped = [
            beam.window.TimestampedValue(one, 100 * i) for i, one in enumerate(self._records)
        ]
        windows = beam.WindowInto(beam.window.FixedWindows(60))
        return begin | beam.Create(stamped) | beam.Map(lambda one: one) | windows


def test_a_person_is_one_in_all_windows(tmp_path, monkeypatch):
    monkeypatch.setattr("secrets.token_bytes", lambda size: b"1" * 32)
    keyed = [(f"person {p}", SOURCE[i - 1]) for p, own in enumerate(OWN) for i in own]
    given = {"num_examples": PERSONS, "expected_batch_size": 20, "max_records_per_unit": MOST}
    draw(tmp_path / "one", beam.Create(keyed), **given)
    draw(tmp_path / "two", InWindows(keyed), **given)
    for path in (tmp_path / "one").glob("*/*.tfrecord"):
        (other,) = (tmp_path / "two").glob(f"*/{path.name}")
        assert path.read_bytes() == other.read_bytes()


def test_a_model_trains_on_persons_drawn_ahead(tmp_path):
    import keras

    keyed = [(p, SOURCE[i - 1]) for p, own in enumerate(OWN) for i in own]
    draw(tmp_path, beam.Create(keyed), num_examples=PERSONS, expected_batch_size=20,
         max_records_per_unit=MOST, parse=lambda r: (r[1] / N, r[1][0]),
         signature=(tf.TensorSpec((2,), tf.float32), tf.TensorSpec((), tf.float32)))  # fmt: skip
    model = tfdp.make_private(keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]))
    model.compile(
        tfdp.optimizers.DPOptimizer(
            keras.optimizers.SGD(0.1), noise_multiplier=1.0, num_examples=PERSONS,
            expected_batch_size=20, max_records_per_unit=MOST,
        ), loss="mse",
    )  # fmt: skip
    model.fit(tfdp.data.load_batches(tmp_path), verbose=0)
    statement = model.privacy_statement(delta=0.01)
    assert statement.steps == STEPS and statement.unit == tfdp.accounting.charges.sampling.PERSON


def test_persons_need_keys_of_persons_and_their_true_number(tmp_path):
    keyed = [(p, SOURCE[i - 1]) for p, own in enumerate(OWN) for i in own]
    with pytest.raises(Exception, match="must be the number of persons, which is 60"):
        draw(tmp_path, beam.Create(keyed), max_records_per_unit=2)
    with pytest.raises(ValueError, match="must be pairs .person, record."):
        draw(tmp_path, max_records_per_unit=2)


KILLED = """
import sys, time
sys.path.insert(0, {here!r})
import test_draws
def slow(record):
    time.sleep({seconds})
    return record
test_draws.draw({directory!r}, parse=slow, steps=400, expected_batch_size=3, steps_per_file=1)
"""


@pytest.mark.evidence
def test_a_killed_run_leaves_no_draw_and_the_next_one_a_whole_one(tmp_path):
    here, known = str(pathlib.Path(__file__).parent), set()
    # While records are drawn, and while files are written.
    for pattern, seconds in (("steps-*", 0.1), ("steps-*/*.tfrecord", 0.0)):
        code = KILLED.format(here=here, directory=str(tmp_path), seconds=seconds)
        child = subprocess.Popen([sys.executable, "-c", code])
        while set(tmp_path.glob(pattern)) <= known:
            time.sleep(0.001)
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        known = set(tmp_path.glob("steps-*"))
        assert len(list(tmp_path.glob("steps-*/*.tfrecord"))) < 400
        with pytest.raises(ValueError, match="must contain a finished draw"):
            tfdp.data.load_batches(tmp_path)
    draw(tmp_path)
    assert members(tmp_path).shape == (STEPS, N)
