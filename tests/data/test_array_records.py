"""Records of array_record files, read by the files' own readers."""

import concurrent.futures
import sys
import threading
import types

import numpy as np
import pytest

import tfdp
from tfdp.data.sources import array_records
from tfdp.data.sources.array_records import ArrayRecords

FILES = {"a": 7, "b": 4, "c": 9}  # records of each


def record(path, place):
    return np.array([ord(path), place], np.float32).tobytes()


class Reader:
    options = "group_size:1,uncompressed"  # of the writer

    def __init__(self, path, options="", file_reader_buffer_size=0):
        assert options.startswith("readahead_buffer_size:0,") and file_reader_buffer_size == 256
        self.path, self.reads, self.wait = path, [], lambda: None

    def num_records(self):
        return FILES[self.path]

    def writer_options_string(self):
        return self.options

    def read(self, *places):
        self.wait()
        self.reads.append((places, threading.current_thread().name))
        if len(places) == 1:
            places = places[0]
            assert isinstance(places, list)
        else:
            places = range(*places)
            assert places
        assert all(type(i) is int and 0 <= i < FILES[self.path] for i in places)
        return [record(self.path, i) for i in places]


class Records(list):
    closed = False


class ArrayRecordDataSource:
    """As array_record has it: parts of files, and everything from their readers."""

    def __init__(self, *parts):
        self._read_instructions = [
            types.SimpleNamespace(filename=path, start=start, end=end) for path, start, end in parts
        ]
        self._reader_options_string = "max_parallelism:1"
        self.records = Records(record(path, i) for path, *ends in parts for i in range(*ends))
        self.is_copy = False

    def __len__(self):
        return len(self.records)

    def __getitem__(self, index):
        return self.records[index]

    def __getitems__(self, indices):
        raise AssertionError("the slow way")

    def __copy__(self):
        again = object.__new__(type(self))
        vars(again).update(vars(self), is_copy=True)
        return again

    def __enter__(self):
        assert self.is_copy
        return self

    def __exit__(self, *error):
        """Closes the readers, whose index of a large file takes memory."""
        self.records.closed = True


ArrayRecordDataSource.__module__ = "array_record.python.array_record_data_source"


@pytest.fixture
def source(monkeypatch):
    module = types.ModuleType("array_record.python.array_record_module")
    module.ArrayRecordReader = Reader
    package = types.ModuleType("array_record.python")
    package.array_record_module = module
    monkeypatch.setitem(sys.modules, "array_record", types.ModuleType("array_record"))
    monkeypatch.setitem(sys.modules, "array_record.python", package)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return ArrayRecordDataSource(("a", 0, 7), ("b", 1, 3), ("c", 4, 9), ("a", 2, 3))


def test_every_record_in_any_order(source):
    records = ArrayRecords.of(source)
    assert isinstance(records, ArrayRecords) and len(records) == 15
    generator = np.random.default_rng(0)
    orders = [np.arange(15), np.arange(15)[::-1], [3], [], *generator.integers(0, 15, (20, 9))]
    for indices in orders:
        assert records.__getitems__(list(indices)) == [source.records[i] for i in indices]
    assert [records[i] for i in range(15)] == source.records


def test_the_index_of_a_file_is_held_once(source):
    class AfterTheOther(Reader):
        def __init__(self, *args, **kwargs):
            assert source.records.closed
            super().__init__(*args, **kwargs)

    sys.modules["array_record.python.array_record_module"].ArrayRecordReader = AfterTheOther
    assert isinstance(ArrayRecords.of(source), ArrayRecords)
    assert source.records.closed


def reads_of(records):
    """What was read since the last call, and by which threads."""
    found = [read for reader in records._readers if reader for read in reader.reads]
    for reader in records._readers:
        if reader:
            reader.reads.clear()
    return [places for places, _ in found], {name for _, name in found}


def test_few_groups_are_read_at_once_and_records_of_many_one_by_one(source, monkeypatch):
    monkeypatch.setitem(FILES, "c", 160)
    records = ArrayRecords.of(source)
    records.__getitems__(list(range(15)))
    reads_of(records)
    records.__getitems__([1, 2, 5, 9, 14])
    assert reads_of(records)[0] == [([1, 2, 5],), (4, 5), ([2],)]
    for options, at_once in (
        ("group_size:10", True), ("group_size:9", False), ("", False), (None, False),
    ):  # fmt: skip
        monkeypatch.setattr(Reader, "options", options)
        assert records.__getitems__([9]) == [source.records[9]]
        assert reads_of(records)[0] == [([4],) if at_once else (4, 5)]


class Disk:
    """A clock on which a read takes a while, 0.3 of it by threads that wait together."""

    def __init__(self, monkeypatch):
        self.now, self.seconds, self.main = 0.0, 0.0, threading.current_thread()
        self.arrived, self.all_are_there = set(), threading.Barrier(8, timeout=20)
        self.one_by_one = threading.Lock()
        monkeypatch.setattr(array_records, "time", types.SimpleNamespace(monotonic=self.time))
        monkeypatch.setattr(Reader, "options", "group_size:1")
        monkeypatch.setitem(FILES, "a", 10**6)

    def time(self):
        return self.now

    def wait(self):
        thread = threading.current_thread()
        if thread is self.main:
            self.now += self.seconds
            return
        if thread not in self.arrived:
            self.arrived.add(thread)
            self.all_are_there.wait()  # each of eight threads has a part
        with self.one_by_one:
            self.now += 0.3 * self.seconds


def test_threads_wait_for_a_disk_together_as_long_as_there_is_one(source, monkeypatch):
    disk = Disk(monkeypatch)
    source = ArrayRecordDataSource(("a", 0, 7))
    records = ArrayRecords.of(source)
    records._readers[0].wait = disk.wait
    indices = list(range(7)) * 10
    expected = [source.records[i] for i in indices]
    reads_of(records)

    def names():
        assert records.__getitems__(indices) == expected
        return reads_of(records)[1]

    mine = {disk.main.name}
    assert names() == mine
    disk.seconds = 4e-5
    assert names() == mine  # only now it is known
    for _ in range(2):
        assert records.__getitems__([]) == []
        assert not mine & names()
        assert records.__getitems__([3]) == [source.records[3]]
        assert not mine & reads_of(records)[1]
    disk.seconds = 1e-6
    assert not mine & names()
    assert names() == mine


def test_a_thread_that_outlives_the_main_one_reads_on(source, monkeypatch):
    disk = Disk(monkeypatch)
    records = ArrayRecords.of(ArrayRecordDataSource(("a", 0, 7)))
    records._on_disk = True
    records._threads = concurrent.futures.ThreadPoolExecutor(1)
    records._threads.shutdown()
    assert records.__getitems__([5, 2]) == [record("a", 5), record("a", 2)]
    assert reads_of(records)[1] == {disk.main.name}


@pytest.mark.parametrize("past", [0, 1])
def test_places_past_the_readers_ranges_are_left_to_the_source(source, monkeypatch, past):
    stop = 2**31 - 1 + past  # their ends are 32 bits
    monkeypatch.setitem(FILES, "a", stop)
    source = ArrayRecordDataSource(("a", stop - 3, stop))
    assert (ArrayRecords.of(source) is source) == bool(past)


@pytest.mark.parametrize("index", [-1, 15])
def test_a_record_that_there_is_not_is_refused(source, index):
    with pytest.raises(IndexError, match="15 records"):
        ArrayRecords.of(source).__getitems__([3, index])


def test_samplers_read_so(source):
    batches = tfdp.data.poisson_batches(
        source, 15, steps_per_epoch=1, parse=lambda r: (np.frombuffer(r, np.float32), np.float32(0))
    )
    ((x, _, weight),) = batches
    expected = np.frombuffer(b"".join(source.records), "f4").reshape(15, 2)
    np.testing.assert_array_equal(x[weight > 0], expected)


def without_instructions(source):
    del source._read_instructions


def of_another_length(source):
    source._read_instructions[0].end = 6


def other_records(source):
    source.records[-1] = b"by a version that counts otherwise"


def with_another_reader(source):
    sys.modules["array_record.python.array_record_module"].ArrayRecordReader = lambda path: None


@pytest.mark.parametrize(
    "change", [without_instructions, of_another_length, other_records, with_another_reader]
)
def test_what_keeps_its_files_in_another_way_is_read_by_itself(source, change):
    change(source)
    assert ArrayRecords.of(source) is source


def test_what_may_read_otherwise_is_read_by_itself(source):
    class Decoded(ArrayRecordDataSource):
        pass

    decoded = Decoded(("a", 0, 7))
    for module in (__name__, ArrayRecordDataSource.__module__):
        Decoded.__module__ = module
        assert ArrayRecords.of(decoded) is decoded
    rows = np.zeros((3, 2))
    assert ArrayRecords.of(rows) is rows


@pytest.mark.parametrize("groups_of_a_record", [0, 16])
@pytest.mark.parametrize("on_disk", [False, True])
def test_as_the_library_reads(tmp_path, monkeypatch, groups_of_a_record, on_disk):
    module = pytest.importorskip("array_record.python.array_record_module")
    data_source = pytest.importorskip("array_record.python.array_record_data_source")
    paths, records = [], []
    for k, group in enumerate((1, 8)):
        paths.append(str(tmp_path / f"{k}.array_record"))
        writer = module.ArrayRecordWriter(paths[-1], f"group_size:{group}")
        for i in range(100):
            records.append(np.random.default_rng(i).bytes(1 + 100 * i) + bytes([k]))
            writer.write(records[-1])
        writer.close()
    source = data_source.ArrayRecordDataSource([paths[0], f"{paths[1]}[10:90]"])
    monkeypatch.setattr(array_records, "_GROUPS_OF_A_RECORD", groups_of_a_record)
    found = ArrayRecords.of(source)
    assert isinstance(found, ArrayRecords)
    indices = np.random.default_rng(0).permutation(len(source)).tolist()
    found._on_disk = on_disk
    assert found.__getitems__(indices) == source.__getitems__(indices)
