"""Batches from random-access sources: the records that were drawn, and no others, are read."""

import collections
import itertools
import mmap
import os
import threading
import time
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tfdp.data.sampling import batches as cutting
from tfdp.data.sources import memmap_rows, outside_memory
from tfdp.data.sources.memmap_rows import MappedRows
from tfdp.data.sources.outside_memory import SourceRecords
from tfdp.errors import PrivacyError

N = 50


class Source:
    """Records that know when they are read."""

    def __init__(self, size=N):
        self.size, self.read, self.readers, self.together = size, [], 0, 0

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        assert isinstance(index, int)
        self.readers += 1
        self.together = max(self.together, self.readers)
        self.read.append(index)
        time.sleep(1e-5)
        self.readers -= 1
        return index


class ManyAtOnce(Source):
    def __getitem__(self, index):
        raise AssertionError("asked for one")

    def __getitems__(self, indices):
        assert isinstance(indices, list) and indices == sorted(set(indices))
        self.read += indices
        return [i for i in indices]


def parse(i):
    x = {"a": np.full(3, i, np.float32), "b": [np.int64(i), np.asarray(b"%d" % i)]}
    return x, np.int32(i % 3)


def arrays():
    i = np.arange(N)
    x = {
        "a": np.repeat(i[:, None], 3, 1).astype(np.float32),
        "b": (i, i.astype("S").astype(object)),
    }
    return x, (i % 3).astype(np.int32)


@pytest.mark.thorough
@pytest.mark.parametrize("make", [Source, ManyAtOnce])
def test_batches_are_those_of_the_same_arrays(make):
    kwargs = {"steps_per_epoch": 4, "seed": 3}
    source = make()
    found = tfdp.data.poisson_batches(source, 10, parse=parse, **kwargs)
    wanted = tfdp.data.poisson_batches(arrays(), 10, **kwargs)
    assert found.element_spec == wanted.element_spec
    assert tfdp.data.sampling_of(found) == tfdp.data.sampling_of(wanted)
    source.read.clear()
    drawn = []
    for one, other in zip(found, wanted, strict=True):
        for a, b in zip(tf.nest.flatten(one), tf.nest.flatten(other), strict=True):
            np.testing.assert_array_equal(a, b)
        drawn += other[0]["b"][0].numpy()[other[2].numpy() == 1].tolist()
    assert set(source.read) == set(drawn) and len(source.read) <= len(drawn)


@pytest.mark.parametrize("weight", [0.5, np.arange(4)])
def test_records_bring_weights_of_their_own(weight):
    records = SourceRecords(Source(), lambda i: (i, i, weight))
    _, y, found = records.batch(np.array([7, 2]), 3)
    np.testing.assert_array_equal(y, [7, 2, 0])
    np.testing.assert_array_equal(found, np.float32([weight, weight, np.zeros_like(weight)]))
    assert found.dtype == np.float32


def test_persons_and_memory_maps(tmp_path):
    rows = np.memmap(tmp_path / "rows", np.float32, "w+", shape=(N, 4))
    rows[:] = np.arange(N)[:, None]
    ids = np.arange(N) // 5
    batches = tfdp.data.poisson_batches(
        rows, 4, 10, 5, parse=lambda row: (row[:3], row[3]), privacy_ids=ids, max_records_per_unit=2
    )
    for x, y, weight in batches.as_numpy_iterator():
        there = weight.reshape(10, 2).astype(bool)
        owners = (y // 5).reshape(10, 2)
        assert np.all(x == np.where(weight > 0, y, 0)[:, None])
        for own, present in zip(owners, there, strict=True):
            assert len(set(own[present])) <= 1
    assert tfdp.data.shuffled_epochs(rows, 10, parse=lambda r: (r[:3], r[3])).cardinality() == 5


@pytest.mark.parametrize("mode", ["r", "r+", "c"])
def test_rows_of_a_map_and_of_its_parts_are_those_of_the_file(tmp_path, mode):
    wanted = np.arange(7 + 60, dtype=np.float32)
    wanted.tofile(tmp_path / "rows")
    whole = np.memmap(tmp_path / "rows", np.float32, mode, offset=28)
    rows = whole.reshape(20, 3)
    copied = mode == "c"
    for part in (rows, rows[3:], rows[4:15:2], rows[:, 1:], rows[2:].reshape(9, 2, 3), whole[5:]):
        source = MappedRows.of(part)
        assert isinstance(source, MappedRows) != copied and len(source) == len(part)
        for i in (0, len(part) - 1):
            np.testing.assert_array_equal(source[i], part[i])
            assert np.asarray(source[i]).dtype == part.dtype
    if mode == "r+":
        rows[2] = 99.0
        np.testing.assert_array_equal(MappedRows.of(rows)[2], rows[2])
    for other in (np.asarray(rows), rows[::-1], rows.T, rows[[1, 2]], [1, 2]):
        assert MappedRows.of(other) is other
    (wanted + 1).tofile(tmp_path / "others")
    (tmp_path / "others").replace(tmp_path / "rows")  # the map still has the file that was there
    assert MappedRows.of(rows) is rows


def _mapped(tmp_path):
    rows = np.arange(N * 3, dtype=np.float32).reshape(N, 3)
    rows.tofile(tmp_path / "rows")
    return rows, np.memmap(tmp_path / "rows", np.float32, "r").reshape(N, 3)


def test_a_file_that_became_shorter_than_its_map_is_refused(tmp_path):
    rows, mapped = _mapped(tmp_path)
    source = MappedRows.of(mapped)
    os.truncate(tmp_path / "rows", 5 * 12)  # of N rows of 12 bytes; the map itself is not touched
    np.testing.assert_array_equal(source[4], rows[4])
    for wanted in ([4, 5], [5]):
        with pytest.raises(ValueError, match="must not become shorter"):
            source.__getitems__(wanted)


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("on_disk", [True, False])
def test_rows_of_a_disk_are_asked_for_ahead(tmp_path, monkeypatch, on_disk, large):
    rows, mapped = _mapped(tmp_path)
    # The cache may keep three rows of a map that would fill half of the memory, and a page of each.
    monkeypatch.setattr(memmap_rows, "_memory", lambda: 2 * rows.nbytes - large)
    monkeypatch.setattr(memmap_rows, "_KEPT", 3 * (12 + mmap.PAGESIZE) / (2 * rows.nbytes - 1))
    records = SourceRecords(mapped, lambda row: (row, row[0]))  # one
    happened = []
    # Two rows in a time in which a disk gives them, or in one a little shorter.
    times, length = itertools.count(), 1e-3 if on_disk else 0.9e-3
    clock = types.SimpleNamespace(monotonic=lambda: next(times) * length)
    monkeypatch.setattr(memmap_rows, "time", clock)
    monkeypatch.setattr(memmap_rows, "_FAR", 12 * 4)
    advice = {"RANDOM": 1, "WILLNEED": 3, "DONTNEED": 4}
    for name, number in advice.items():
        monkeypatch.setattr(os, f"POSIX_FADV_{name}", number, raising=False)
    monkeypatch.setattr(os, "posix_fadvise", lambda *a: happened.append(a[1:]), raising=False)
    pread = os.pread

    def read(file, size, start):
        happened.append(start // 12)
        return pread(file, size, start)

    monkeypatch.setattr(os, "pread", read)
    draws = [np.array(draw, int) for draw in ([4, 9], [1], [], [40, 2], [7], [0, 49])]
    found = []
    for x, _, weight in cutting._windows(records, ((d, np.arange(len(d))) for d in draws), 3, 2):
        happened.append("handed over")
        found += [one[there == 1] for one, there in zip(x, weight, strict=True)]
    for one, draw in zip(found, draws, strict=True):
        np.testing.assert_array_equal(one, rows[draw])
    asked = lambda *rows: [(12 * i, 12, 3) for i in rows] * on_disk  # noqa: E731
    dropped = [(0, 12 * N, 4)] * large
    assert happened == [
        *(4, 9, *asked(1), "handed over"),  # three
        *(1, *dropped, *asked(2, 7, 40), "handed over"),  # none
        # From 2 to 40 there are more than 4 rows for each of the three; it is said once.
        *((0, 0, 1), 2, 7, 40, *asked(0, 49), "handed over"),
        *(0, 49, *dropped, "handed over"),
    ]


@pytest.mark.thorough
@pytest.mark.parametrize("at_once", [1, 3, 16])
@pytest.mark.parametrize("steps", [1, 2, 7])
def test_no_draw_is_lost_however_many_are_read_at_once(monkeypatch, at_once, steps):
    monkeypatch.setattr(cutting, "_AT_ONCE", at_once)
    records = SourceRecords(Source(), lambda i: (i, np.int32(i)))
    draws = [np.array([k, k + 9]) for k in range(steps)]
    dataset = cutting._batches(records, lambda: ((d, np.arange(2)) for d in draws), 2)
    found = [y.tolist() for _, y, _ in dataset.as_numpy_iterator()]
    assert found == [draw.tolist() for draw in draws]


@pytest.mark.parametrize("kind", ["refused", "missing"])
def test_a_system_without_advice_reads_the_same(tmp_path, monkeypatch, kind):
    rows, mapped = _mapped(tmp_path)

    def refused(*_):
        raise OSError(22, "Invalid argument")

    if kind == "refused":
        monkeypatch.setattr(memmap_rows.os, "posix_fadvise", refused, raising=False)
    else:
        monkeypatch.delattr(memmap_rows.os, "posix_fadvise", raising=False)
    source = MappedRows.of(mapped)
    source._on_disk = True
    source.will_read([3, 5])
    np.testing.assert_array_equal(source.__getitems__([3, 5]), rows[[3, 5]])


def test_a_batched_parse_gets_the_array_of_a_maps_rows(tmp_path):
    rows, mapped = _mapped(tmp_path)
    kinds = set()

    def together(records):
        kinds.add(type(records))
        return records[:, :2], records[:, 2]

    x, y, _ = SourceRecords(mapped, tfdp.data.batched(together)).batch(np.array([7, 2, 7]), 4)
    np.testing.assert_array_equal(x, [*rows[[7, 2, 7], :2], [0, 0]])
    np.testing.assert_array_equal(y, [*rows[[7, 2, 7], 2], 0])
    assert kinds == {np.ndarray}


def test_one_thread_reads_at_a_time():
    source = Source()
    records = SourceRecords(source, parse)
    threads = [
        threading.Thread(target=records.batch, args=(np.arange(N), N)) for _ in range(4)
    ]  # fmt: skip
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert source.together == 1 and len(source.read) == 4 * N + 1


@pytest.mark.thorough
def test_a_model_trains_from_a_source(small):
    x, y = small.data()
    source = np.concatenate([x, y[:, None]], axis=1)
    model = small.model()
    batches = tfdp.data.poisson_batches(source, 10, parse=lambda r: (r[:3], r[3].astype(np.int32)))
    model.fit(batches, verbose=0)
    assert model.optimizer.steps_taken == 4 and model.privacy_statement().num_examples == 40


class Labelled(Source):
    """As a column of pandas: item i is what bears the label i."""

    iloc = None


class RepeatMapDataset(Source):
    """As of grain."""


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 4

    def __getitem__(self, i):
        return np.zeros((8, 2)), np.zeros(8)


class Mapped(Source):
    def __init__(self, *parents):
        super().__init__()
        self.parents = parents


@pytest.mark.parametrize(
    ("data", "how", "message"),
    [
        ((np.zeros(3), np.zeros(3)), parse, "random-access source"),
        ({"x": np.zeros(3)}, parse, "random-access source"),
        (iter([1, 2]), parse, "random-access source"),
        (Source(), "parse", "`parse` must be a function"),
        (Source(0), parse, "at least one record"),
        (Labelled(), parse, "named by labels.*`column.to_numpy\\(\\)`.*type Labelled"),
        (collections.UserDict({0: 1}), parse, "named by labels"),
        (RepeatMapDataset(), parse, "Remove `repeat`"),
        (Batches(), lambda batch: batch, "an item of a PyDataset is a batch.*no PyDataset"),
        (Source(), None, "single records needs `parse`"),
        (Mapped(Source(), Mapped(RepeatMapDataset())), parse, "made by a RepeatMapDataset"),
        (Source(2**63 - 1), parse, "Remove `repeat`"),
        (Source(), lambda i: [i, i], "tuple"),
        (Source(), lambda i: (i,), "tuple"),
        (Source(), lambda i: (i, object()), "TensorFlow knows"),
        (Source(), lambda i: (i, i, np.ones((2, 2))), "sample weight"),
        (np.zeros((3, 2)), None, "tuple \\(x, y\\)"),
    ],
)
def test_other_sources_are_refused(data, how, message):
    with pytest.raises(ValueError, match=message):
        tfdp.data.poisson_batches(data, 2, parse=how)


@pytest.mark.parametrize(
    "other", [np.zeros(2, np.float32), np.zeros(3), np.zeros((3, 1), np.float32)]
)
def test_a_record_of_another_form_is_refused(other):
    records = SourceRecords(Source(), lambda i: (np.zeros(3, np.float32) if i < 5 else other, i))
    records.batch(np.arange(5), 5)
    with pytest.raises(ValueError, match="record 5"):
        records.batch(np.arange(6), 6)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "other", [np.zeros((3, 2), np.float32), np.zeros((2, 3), ">f4"), np.float32(0), "text"]
)
def test_a_record_of_as_many_bytes_is_refused_in_any_part(other):
    many = 3 * outside_memory._PARSED_AT_ONCE
    place = many - 7
    first = np.zeros((2, 3), np.float32)
    for one in (first, first.copy("F")):
        records = SourceRecords(Source(many), lambda i: (one if i != place else other, i))  # noqa: B023
        with pytest.raises(ValueError, match=f"record {place}"):
            records.batch(np.arange(many), many)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("first", "other"),
    [(np.zeros(outside_memory._PARSED_AT_ONCE, np.float32), np.float32(1)), (np.float32(0), 1.0),
     (np.float32(0), np.float64(1)), (np.int32(0), np.int64(1)), (np.int32(0), np.bool_(1))],
)  # fmt: skip
def test_a_part_of_other_numbers_is_refused(first, other):
    """As many numbers as a record has values would be each of these records; others, cast."""
    size = outside_memory._PARSED_AT_ONCE
    records = SourceRecords(Source(2 * size), lambda i: (first if i < size else other, i))
    with pytest.raises(ValueError, match=f"record {size}: "):
        records.batch(np.arange(2 * size), 2 * size)


@pytest.mark.parametrize("how", [parse, tfdp.data.batched(lambda many: (np.array(many),) * 2)])
def test_nothing_is_read_for_a_batch_of_no_record(how):
    source = ManyAtOnce()
    records = SourceRecords(source, how)
    source.read.clear()
    batch = records.batch(np.zeros(0, np.int64), 3)
    assert source.read == [] and not batch[-1].any()
    tf.nest.map_structure(
        lambda array, spec: spec.shape.assert_is_compatible_with(array.shape),
        batch, records.signature(3),
    )  # fmt: skip


def _views(i):
    """Values of record i that lie in memory in every way there is."""
    square = np.arange(6, dtype=np.float32).reshape(2, 3) + i
    return {
        "as it is": square,
        "by columns": square.T,
        "columns, copied": square.copy("F"),
        "every other": np.repeat(square, 2, axis=1)[:, ::2],
        "backwards": square[::-1, ::-1],
        "one for all": np.broadcast_to(np.int64(i), (4,)),
        "nothing": np.zeros((2, 0), np.float32),
        "without axes": np.asarray(i, np.int16),
        "scalar": np.float64(i),
        "truth": np.bool_(i % 2),
        "Python's": i,
        "short": square.astype(tf.bfloat16.as_numpy_dtype),
    }


def test_records_are_parsed_in_parts_and_lie_in_memory_as_they_like():
    many = 2 * outside_memory._PARSED_AT_ONCE + 5
    chosen = np.random.default_rng(0).permutation(many)
    records = SourceRecords(Source(many), lambda i: (_views(i), np.float32(i), np.float32(i + 1)))
    x, y, weight = records.batch(chosen, many + 2)
    np.testing.assert_array_equal(y, [*chosen, 0, 0])
    np.testing.assert_array_equal(weight, [*(chosen + 1), 0, 0])
    expected = [_views(i) for i in chosen.tolist()]
    for name, array in x.items():
        values = [np.asarray(one[name]) for one in expected]
        assert array.dtype == values[0].dtype
        np.testing.assert_array_equal(array[:many], np.stack(values))
        assert not array[many:].any()


@pytest.mark.thorough
@pytest.mark.parametrize("others", [b"a", b"a\0b", b"\0"])
def test_bytes_keep_zeros_at_their_end(others):
    def parse(i):
        return {"packed": b"ab\0\0" if i else others, "text": "c\0"}, i

    x, *_ = SourceRecords(Source(), parse).batch(np.array([4, 0]), 3)
    assert x["packed"].tolist() == [b"ab\0\0", others, b""]
    assert x["text"].tolist() == ["c\0", "c\0", b""]
    ((x, *_),) = tfdp.data.poisson_batches(Source(), N, steps_per_epoch=1, parse=parse)
    assert set(x["packed"].numpy()[: N - 1]) <= {b"ab\0\0", others}


@pytest.mark.parametrize("weight", [None, "2", 1j, np.datetime64(1, "s")])
def test_a_weight_that_is_no_number_is_refused(weight):
    records = SourceRecords(Source(), lambda i: (i, i, weight if i == 3 else 1.0))
    records.batch(np.arange(3), 3)
    with pytest.raises(ValueError, match="weight that is a number.*record 3"):
        records.batch(np.arange(4), 4)


def test_weights_may_be_of_any_dtype_of_numbers():
    weights = [1, True, np.int8(2), np.float64(0.5), tf.bfloat16.as_numpy_dtype(0.25)]
    records = SourceRecords(Source(5), lambda i: (i, i, weights[i]))
    assert records.batch(np.arange(5), 5)[-1].tolist() == [1, 1, 2, 0.5, 0.25]


def test_one_record_never_takes_several_places():
    with pytest.raises(ValueError, match="1 records for 3 places"):
        SourceRecords(Source(), lambda i: (i, i)).batch([3], 4, np.arange(3))


@pytest.mark.thorough
@pytest.mark.parametrize("how", [lambda row: (row, 0), tfdp.data.batched(lambda r: (r, r[:, 0]))])
def test_a_source_may_read_into_one_place_of_memory(how, monkeypatch):
    """What is read for another iterator must not overwrite what was not yet copied."""
    reading = threading.Event()

    class IntoOnePlace:
        place = np.zeros((N, 2), np.float32)

        def __len__(self):
            return N

        def __getitems__(self, indices):
            self.place[: len(indices)] = np.array(indices)[:, None]
            return self.place[: len(indices)]

    records = SourceRecords(IntoOnePlace(), how)
    other = threading.Thread(target=lambda: (records.batch([9, 8, 7], 3), reading.set()))
    placed = outside_memory.placed

    def in_the_meantime(*args):
        if not other.ident:
            other.start()
            reading.wait(0.2)
        return placed(*args)

    monkeypatch.setattr(outside_memory, "placed", in_the_meantime)
    x, *_ = records.batch([1, 2, 3], 3)
    other.join()
    assert x[:, 0].tolist() == [1, 2, 3]


class OfTwo(list):
    """One record that says it is two."""

    def __len__(self):
        return 2


@pytest.mark.parametrize("short", [list, OfTwo])
def test_a_source_that_loses_records_is_refused(short):
    class Short(ManyAtOnce):
        def __getitems__(self, indices):
            return short(indices[:1]) if len(indices) > 1 else indices

    # One row would stand for all records that were drawn.
    with pytest.raises(ValueError, match="1 records for 2"):
        SourceRecords(Short(), lambda i: (i, i)).batch(np.arange(2), 2)


@pytest.mark.thorough
@pytest.mark.parametrize("make", [Source, ManyAtOnce])
def test_parsing_that_stops_is_not_the_end_of_the_batch(make):
    def stops_after_the_first(i):
        return next((j, j) for j in [i] if j < 1)

    records = SourceRecords(make(), stops_after_the_first)
    with pytest.raises(StopIteration):
        records.batch(np.arange(5), 5)
    batches = tfdp.data.poisson_batches(make(), 40, 50, 1, 3, parse=stops_after_the_first)
    with pytest.raises(tf.errors.OpError):
        list(batches)


@pytest.mark.parametrize("make", [Source, ManyAtOnce])
def test_a_record_of_two_batches_is_read_once_and_is_in_both(make):
    source = make()
    records = SourceRecords(source, lambda i: (np.float32(i), np.int32(i)))
    source.read.clear()
    x, y, weight = records.batch(np.array([7, 3, 7, 2]), 6, np.array([1, 2, 4, 5]))
    np.testing.assert_array_equal(x, [0, 7, 3, 0, 7, 2])
    np.testing.assert_array_equal(y, x)
    np.testing.assert_array_equal(weight, x > 0)
    assert sorted(source.read) == [2, 3, 7]


def test_that_records_are_read_one_by_one_is_listed_as_assumed():
    parse = lambda i: (np.float32(i), np.int32(0))  # noqa: E731
    batches = tfdp.data.poisson_batches(list(range(40)), 10, parse=parse)
    (assumed,) = tfdp.data.provenance.dataset_tags.assumptions_of(batches)
    assert "each record once" in assumed and "from that record alone" in assumed


def parse_together(indices):
    i = np.asarray(indices, np.int32)
    return {"b": (i, i.astype(np.float32)), "a": i[:, None] * np.ones(3)}, i


@pytest.mark.thorough
@pytest.mark.parametrize("make", [Source, ManyAtOnce])
def test_records_that_are_parsed_together_are_those_that_are_parsed_one_by_one(make):
    def one(index):
        return tf.nest.map_structure(lambda array: array[0], parse_together([index]))

    kwargs = {"steps_per_epoch": 20, "seed": 3}
    together, alone = (
        tfdp.data.poisson_batches(make(), 10, parse=how, **kwargs)
        for how in (tfdp.data.batched(parse_together), one)
    )
    assert together.element_spec == alone.element_spec
    for batch, other in zip(together, alone, strict=True):
        tf.nest.map_structure(np.testing.assert_array_equal, batch, other)


def test_texts_and_weights_may_be_parsed_together():
    words = tfdp.data.batched(
        lambda many: (np.array([str(i) for i in many]), np.array(many), np.ones(len(many)) / 2)
    )
    x, y, weight = SourceRecords(Source(), words).batch(np.array([7, 12]), 3)
    assert x.tolist() == ["7", "12", b""] and y.tolist() == [7, 12, 0]
    np.testing.assert_array_equal(weight, np.float32([0.5, 0.5, 0]))


def _mean_removed(records):
    x = np.float32(records)
    return x - x.mean(), x


def _padded_to_the_longest(records):
    return np.ones((len(records), 1 + max(records))), np.asarray(records)


def _in_another_order(records):
    return np.asarray(records), np.asarray(records)[::-1]


@pytest.mark.parametrize("how", [_mean_removed, _padded_to_the_longest, _in_another_order])
def test_parsing_that_mixes_records_is_refused(how):
    with pytest.raises(PrivacyError, match="mixes records.*alone"):
        tfdp.data.poisson_batches(Source(), 10, parse=tfdp.data.batched(how))


def test_records_parsed_together_must_be_as_many_and_like_the_first():
    lost = tfdp.data.batched(lambda many: (np.zeros(len(many)), np.zeros(max(len(many) - 1, 1))))
    with pytest.raises(ValueError, match="axis counts the records.*8 records: shape .7,"):
        tfdp.data.poisson_batches(Source(), 10, parse=lost)
    wide = tfdp.data.batched(
        lambda many: (np.zeros((len(many), 2 if max(many) < 9 else 3)), np.array(many))
    )
    with pytest.raises(ValueError, match="record 9"):
        SourceRecords(Source(), wide).batch(np.array([9]), 1)
    with pytest.raises(ValueError, match="`parse` must be a function.*3"):
        tfdp.data.batched(3)
    with pytest.raises(ValueError, match="tuple.*8 records: list"):
        tfdp.data.poisson_batches(Source(), 10, parse=tfdp.data.batched(lambda many: [many, many]))
