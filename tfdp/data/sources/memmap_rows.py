"""Rows of an np.memmap, read by their place in the file.

Pages of a mapped file that were read once count as the process' memory, and each brings those
around it: sampling from a large file would come to hold all of it. Reads of single rows do not. The
system's cache keeps what they read; of rows that would fill half of the memory, little at a time.
"""

import contextlib
import math
import mmap
import os
import time

import numpy as np

from tfdp.data.sources.disk_reads import was_from_disk

# Between rows that are so many bytes apart there is nothing worth reading with them.
_FAR = 1 << 20
# Of the memory, what the cache may hold of rows that would fill it. Memory that was not used before
# costs more than what is given back; but pages given back together cost less than a few at a time.
_KEPT = 1 / 16


def _memory():
    """Bytes of the machine's memory; infinity where the system does not say."""
    try:
        pages = os.sysconf("SC_PHYS_PAGES")
        return pages * os.sysconf("SC_PAGE_SIZE") if pages > 0 else math.inf
    except (AttributeError, OSError, ValueError):
        return math.inf


class MappedRows:
    """The rows of an array that lies in a file, as a random-access source.

    Args:
        path: of the file.
        offset: of the first row, in bytes.
        stride: from one row to the next, in bytes.
        array: an array whose length, dtype and shape of a row are those of the file's.
    """

    def __init__(self, path, offset, stride, array):
        self._file = open(path, "rb", buffering=0)  # open as long as the source lives
        self._on_disk = False  # until rows took long
        self._are_far = False  # until some were
        fills_memory = stride * len(array) > _memory() / 2
        self._most_kept = _KEPT * _memory() if fills_memory else math.inf
        self._kept = 0  # bytes that it holds, about, of what was read
        self._offset, self._stride, self._size = offset, stride, len(array)
        self._dtype, self._shape = array.dtype, array.shape[1:]
        self._bytes = array.dtype.itemsize * int(np.prod(self._shape))

    @classmethod
    def of(cls, source):
        """The `MappedRows` of an np.memmap, or of a part or a reshaped view of one.

        Returns:
            The source itself, if it is something else, or rows that do not lie in one piece.
        """
        if not isinstance(source, np.memmap) or not source.ndim or not len(source):
            return source
        root = source
        while isinstance(root.base, np.memmap):
            root = root.base
        in_one_piece = source[0].flags.c_contiguous and source.strides[0] >= 0
        shared = root.mode in ("r", "r+", "w+")  # what was changed is in the file, too
        if not (isinstance(root.base, mmap.mmap) and root.filename and in_one_piece and shared):
            return source
        # `offset` of a view is that of the whole map: numpy does not follow slices.
        place = root.offset + source.ctypes.data - root.ctypes.data
        rows = cls(root.filename, place, source.strides[0], source)
        return rows if rows._are_those_of(source) else source

    def _are_those_of(self, array):
        """Whether the file under this name is the one that is mapped: it may have been replaced."""
        few = [0, len(array) // 2, len(array) - 1]
        size, start = self._bytes, self._offset
        found = [os.pread(self._file.fileno(), size, start + i * self._stride) for i in few]
        return found == [array[i].tobytes() for i in few]

    def __len__(self):
        return self._size

    def will_read(self, indices):
        """Lets the system read these rows meanwhile: a disk gives many at once much faster."""
        if self._on_disk:
            for i in indices:
                self._advise("POSIX_FADV_WILLNEED", self._offset + i * self._stride, self._bytes)

    def _advise(self, advice, start, size):
        if hasattr(os, "posix_fadvise"):  # Linux, not macOS
            with contextlib.suppress(OSError):  # of file systems that take none
                os.posix_fadvise(self._file.fileno(), start, size, getattr(os, advice))

    def __getitem__(self, index):
        return self.__getitems__([index])[0]

    def __getitems__(self, indices):
        """Array (m, ...) of the rows of these numbers, which ascend."""
        file, size, offset, stride = self._file.fileno(), self._bytes, self._offset, self._stride
        if not self._are_far and stride * (indices[-1] - indices[0]) > _FAR * len(indices):
            self._are_far = True
            self._advise("POSIX_FADV_RANDOM", 0, 0)
        start = time.monotonic()
        found = b"".join([os.pread(file, size, offset + i * stride) for i in indices])
        self._on_disk |= was_from_disk(time.monotonic() - start, len(indices))
        self._kept += (size + mmap.PAGESIZE) * len(indices)
        if self._kept > self._most_kept:
            self._advise("POSIX_FADV_DONTNEED", offset, stride * len(self))
            self._kept = 0
        if len(found) != size * len(indices):
            raise ValueError(
                f"The file {self._file.name!r} of an np.memmap must not become shorter while it is "
                "read. Restore the file, and open it again. Received: "
                f"{len(found)} bytes for {len(indices)} records of {size} bytes"
            )
        return np.frombuffer(found, self._dtype).reshape(len(indices), *self._shape)
