"""Records of array_record files, read by the files' own readers."""

import concurrent.futures
import copy
import itertools
import time

import numpy as np

from tfdp._compat import array_record
from tfdp.data.sources.disk_reads import ENOUGH, was_from_disk

# Drawn records lie far from each other: what a larger buffer reads beside them is for nobody.
_BUFFER = 1 << 8
_COMPARED = 8  # records that are read in both ways
# A reader that is given a list of places makes a list for each group of its file first: 12 ns each,
# which is nothing for so many groups a record.
_GROUPS_OF_A_RECORD = 16
_LARGEST_PLACE = 2**31 - 2  # of the readers' ranges
# Threads that wait for a disk together, and how many times as fast they read from it at least.
_THREADS, _AS_FAST = 8, 3


class ArrayRecords:
    """The records of an `ArrayRecordDataSource`, as a random-access source.

    Its own `__getitems__` takes as long to sort the indices of records, and their bytes, by file as
    reading them does. And it gives a reader a list of places, which is best for few groups, each of
    which is read once; of a file of 77 million records in groups of 8 it takes 0.1 s a call. From
    files of many groups each record is read by itself, which takes the same time in all of them.

    Args:
        files: list of (path, first record, record after the last one).
        options: of the reader.
    """

    def __init__(self, files, options):
        self._files, self._options = files, options
        self._readers = [None] * len(files)
        self._ends = np.cumsum([stop - start for _, start, stop in files])
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
        if any(stop - 1 > _LARGEST_PLACE for *_, stop in known[0]):
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
        reads = list(self._reads(indices))
        start = time.monotonic()
        found = self._by_threads(reads) if self._on_disk else map(_read, reads)
        found = list(itertools.chain.from_iterable(found))
        seconds = time.monotonic() - start
        # Of what is in memory, threads read no faster and take twice the time of the processor.
        if len(indices) >= ENOUGH:
            times = _AS_FAST if self._on_disk else 1
            self._on_disk = was_from_disk(seconds * times, len(indices))
        return found

    def _reads(self, indices):
        """(reader, places of records, whether all at once), in order; enough for all threads."""
        of_file = np.searchsorted(self._ends, indices, side="right")
        ends = [*(np.flatnonzero(np.diff(of_file)) + 1), len(indices)] if len(indices) else []
        each = -(-len(indices) // _THREADS)
        for first, last in itertools.pairwise([0, *ends]):
            k = of_file[first]
            reader, stop = self._reader(k), self._files[k][2]
            places = (indices[first:last] - (self._ends[k] - stop)).tolist()
            few = _GROUPS_OF_A_RECORD * len(places)
            if array_record.number_of_groups(reader) <= few:
                yield reader, places, True
            else:
                for i in range(0, len(places), each):
                    yield reader, places[i : i + each], False

    def _by_threads(self, reads):
        if self._threads is None:
            self._threads = concurrent.futures.ThreadPoolExecutor(_THREADS, "tfdp-array-record")
        try:
            return list(self._threads.map(_read, reads))
        except RuntimeError:  # Python ends, and starts nothing more; a thread may still train
            return map(_read, reads)

    def _reader(self, k):
        if self._readers[k] is None:
            self._readers[k] = array_record.reader(self._files[k][0], self._options, _BUFFER)
        return self._readers[k]


def _read(read):
    reader, places, at_once = read
    return reader.read(places) if at_once else [reader.read(i, i + 1)[0] for i in places]
