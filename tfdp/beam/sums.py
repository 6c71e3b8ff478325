"""Exact sums over the persons of a pipeline: what releases add noise to."""

from __future__ import annotations

import contextlib
import secrets

import apache_beam as beam
import numpy as np
import tensorflow as tf

from tfdp.data.releases.transition_counts import added, merged
from tfdp.data.sampling.keyed_membership import Membership, encoded_key

_SHARDS = 32
_PERSONS = 4096  # looked at together
_NUMBER = _SHARDS  # the shard in which persons are counted
_EMPTY = np.zeros(0, np.int64), np.zeros(0, np.int64)


class PersonSums:
    """Sums of what persons contribute, in whole numbers: the same in whatever order they are added.

    A person is a key with at most k records, each a row of `width` integers. Of more records, k
    are taken by a secret hash: all subsets are equally likely, and a part of the pipeline that
    is run again takes the same.

    Args:
        records: function that makes a `PTransform`, which gives (key of the person, record).
        rows_of: function of one record that returns `width` integers.
        width: columns of a row.
        max_records_per_unit: k.
        scratch: a directory that the workers and this process can reach. Sums without noise lie
            in it while a pipeline runs, and are as private as the data.
        options: `apache_beam` `PipelineOptions`, or None.
    """

    def __init__(self, records, rows_of, width, max_records_per_unit, scratch, options):
        self._records, self._options = records, options
        self._rows = _Rows(rows_of, width, max_records_per_unit, secrets.token_bytes(32))
        self._width = width * max_records_per_unit
        self._scratch = str(scratch).rstrip("/")

    def run(self, contributions, kept=None):
        """Runs the pipeline once.

        Args:
            contributions: picklable function of int64 (m, k·width), rows of m persons, and of
                `kept`, that returns int64 places, not negative, and as many int64 numbers: sums
                over the m persons, each place once or several times.
            kept: int64 array that the workers are to have, or None.

        Returns:
            The number of persons; and int64 places, sorted and distinct, and their sums.
        """
        folder = f"{self._scratch}/sums-{secrets.token_hex(16)}"
        tf.io.gfile.makedirs(folder)
        try:
            if kept is not None:
                _write(f"{folder}/kept", kept)
            self._run(contributions, folder, kept is not None)
            *found, (_, persons) = (_read(f"{folder}/{shard}") for shard in range(_SHARDS + 1))
        finally:
            with contextlib.suppress(tf.errors.OpError):
                tf.io.gfile.rmtree(folder)
        return int(persons.sum()), *merged([tuple(shard) for shard in found])

    def _run(self, contributions, folder, has_kept):
        pipeline = beam.Pipeline(options=self._options)
        sums = (
            pipeline
            | "Records" >> self._records()  # a transform belongs to one pipeline
            | "All at once" >> beam.WindowInto(beam.window.GlobalWindows())  # a person is one group
            | "Keys" >> beam.Map(lambda pair: (encoded_key(pair[0]), pair[1]))
            | "By person" >> beam.GroupByKey()
            | "Rows" >> beam.ParDo(self._rows)
            | "Batches" >> beam.BatchElements(min_batch_size=64, max_batch_size=_PERSONS)
            | "Sums" >> beam.ParDo(_Contribute(contributions, self._width, folder, has_kept))
        )
        every_shard = pipeline | "Shards" >> beam.Create([(i, _EMPTY) for i in range(_SHARDS + 1)])
        _ = (
            (sums, every_shard)
            | beam.Flatten()
            | "Add" >> beam.CombinePerKey(_Added())
            | "Write" >> beam.Map(lambda one: _write(f"{folder}/{one[0]}", np.stack(one[1])))
        )
        pipeline.run().wait_until_finish()


class _Rows(beam.DoFn):
    """(key, records) to the bytes of k rows; those that a person lacks are `rows_of(None)`."""

    def __init__(self, rows_of, width, k, secret):
        self._rows_of, self._width, self._k = rows_of, width, k
        self._membership = Membership(secret, 1.0, 1)

    def process(self, unit):
        key, records = unit
        rows = sorted(self._row(record) for record in records)
        chosen = self._membership.records(key, 0, len(rows), self._k)
        missing = [self._row(None)] * (self._k - len(chosen))
        yield b"".join([*(rows[i] for i in chosen), *missing])

    def _row(self, record):
        row = np.asarray(self._rows_of(record))
        if row.shape != (self._width,) or row.dtype.kind not in "iu":
            raise ValueError(
                f"A record must give {self._width} integers. Received: {row.shape}, {row.dtype}"
            )
        return row.astype(np.int64).tobytes()


class _Contribute(beam.DoFn):
    """Rows of some persons to (shard, (places, sums))."""

    def __init__(self, contributions, width, folder, has_kept):
        self._contributions, self._width = contributions, width
        self._folder, self._has_kept = folder, has_kept

    def setup(self):
        self._kept = _read(f"{self._folder}/kept") if self._has_kept else None

    def process(self, rows):
        matrix = np.frombuffer(b"".join(rows), np.int64).reshape(-1, self._width)
        places, sums = added(*self._contributions(matrix, self._kept))
        yield _NUMBER, (np.array([0]), np.array([len(matrix)]))
        shards = places % _SHARDS
        for shard in np.unique(shards).tolist():
            own = shards == shard
            yield shard, (places[own], sums[own])


class _Added(beam.CombineFn):
    """Pairs (places, sums), added up."""

    def create_accumulator(self):
        return [_EMPTY]

    def add_input(self, found, pair):
        found.append(pair)
        return [merged(found)] if len(found) > 16 else found

    def merge_accumulators(self, accumulators):
        return [merged([pair for found in accumulators for pair in found])]

    def extract_output(self, found):
        return merged(found)


def _write(path, array):
    """Whole or not at all: runners may do this twice at once."""
    unfinished = f"{path}.{secrets.token_hex(8)}"
    with tf.io.gfile.GFile(unfinished, "wb") as file:
        file.write(np.ascontiguousarray(array, np.int64).tobytes())
        file.write(np.array(array.shape, np.int64).tobytes() + bytes([array.ndim]))
    tf.io.gfile.rename(unfinished, path, overwrite=True)


def _read(path):
    with tf.io.gfile.GFile(path, "rb") as file:
        data = file.read()
    size = 8 * data[-1]
    shape = np.frombuffer(data[-1 - size : -1], np.int64)
    return np.frombuffer(data[: -1 - size], np.int64).reshape(shape)
