"""array_record: the files of a data source, and their readers."""

import os
import re

_SOURCE = "array_record.python.array_record_data_source", "ArrayRecordDataSource"


def files_of(source):
    """What an `ArrayRecordDataSource` reads, which it has no public name for.

    Returns:
        List of (path, first record, record after the last one), and the options of its readers.
        None for anything else, a subclass included, and where the package keeps it in another way
        than version 0.8 does.
    """
    if (type(source).__module__, type(source).__qualname__) != _SOURCE:
        return None
    try:
        files = [
            (os.fspath(part.filename), int(part.start), int(part.end))
            for part in source._read_instructions
        ]
        return files, f"readahead_buffer_size:0,{source._reader_options_string}"
    except (AttributeError, TypeError):
        return None


def reader(path, options, buffer_size):
    """A reader of one file.

    Its `read(list)` gives the records at these places, its `read(i, j)` those from i to j - 1, for
    numbers below 2^31.

    Raises:
        TypeError: by a version that makes readers in another way.
    """
    from array_record.python import array_record_module

    return array_record_module.ArrayRecordReader(
        path, options=options, file_reader_buffer_size=buffer_size
    )


def number_of_groups(reader):
    """How many groups of records a file has; as many as records where it does not say."""
    found = re.search(r"group_size:(\d+)", reader.writer_options_string() or "")
    return -(-reader.num_records() // int(found[1])) if found else reader.num_records()
