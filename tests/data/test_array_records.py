"""Records of array_record files, read by the files' own readers."""

import sys
import threading
import time
import types

import numpy as np
import pytest

import tfdp
from tfdp.data.array_records import ArrayRecords

FILES = {"a": 7, "b": 4, "c": 9}  # records of each


def record(path, place):
    return np.array([ord(path), place], np.float32).tobytes()


class Reader:
    def __init__(self, path, options="", file_reader_buffer_size=0):
        assert options.startswith("readahead_buffer_size:0,") and file_reader_buffer_size == 256
        self.path, self.reads, self.seconds = path, [], 0.0

    def read(self, first, last):
        """A range: reads of a list take the longer, the larger the file."""
        assert type(first) is type(last) is int and 0 <= first < last <= FILES[self.path]
        if self.seconds:
            time.sleep(self.seconds)
        self.reads.append((first, threading.current_thread().name))
        return [record(self.path, i) for i in range(first, last)]


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


def names_of_threads(records):
    readers = [reader for reader in records._readers if reader]
    names = {name for reader in readers for _, name in reader.reads}
    for reader in readers:
        reader.reads.clear()
    return names


def test_threads_wait_for_a_disk_together_as_long_as_there_is_one(source):
    records = ArrayRecords.of(source)
    indices = list(range(15)) * 4
    expected = [source.records[i] for i in indices]
    assert records.__getitems__(indices) == expected
    mine = threading.current_thread().name
    assert names_of_threads(records) == {mine}
    for reader in records._readers:
        reader.seconds = 1e-3
    assert records.__getitems__(indices) == expected  # only now it is known
    assert names_of_threads(records) == {mine}
    for _ in range(2):
        assert records.__getitems__([]) == [] and records.__getitems__([3]) == [source.records[3]]
        start = time.monotonic()
        assert records.__getitems__(indices) == expected
        assert time.monotonic() - start < 0.75 * 60e-3
        assert mine not in (names := names_of_threads(records)) and 2 <= len(names) <= 8
    for reader in records._readers:
        reader.seconds = 0.0
    assert records.__getitems__(indices) == expected
    assert mine not in names_of_threads(records)
    assert records.__getitems__(indices) == expected
    assert names_of_threads(records) == {mine}


@pytest.mark.parametrize("index", [-1, 15])
def test_a_record_that_there_is_not_is_refused(source, index):
    with pytest.raises(IndexError, match="15 records"):
        ArrayRecords.of(source).__getitems__([3, index])


def test_samplers_read_so(source):
    batches = tfdp.data.poisson_batches(
        source, 15, steps_per_epoch=1, parse=lambda r: (np.frombuffer(r, np.float32), np.float32(0))
    )
    ((x, _, weight),) = batches
    np.testing.assert_array_equal(x[: len(weight)], np.frombuffer(b"".join(source.records), "f4")
                                  .reshape(15, 2))  # fmt: skip


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


def test_as_the_library_reads(tmp_path):
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
    found = ArrayRecords.of(source)
    assert isinstance(found, ArrayRecords)
    indices = np.random.default_rng(0).permutation(len(source)).tolist()
    assert found.__getitems__(indices) == source.__getitems__(indices)
