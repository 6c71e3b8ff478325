"""Records of array_record files, read by the files' own readers."""

import sys
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
        assert options.startswith("readahead_buffer_size:0,") and file_reader_buffer_size == 4096
        self.path, self.reads = path, []

    def read(self, places):
        self.reads.append(places)
        assert all(type(i) is int and 0 <= i < FILES[self.path] for i in places)
        return [record(self.path, i) for i in places]


class ArrayRecordDataSource:
    """As array_record has it: parts of files, and everything from their readers."""

    def __init__(self, *parts):
        self._read_instructions = [
            types.SimpleNamespace(filename=path, start=start, end=end) for path, start, end in parts
        ]
        self._reader_options_string = "max_parallelism:1"
        self.records = [record(path, i) for path, *ends in parts for i in range(*ends)]

    def __len__(self):
        return len(self.records)

    def __getitem__(self, index):
        return self.records[index]

    def __getitems__(self, indices):
        raise AssertionError("the slow way")


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


def test_one_read_for_what_one_file_has_of_a_batch(source):
    records = ArrayRecords.of(source)
    before = [0 if reader is None else len(reader.reads) for reader in records._readers]
    records.__getitems__([1, 2, 5, 9, 10, 14])
    reads = [r.reads[n:] if r else [] for r, n in zip(records._readers, before, strict=True)]
    assert reads == [[[1, 2, 5]], [], [[4, 5]], [[2]]]


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
