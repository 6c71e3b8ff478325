"""Batches from a file that does not fit in memory: resident memory by size, and step time.

A sparse file of float32 rows (64 features and a label) is read by `np.memmap`; every size is
measured in a process of its own. Step times are those of `fit`, against the same model on arrays in
memory, alternately, in one process: of a small perceptron, whose step is short, and of the click
model pCTR on 26 ids and 13 counts of each row. With `--array-record` the same of array_record files
(`pip install array_record`) of as many records, zeros too, which compress to some bytes: written in
5 minutes, most of them for groups of 1. Writes JSON.

    python benchmarks/data_size.py [--out benchmarks/results/data_size.json] [--array-record]
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import record

import tfdp

FEATURES, BATCH, STEPS = 64, 1024, 60
# Steps of a turn, timed from before its first batch is read: none of them finds batches that were
# read at another time.
TURN = 150
IDS, COUNTS, VOCABULARY = 26, 13, 10_000
RECORD = 4 * (FEATURES + 1)
# Records that array_record writes, and reads, together. A reader holds 8 bytes for each group.
GROUPS = (8, 64, 1)


def sparse_file(path, gigabytes):
    """A file of zeros that takes no place on the disk; number of its records."""
    records = int(gigabytes * 1e9) // RECORD
    with open(path, "wb") as file:
        file.truncate(records * RECORD)
    return records


def parse_rows(rows):
    return rows[:, :FEATURES], rows[:, FEATURES]


def clicks_of_rows(rows):
    x = {"integers": np.abs(rows[:, :COUNTS])}
    for i in range(IDS):
        x[f"c{i}"] = (np.abs(rows[:, COUNTS + i]) * VOCABULARY).astype(np.int64) % VOCABULARY
    return x, (rows[:, FEATURES] > 0).astype(np.float32)


def parse(row):
    return row[:FEATURES], row[FEATURES]


def as_rows(records):
    """(m, 65) of what a source gives for m records."""
    if isinstance(records, np.ndarray):
        return records
    return np.frombuffer(b"".join(records), np.float32).reshape(len(records), FEATURES + 1)


def source_of(path):
    """A source, and a function that parses one record of it."""
    if path.endswith(".array_record"):
        from array_record.python import array_record_data_source

        source = array_record_data_source.ArrayRecordDataSource([path])
        return source, lambda record: parse(np.frombuffer(record, np.float32))
    return np.memmap(path, np.float32, "r").reshape(-1, FEATURES + 1), parse


def batches_of(path, steps, many=None):
    """Batches of a file, by a function of many rows, or else of each record."""
    source, one = source_of(path)
    how = one if many is None else tfdp.data.batched(lambda records: many(as_rows(records)))
    return tfdp.data.poisson_batches(source, BATCH, steps_per_epoch=steps, parse=how)


def status(*names):
    """MB of the process, by the names of /proc/self/status."""
    lines = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
    return {name: int(lines[name].split()[0]) / 1e3 for name in names}


def resident(path):
    """Of this process: megabytes before the source is opened, and after all steps of a pass."""
    for _ in tfdp.data.poisson_batches((np.zeros((9, 65)), np.zeros(9)), 3):
        pass
    before = status("VmRSS", "RssAnon", "RssFile")
    for _ in batches_of(path, STEPS):
        pass
    after = status("VmRSS", "RssAnon", "RssFile")
    print(json.dumps({name: round(after[name] - before[name], 1) for name in after}))


def perceptron():
    # Of the zeros of a sparse file, too, every weight has a gradient.
    hidden = [keras.layers.Dense(512, "relu", bias_initializer="ones") for _ in range(2)]
    layers = [keras.Input((FEATURES,)), *hidden, keras.layers.Dense(1)]
    return tfdp.make_private(keras.Sequential(layers)), "mse", {}


def clicks():
    features = {f"c{i}": VOCABULARY for i in range(IDS)}
    sparse = {"selection": tfdp.selection.AdaFEST(threshold=23.0),
              "embedding_optimizer": tfdp.optimizers.RowAdagrad(0.05)}  # fmt: skip
    return tfdp.models.PrivateCTR(features, COUNTS), None, sparse


# Of each model, what makes it and how it reads many rows.
MODELS = {"perceptron": (perceptron, parse_rows), "pCTR": (clicks, clicks_of_rows)}


def private(made, loss, arguments, n):
    optimizer = tfdp.optimizers.DPOptimizer(
        keras.optimizers.Adam(1e-3), noise_multiplier=1.0, num_examples=n,
        expected_batch_size=BATCH, **arguments,
    )  # fmt: skip
    made.compile(optimizer, loss, weighted_metrics=[])
    return made


class Seconds(keras.callbacks.Callback):
    """Of a step of the last epoch, batch included."""

    def on_epoch_begin(self, epoch, logs=None):
        self._begun = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
        self.of_a_step = (time.perf_counter() - self._begun) / TURN


def step_times(name, paths, repeats):
    """Seconds of a step of `fit`, from memory and from each file, alternately."""
    make, many = MODELS[name]
    rows = np.random.default_rng(0).normal(size=(200_000, FEATURES + 1)).astype(np.float32)
    made = {"memory": tfdp.data.poisson_batches(many(rows), BATCH, steps_per_epoch=TURN)}
    for source, path in paths.items():
        if name == "perceptron":  # nobody parses 27 features record by record
            made[source] = batches_of(path, TURN)
        made[f"{source}, batched"] = batches_of(path, TURN, many)
    # One for each: n is part of what they charge.
    models = {
        source: private(*make(), tfdp.data.sampling_of(data).num_examples)
        for source, data in made.items()
    }
    seconds, timer = {source: [] for source in made}, Seconds()
    for turn in range(repeats + 1):
        for source, data in made.items():
            models[source].fit(data, verbose=0, callbacks=[timer])
            if turn:
                seconds[source].append(timer.of_a_step)
    return {
        source: {
            "seconds": statistics.median(found),
            "ratio_of_pairs": statistics.median(
                b / a for a, b in zip(seconds["memory"], found, strict=True)
            ),
        }
        for source, found in seconds.items()
    }


def write_array_record(path, records, group):
    from array_record.python import array_record_module

    writer = array_record_module.ArrayRecordWriter(path, f"group_size:{group}")
    record = bytes(RECORD)
    for _ in range(records):
        writer.write(record)
    writer.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, nargs="+", default=[0.2, 2.0, 20.0])
    parser.add_argument("--array-record", action="store_true")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--resident", help=argparse.SUPPRESS)
    args = record.parse(parser, gigabytes=[1.0], repeats=5)
    if args.resident:
        return resident(args.resident)
    result = record.Result(
        args.out, batch=BATCH, steps=STEPS, record_bytes=RECORD, memory_megabytes=[]
    )
    with tempfile.TemporaryDirectory() as folder:
        files = {}
        for size in args.gigabytes:
            path = str(pathlib.Path(folder) / f"{size}.bin")
            files["memmap", f"{size:g} GB", sparse_file(path, size)] = path
        for group in GROUPS if args.array_record else ():
            for size in args.gigabytes:
                records = int(size * 1e9) // RECORD
                path = str(pathlib.Path(folder) / f"{size}-{group}.array_record")
                write_array_record(path, records, group)
                files[f"array_record, groups of {group}", f"{size:g} GB", records] = path
        for (kind, size, records), path in files.items():
            command = [sys.executable, __file__, "--resident", path]
            output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            row = {"source": kind, "size": size, "records": records}
            row |= json.loads(output.splitlines()[-1])
            result["memory_megabytes"].append(row)
            print(row, flush=True)
            result.write()
        largest = {kind: path for (kind, _, _), path in files.items()}
        result["step"] = {}
        for name in MODELS:
            result["step"][name] = step_times(name, largest, args.repeats)
            print(name, result["step"][name], flush=True)
            result.write()
    return None


if __name__ == "__main__":
    main()
