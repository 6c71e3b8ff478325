"""Records of array_record files, read without a loop of Python over each of them."""

import itertools

import numpy as np

from tfdp._compat import array_record

# Drawn records lie far from each other: what a larger buffer reads beside them is for nobody.
_BUFFER = 1 << 12
_COMPARED = 8  # records that are read in both ways


class ArrayRecords:
    """The records of an `ArrayRecordDataSource`, as a random-access source.

    Its own `__getitems__` takes as long to sort the indices of records, and their bytes, by file as
    reading them does.

    Args:
        files: list of (path, first record, record after the last one).
        options: of the reader.
    """

    def __init__(self, files, options):
        self._files, self._options = files, options
        self._readers = [None] * len(files)
        self._ends = np.cumsum([stop - start for _, start, stop in files])

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
            found = records.__getitems__(some)
        except TypeError:  # of another version's readers
            return source
        return records if found == [source[i] for i in some] else source

    def __len__(self):
        return int(self._ends[-1])

    def __getitem__(self, index):
        return self.__getitems__([index])[0]

    def __getitems__(self, indices):
        """A list of bytes; one read for all indices after each other that are of one file."""
        indices = np.asarray(indices, np.int64)
        if np.any((indices < 0) | (indices >= len(self))):
            raise IndexError(f"There are {len(self)} records. Received: indices {indices}")
        of_file = np.searchsorted(self._ends, indices, side="right")
        ends = [*(np.flatnonzero(np.diff(of_file)) + 1), len(indices)] if len(indices) else []
        found = []
        for first, last in itertools.pairwise([0, *ends]):
            k = of_file[first]
            stop = self._files[k][2]
            places = indices[first:last] - (self._ends[k] - stop)
            found += self._reader(k).read(places.tolist())
        return found

    def _reader(self, k):
        if self._readers[k] is None:
            self._readers[k] = array_record.reader(self._files[k][0], self._options, _BUFFER)
        return self._readers[k]
