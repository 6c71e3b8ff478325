"""A pipeline that draws Poisson batches and writes them in the order of their steps."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import apache_beam as beam
import numpy as np
import tensorflow as tf

from tfdp._validate import count, is_integer, plain
from tfdp.beam.made_with import refuse_other_origin
from tfdp.beam.rows import decoded_row, encoded_row, packed, unpacked
from tfdp.data.provenance.origins import Origin
from tfdp.data.samplers.drawn_batches import (
    MANIFEST,
    Manifest,
    decode_signature,
    encode_batch,
    encode_signature,
    padded_batch,
)
from tfdp.data.sampling.arguments import capacity_of, check_expected_batch_size
from tfdp.data.sampling.keyed_membership import Membership, encoded_key
from tfdp.data.sources.parsed_values import as_array
from tfdp.data.sources.refused_sources import refuse_other_sources

if TYPE_CHECKING:
    from apache_beam.options.pipeline_options import PipelineOptions

_CHUNK = 4096  # records that one worker reads at a time


class Indexed(beam.PTransform):
    """(i, record i) of a random-access source: an object with `__len__` and `__getitem__`.

    The number of a record is its key, so keys need no check.

    Args:
        source: the object; workers get a copy by pickle. An array_record data source, say.
    """

    def __init__(self, source: Any):
        super().__init__()
        refuse_other_sources("source", source)
        size = len(source)
        if not is_integer(size) or size < 1:
            raise ValueError(
                "Argument `source` must contain at least one record. Received: a "
                f"source of length {size}"
            )
        self.source, self.size = source, int(size)

    def expand(self, begin):
        source, size = self.source, self.size
        chunks = [(start, min(start + _CHUNK, size)) for start in range(0, size, _CHUNK)]
        return (
            begin
            | "Chunks" >> beam.Create(chunks)
            | "Spread" >> beam.Reshuffle()
            | "Read" >> beam.FlatMap(lambda chunk: ((i, source[i]) for i in range(*chunk)))
        )


def draw_batches(
    records: beam.PTransform,
    directory: str | os.PathLike,
    *,
    num_examples: int,
    expected_batch_size: float,
    steps: int,
    parse: Callable,
    signature: tuple,
    max_batch_size: int | None = None,
    max_records_per_unit: int | None = None,
    steps_per_file: int | None = None,
    options: PipelineOptions | None = None,
) -> str:
    """Draws T Poisson batches of records that a Beam pipeline reads, into files.

    Each record takes part in each step with probability q = B/n, independently of other steps and
    records. `tfdp.data.load_batches(directory)` reads the batches for one training run.

    ```python
    source = array_record_data_source.ArrayRecordDataSource(paths)
    tfdp.beam.draw_batches(
        tfdp.beam.Indexed(source), "/data/draw", num_examples=len(source),
        expected_batch_size=1024, steps=2000, parse=my_parse,
        signature=(tf.TensorSpec((39,), tf.float32), tf.TensorSpec((), tf.float32)))
    ```

    With `max_records_per_unit` the unit of privacy is a person. `records` then returns (key of the
    person, record), several with one key. n, B and `max_batch_size` count persons, and a sampled
    person takes part with at most k records, drawn anew for each step, as in `poisson_batches` with
    `privacy_ids`. Write a person's key in the same way in all records: 7 and "7" are two persons.

    The direct runner is the default. Choose another one with Beam's own options:
    `options=PipelineOptions(["--runner=DataflowRunner", ...])`.

    The manifest is written last. An interrupted run therefore leaves no draw, and the next run
    starts anew and ignores the remaining files.

    Formal guarantees: those of `poisson_batches`. The pipeline fails, and there is no draw, if n is
    not the number of records or if two records have the same key: they would be drawn together. A
    secret of 32 bytes determines the steps of each record. The secret is created here, sent to the
    workers within the pipeline, and stored nowhere. The job data that the runner stores contain it,
    and the files show its decisions: keep both as secret as the data.

    Args:
        records: a `PTransform` that returns (key, record): `Indexed(source)`, or any other. Keys
            are integers, strings or bytes, and not random: a part of the pipeline that is run again
            must give each record the same key. Keys must be distinct, or those of persons.
        directory: folder to write, local or on an object store; it must not contain a draw.
        num_examples: n.
        expected_batch_size: B.
        steps: T, all steps of a training run.
        parse: function of one record that returns (x, y) or (x, y, sample_weight) of arrays.
        signature: structure of `tf.TensorSpec` of the results of `parse`, without a batch axis.
        max_batch_size: rows of every batch. Default: the smallest number that a draw exceeds with
            probability at most 1e-20. A larger draw is cut to a random subset, and charged.
        max_records_per_unit: k, to draw persons.
        steps_per_file: number of batches that a worker holds in memory. Default: about 64 MB, at
            least 1.
        options: `apache_beam` `PipelineOptions`, or None.

    Returns:
        The directory.

    Raises:
        ValueError: for an argument out of range, or if the directory already contains a draw.
    """
    n, directory = count("num_examples", num_examples), str(directory).rstrip("/")
    check_expected_batch_size(expected_batch_size, n)
    expected_batch_size, steps = plain(expected_batch_size), count("steps", steps)
    if isinstance(records, Indexed) and records.size != n:
        raise ValueError(
            f"Argument `num_examples` must be the number of records, {records.size}. "
            f"Received: num_examples={n}"
        )
    capacity = capacity_of(max_batch_size, expected_batch_size, n, n + 1)
    persons = max_records_per_unit is not None
    k = count("max_records_per_unit", max_records_per_unit) if persons else 1
    if persons and isinstance(records, Indexed):
        raise ValueError(
            "Argument `records` must be pairs (person, record) if `max_records_per_unit` is "
            "given, but `Indexed(source)` numbers the records. Map its pairs to (person, "
            f"record). Received: max_records_per_unit={k} with Indexed records"
        )
    signature = _with_weights(signature)
    one = records.source[0] if isinstance(records, Indexed) else None
    origin = Origin() if one is None else Origin.of((records.source, one, parse(one)))
    if steps_per_file is None:
        row = sum(s.shape.num_elements() * max(s.dtype.size, 1) for s in tf.nest.flatten(signature))
        steps_per_file = max(1, 2**26 // (row * capacity * k))
    steps_per_file = count("steps_per_file", steps_per_file)
    if tf.io.gfile.exists(f"{directory}/{MANIFEST}"):
        raise ValueError(
            "Argument `directory` must not contain a draw: the complete draw in it would be "
            f"overwritten. Choose another directory. Received: directory={directory!r}"
        )
    identity = secrets.token_hex(16)
    folder = f"steps-{identity}"
    tf.io.gfile.makedirs(f"{directory}/{folder}")
    membership = Membership(secrets.token_bytes(32), expected_batch_size / n, steps)
    files = -(-steps // steps_per_file)
    names = [f"{folder}/{i:05d}-of-{files:05d}.tfrecord" for i in range(files)]
    pipeline = beam.Pipeline(options=options)
    # A person, or a step, is one group, whatever windows the records came in.
    whole = beam.WindowInto(beam.window.GlobalWindows())
    keyed = pipeline | "Records" >> records | "All at once" >> whole
    units = _persons(keyed) if persons else keyed | "One" >> beam.Map(lambda p: (p[0], [p[1]]))
    if not persons and not isinstance(records, Indexed):
        _check_keys(keyed)
    _check_number(units, n, "persons" if persons else "records")
    drawn = units | "Draw" >> beam.ParDo(
        _Draw(membership, steps_per_file, parse, signature, k, origin)
    )
    every_file = pipeline | "Files" >> beam.Create([(i, b"") for i in range(files)])
    _ = (
        (drawn, every_file)
        | beam.Flatten()
        | "By file" >> beam.GroupByKey()
        | "Write"
        >> beam.ParDo(_Write(directory, names, steps, steps_per_file, capacity, signature, k))
    )
    pipeline.run().wait_until_finish()
    sizes = [tf.io.gfile.stat(f"{directory}/{name}").length for name in names]
    if any(spec.dtype == tf.string for spec in tf.nest.flatten(signature)):
        sizes = [None] * len(names)
    Manifest(
        identity, n, expected_batch_size, steps, capacity,
        encode_signature(signature), tuple(zip(names, sizes, strict=True)),
        k if persons else None, origin.to_dict(),
    ).write(directory)  # fmt: skip
    return directory


def _with_weights(signature):
    if not isinstance(signature, tuple) or len(signature) not in (2, 3):
        raise ValueError(
            "Argument `signature` must be a tuple (x, y) or (x, y, sample_weight) of "
            f"tf.TensorSpec. Received: signature={signature!r}"
        )
    signature = (*signature, tf.TensorSpec((), tf.float32))[:3]
    leaves = tf.nest.flatten(signature)
    if not all(isinstance(s, tf.TensorSpec) and s.shape.is_fully_defined() for s in leaves):
        raise ValueError(
            "Argument `signature` must hold tf.TensorSpec of known shapes. Pad values of "
            "different lengths to a length that does not come from the data. Received: "
            f"signature={signature!r}"
        )
    if any(spec.dtype != tf.float32 for spec in tf.nest.flatten(signature[2])):
        raise ValueError(
            "The third part of argument `signature` must hold tf.TensorSpec of float32. "
            f"Received: {signature[2]!r}"
        )
    return decode_signature(encode_signature(signature))


def _persons(keyed):
    """(key of a person, its records)."""
    return (
        keyed
        | "Keys of persons" >> beam.Map(lambda pair: (encoded_key(pair[0]), pair[1]))
        | "By person" >> beam.GroupByKey()
    )


def _check_keys(keyed):
    def refuse(counted):
        if counted[1] > 1:
            raise ValueError(
                "Argument `records` must give every record a unique key: records with the same "
                f"key would be drawn together. Received: a key that {counted[1]} records share"
            )

    _ = (
        keyed
        | "Keys" >> beam.Map(lambda pair: encoded_key(pair[0]))
        | "Count keys" >> beam.combiners.Count.PerElement()
        | "Refuse equal keys" >> beam.Map(refuse)
    )


def _check_number(units, n, what):
    def refuse(found):
        if found != n:
            raise ValueError(
                f"Argument `num_examples` must be the number of {what}, which is {found}. "
                f"Received: num_examples={n}"
            )

    _ = (
        units
        | "Count" >> beam.combiners.Count.Globally()
        | "Refuse another number" >> beam.Map(refuse)
    )


class _Draw(beam.DoFn):
    """(key, records) to (file, step + number + rows), for each step that the key is in."""

    def __init__(self, membership, steps_per_file, parse, signature, k, origin):
        self._membership, self._k = membership, k
        self._steps_per_file = steps_per_file
        self._parse = parse
        self._signature = encode_signature(signature)
        self._origin = origin

    def setup(self):
        signature = decode_signature(self._signature)
        self._nest = signature
        self._leaves = [(tuple(s.shape), s.dtype) for s in tf.nest.flatten(signature)]

    def process(self, unit):
        key, records = unit
        steps = self._membership.of(key)
        if not steps:
            return
        # Runners give a person's records in any order: sorted, it is one that does not change.
        rows = sorted(encoded_row(self._parsed(record)) for record in records)
        for step, number in steps:
            chosen = self._membership.records(key, step, len(rows), self._k)
            # Bytes take a tenth of the memory that arrays take in a runner's hands.
            yield step // self._steps_per_file, packed(step, number, [rows[i] for i in chosen])

    def _parsed(self, record):
        parsed = self._parse(record)
        refuse_other_origin(record, parsed, self._origin)
        if isinstance(parsed, tuple) and len(parsed) == 2:
            parsed = (*parsed, np.float32(1.0))
        tf.nest.assert_same_structure(parsed, self._nest)
        leaves = [as_array(leaf) for leaf in tf.nest.flatten(parsed)]
        for i in range(-len(tf.nest.flatten(parsed[2])), 0):
            leaves[i] = leaves[i].astype(np.float32)
        for leaf, (shape, dtype) in zip(leaves, self._leaves, strict=True):
            known = dtype == tf.string if leaf.dtype.kind in "SUO" else dtype == leaf.dtype
            if leaf.shape != shape or not known:
                raise ValueError(
                    "Argument `parse` must return arrays as described by `signature` for every "
                    f"record: {shape}, {dtype.name}. Received: {leaf.shape}, {leaf.dtype}"
                )
        return leaves


class _Write(beam.DoFn):
    """Writes the steps of one file; the same records give the same bytes, however often."""

    def __init__(self, directory, names, steps, steps_per_file, capacity, signature, k):
        self._directory, self._names = directory, names
        self._steps, self._steps_per_file = steps, steps_per_file
        self._capacity, self._k = capacity, k
        self._signature = encode_signature(signature)

    def process(self, group):
        number, found = group
        first = number * self._steps_per_file
        last = min(first + self._steps_per_file, self._steps)
        batches = {step: [] for step in range(first, last)}
        for one in found:
            if one:
                step, order, rows = unpacked(one)
                batches[step].append((order, rows))
        signature = decode_signature(self._signature)
        specs = tf.nest.flatten(signature)
        path = f"{self._directory}/{self._names[number]}"
        # Runners may run this twice at once: each writes a file of its own, whole, and renames it.
        unfinished = f"{path}.{secrets.token_hex(8)}"
        with tf.io.TFRecordWriter(unfinished) as writer:
            for step in range(first, last):
                # By random numbers: the first of them are a uniform subset.
                units = sorted(batches.pop(step), key=lambda one: one[0])[: self._capacity]
                rows, places = [], []
                for i, (_, own) in enumerate(units):
                    rows += [decoded_row(row, specs) for row in own]
                    places += range(i * self._k, i * self._k + len(own))
                leaves = padded_batch(rows, signature, self._capacity * self._k, places)
                writer.write(encode_batch(leaves))
        tf.io.gfile.rename(unfinished, path, overwrite=True)
        yield number
