"""Records of array_record files, read one by one at their places."""

import concurrent.futures
import copy
import itertools
import time

import numpy as np

from tfdp._compat import array_record
from tfdp.data.disks import ENOUGH, was_from_disk

# Drawn records lie far from each other: what a larger buffer reads beside them is for nobody.
_BUFFER = 1 << 8
_COMPARED = 8  # records that are read in both ways
# Threads that wait for a disk together, and how many times as fast they read from it at least.
_THREADS, _AS_FAST = 8, 3


class ArrayRecords:
    """The records of an `ArrayRecordDataSource`, as a random-access source.

    Its own `__getitems__` takes as long to sort the indices of records, and their bytes, by file as
    reading them does; and it reads a list of records, for which the reader makes a list for each of
    all groups of the file first (12 ns each: 0.1 s for 77 million records in groups of 8). The
    reader's ranges cost what they read, whatever the size of the file.

    Args:
        files: list of (path, first record, record after the last one).
        options: of the reader.
    """

    def __init__(self, files, options):
        self._files, self._options = files, options
        self._readers = [None] * len(files)
        self._ends = np.cumsum([stop - start for _, start, stop in files])
        self._places = np.array([stop for *_, stop in files]) - self._ends
        self._on_disk, self._threads = False, None  # until records take long

    @classmethod
    def of(cls, source):
        """The `ArrayRecords` of an `ArrayRecordDataSource`.

        Returns:
            The source itself, if it is something else, or keeps its files in another way than
            array_record 0.8 does.
        """
        known = array_record.files_of(source)
        if known is None or not len(source):
            return source
        records = cls(*known)
        if len(records) != len(source):
            return source
        some = sorted({i * (len(source) - 1) // (_COMPARED - 1) for i in range(_COMPARED)})
        try:
            # By a copy, which is closed before ours are opened: as long as they live, the readers
            # of a source hold an index of its files, as large as that of ours.
            with copy.copy(source) as again:
                expected = [again[i] for i in some]
            same = records.__getitems__(some) == expected
        except (AttributeError, TypeError):  # of another version
            return source
        return records if same else source

    def __len__(self):
        return int(self._ends[-1])

    def __getitem__(self, index):
        return self.__getitems__([index])[0]

    def __getitems__(self, indices):
        """A list of bytes."""
        indices = np.asarray(indices, np.int64)
        if np.any((indices < 0) | (indices >= len(self))):
            raise IndexError(f"There are {len(self)} records. Received: indices {indices}")
        of_file = np.searchsorted(self._ends, indices, side="right")
        readers = {k: self._reader(k) for k in np.unique(of_file).tolist()}
        places = (indices + self._places[of_file]).tolist()
        wanted = [(readers[k], i) for k, i in zip(of_file.tolist(), places, strict=True)]
        start = time.monotonic()
        found = self._by_threads(wanted) if self._on_disk else _read(wanted)
        seconds = time.monotonic() - start
        # Of what is in memory, threads read no faster and take twice the time of the processor.
        if len(wanted) >= ENOUGH:
            times = _AS_FAST if self._on_disk else 1
            self._on_disk = was_from_disk(seconds * times, len(wanted))
        return found

    def _by_threads(self, wanted):
        if self._threads is None:
            self._threads = concurrent.futures.ThreadPoolExecutor(_THREADS, "tfdp-array-record")
        each = -(-len(wanted) // _THREADS)
        parts = [wanted[i : i + each] for i in range(0, len(wanted), max(each, 1))]
        return list(itertools.chain.from_iterable(self._threads.map(_read, parts)))

    def _reader(self, k):
        if self._readers[k] is None:
            self._readers[k] = array_record.reader(self._files[k][0], self._options, _BUFFER)
        return self._readers[k]


def _read(wanted):
    return [reader.read(i, i + 1)[0] for reader, i in wanted]
