"""Batches from a file that does not fit in memory: resident memory by size, and step time.

A sparse file of float32 rows (64 features and a label) is read by `np.memmap`; every size is
measured in a process of its own. Step times are against the same model on arrays in memory,
alternately, in one process. With `--array-record` the same of array_record files
(`pip install array_record`). Writes JSON.

    python benchmarks/data_size.py [--out benchmarks/results/data_size.json] [--array-record]
"""

import argparse
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np

FEATURES, BATCH, STEPS = 64, 1024, 60
RECORD = 4 * (FEATURES + 1)
# Records that array_record writes together. Every read copies the index of all groups of the file.
GROUPS = (8, 16, 1)


def sparse_file(path, gigabytes):
    """A file of zeros that takes no place on the disk; number of its records."""
    records = int(gigabytes * 1e9) // RECORD
    with open(path, "wb") as file:
        file.truncate(records * RECORD)
    return records


def parse(row):
    return row[:FEATURES], row[FEATURES]


def parse_bytes(record):
    return parse(np.frombuffer(record, np.float32))


def parse_rows(rows):
    return rows[:, :FEATURES], rows[:, FEATURES]


def parse_many_bytes(records):
    rows = np.frombuffer(b"".join(records), np.float32).reshape(len(records), FEATURES + 1)
    return rows[:, :FEATURES], rows[:, FEATURES]


def source_of(path):
    """A source, a function that parses one record, and one that parses a list of them."""
    if path.endswith(".array_record"):
        from array_record.python import array_record_data_source

        source = array_record_data_source.ArrayRecordDataSource([path])
        return source, parse_bytes, parse_many_bytes
    return np.memmap(path, np.float32, "r").reshape(-1, FEATURES + 1), parse, parse_rows


def batches_of(path, steps, batched=False):
    import tfdp

    source, one, many = source_of(path)
    how = tfdp.data.batched(many) if batched else one
    return tfdp.data.poisson_batches(source, BATCH, steps_per_epoch=steps, parse=how)


def status(*names):
    """MB of the process, by the names of /proc/self/status."""
    lines = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
    return {name: int(lines[name].split()[0]) / 1e3 for name in names}


def resident(path):
    """Of this process: megabytes before the source is opened, and after all steps of a pass."""
    import tfdp  # noqa: F401

    for _ in tfdp.data.poisson_batches((np.zeros((9, 65)), np.zeros(9)), 3):
        pass
    before = status("VmRSS", "RssAnon", "RssFile")
    for _ in batches_of(path, STEPS):
        pass
    after = status("VmRSS", "RssAnon", "RssFile")
    print(json.dumps({name: round(after[name] - before[name], 1) for name in after}))


def model(n):
    import keras

    import tfdp

    hidden = [keras.layers.Dense(512, "relu") for _ in range(2)]
    made = tfdp.make_private(
        keras.Sequential([keras.Input((FEATURES,)), *hidden, keras.layers.Dense(1)])
    )
    optimizer = tfdp.optimizers.DPOptimizer(
        keras.optimizers.Adam(1e-3), noise_multiplier=1.0, num_examples=n, expected_batch_size=BATCH
    )
    made.compile(optimizer, loss="mse")
    optimizer.build(made.trainable_variables)
    return made


def step_times(paths, repeats):
    """Seconds of a step, batch included, from memory and from each file, alternately."""
    import tensorflow as tf

    import tfdp

    rows = 200_000
    arrays = np.zeros((rows, FEATURES), np.float32), np.zeros(rows, np.float32)
    made = {"memory": tfdp.data.poisson_batches(arrays, BATCH, steps_per_epoch=10**6)}
    for name, path in paths.items():
        made[name] = batches_of(path, 10**6)
        made[f"{name}, batched"] = batches_of(path, 10**6, batched=True)
    trained = model(rows)
    step = tf.function(trained.train_step, autograph=False, reduce_retracing=True)
    iterators = {name: iter(data) for name, data in made.items()}
    seconds = {name: [] for name in made}
    part, ahead = 50, 40
    for turn in range(repeats + 1):
        for name, iterator in iterators.items():
            for _ in range(ahead):  # more than was made ahead in another's turn
                next(iterator)
            start = time.perf_counter()
            for _ in range(part):
                [float(v) for v in step(next(iterator)).values()]
            if turn:
                seconds[name].append((time.perf_counter() - start) / part)
    return {
        name: {
            "seconds": statistics.median(found),
            "ratio_of_pairs": statistics.median(
                b / a for a, b in zip(seconds["memory"], found, strict=True)
            ),
        }
        for name, found in seconds.items()
    }


def write_array_record(path, records, group):
    from array_record.python import array_record_module

    writer = array_record_module.ArrayRecordWriter(path, f"group_size:{group},uncompressed")
    generator = np.random.default_rng(0)
    for _ in range(records):
        writer.write(generator.normal(size=FEATURES + 1).astype(np.float32).tobytes())
    writer.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, nargs="+", default=[0.2, 2.0, 20.0])
    parser.add_argument("--array-record", action="store_true")
    parser.add_argument("--records", type=int, nargs="+", default=[20_000, 200_000, 1_000_000])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--resident", help=argparse.SUPPRESS)
    parser.add_argument("--out")
    args = parser.parse_args()
    if args.resident:
        return resident(args.resident)
    import keras
    import tensorflow as tf

    result = {"machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
              "tensorflow": tf.__version__, "keras": keras.__version__, "batch": BATCH,
              "steps": STEPS, "record_bytes": RECORD, "memory_megabytes": []}  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        files = {}
        for size in args.gigabytes:
            path = str(pathlib.Path(folder) / f"{size}.bin")
            files["memmap", f"{size:g} GB", sparse_file(path, size)] = path
        for group in GROUPS if args.array_record else ():
            for records in args.records:
                path = str(pathlib.Path(folder) / f"{records}-{group}.array_record")
                write_array_record(path, records, group)
                size = f"{os.path.getsize(path) / 1e9:.2f} GB"
                files[f"array_record, groups of {group}", size, records] = path
        for (kind, size, records), path in files.items():
            command = [sys.executable, __file__, "--resident", path]
            output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            row = {"source": kind, "size": size, "records": records}
            row |= json.loads(output.splitlines()[-1])
            result["memory_megabytes"].append(row)
            print(row, flush=True)
        largest = {kind: path for (kind, _, _), path in files.items()}
        result["step"] = step_times(largest, args.repeats)
        print(result["step"])
    if args.out:
        with open(args.out, "w") as file:
            json.dump(result, file, indent=1)
    return None


if __name__ == "__main__":
    main()
