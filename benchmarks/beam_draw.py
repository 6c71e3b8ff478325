"""A draw of 2 million records by Apache Beam's direct runner, and a training from its files.

Checks that records take part independently, by tests that raise a false alarm in 1e-6 of runs, and
that a draw that was killed half way leaves none. Needs the extra [beam]. Writes JSON.

    python benchmarks/beam_draw.py [--out benchmarks/results/beam_draw.json]
"""

import argparse
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np  # noqa: E402
from scipy import stats  # noqa: E402

FALSE_ALARM = 1e-6
STEPS, BATCH = 100, 20_000


class Clicks:
    """Records made from their number: 8 floats and a label."""

    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, i):
        if not 0 <= i < self.size:
            raise IndexError(i)
        return i


def parse(i):
    x = np.cos(np.arange(1, 9, dtype=np.float32) * np.float32(i % 9973))
    return {"id": np.int32(i + 1), "x": x}, np.int32(x[0] > 0)


def draw(directory, size):
    import tensorflow as tf

    import tfdp.beam

    signature = (
        {"id": tf.TensorSpec((), tf.int32), "x": tf.TensorSpec((8,), tf.float32)},
        tf.TensorSpec((), tf.int32),
    )
    tfdp.beam.draw_batches(
        tfdp.beam.Indexed(Clicks(size)), directory, num_examples=size,
        expected_batch_size=BATCH, steps=STEPS, parse=parse, signature=signature,
    )  # fmt: skip


def memberships(batches, size):
    """(STEPS, n) whether a record is in a step."""
    found = np.zeros((STEPS, size), bool)
    for step, (x, _, weight) in enumerate(batches.as_numpy_iterator()):
        ids = x["id"][weight > 0] - 1
        assert len(np.unique(ids)) == len(ids)
        found[step, ids] = True
    return found


def p_values(found):
    """Two-sided p-values of independent coins of probability q, in the parts that could differ."""
    steps, n = found.shape
    q = BATCH / n
    sizes = found.sum(1)
    of_sizes = ((sizes - n * q) ** 2).sum() / (n * q * (1 - q))
    counts = np.bincount(found.sum(0), minlength=8)
    expected = stats.binom.pmf(np.arange(6), steps, q) * n
    expected, observed = (
        np.append(part, n - part.sum()) for part in (expected, counts[:6].astype(float))
    )
    values = {
        "sizes of steps": float(stats.chi2.sf(of_sizes, steps)),
        "steps of a record": float(stats.chisquare(observed, expected).pvalue),
    }
    for name, one, other in (
        ("a step and the next", found[:-1], found[1:]),
        ("a record and the next", found[:, :-1], found[:, 1:]),
        ("a record and one half of the data further", found[:, : n // 2], found[:, -(n // 2) :]),
    ):
        both = int((one & other).sum())
        values[name] = float(stats.binomtest(both, one.size, q * q).pvalue)
    return values


def killed(directory, size, seconds):
    """Kills a draw some time after it has begun; returns what `load_batches` says of it."""
    import tfdp

    here = str(pathlib.Path(__file__).parent)
    code = f"import sys; sys.path.insert(0, {here!r}); import beam_draw as b; b.draw("
    child = subprocess.Popen([sys.executable, "-c", f"{code}{directory!r}, {size})"])
    while not list(pathlib.Path(directory).glob("steps-*")):
        time.sleep(0.1)
    time.sleep(seconds)
    assert child.poll() is None, "it was finished before it could be killed"
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    try:
        tfdp.data.load_batches(directory)
    except ValueError as error:
        return str(error).replace(directory, "…")
    raise AssertionError("half a draw was loaded")


def train(batches, size):
    import keras

    import tfdp

    inputs = {"id": keras.Input((), dtype="int32", name="id"), "x": keras.Input((8,), name="x")}
    outputs = keras.layers.Dense(2)(keras.layers.Dense(32, "relu")(inputs["x"]))
    model = tfdp.make_private(keras.Model(inputs, outputs))
    optimizer = tfdp.optimizers.DPOptimizer(
        keras.optimizers.Adam(0.01), num_examples=size, expected_batch_size=BATCH,
        noise_multiplier=1.0,
    )  # fmt: skip
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss=loss, weighted_metrics=["accuracy"])
    start = time.perf_counter()
    history = model.fit(batches, epochs=5, steps_per_epoch=STEPS // 5, verbose=0).history
    statement = model.privacy_statement()
    return {
        "seconds": time.perf_counter() - start,
        "steps": statement.steps,
        "accuracy_of_last_epoch": history["accuracy"][-1],
        "epsilon": statement.epsilon,
        "delta": statement.delta,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--out", default="benchmarks/results/beam_draw.json")
    arguments = parser.parse_args()
    import apache_beam

    import tfdp

    size = arguments.records
    with tempfile.TemporaryDirectory() as directory:
        said = killed(directory, size, seconds=size / 1e5)
        start = time.perf_counter()
        draw(directory, size)
        seconds = time.perf_counter() - start
        print(f"drawn in {seconds:.0f} s", flush=True)
        batches = tfdp.data.load_batches(directory)
        values = p_values(memberships(batches, size))
        assert min(values.values()) > FALSE_ALARM, values
        found = {
            "apache_beam": apache_beam.__version__,
            "records": size,
            "steps": STEPS,
            "expected_batch_size": BATCH,
            "bytes": sum(p.stat().st_size for p in pathlib.Path(directory).rglob("*.tfrecord")),
            "draw_seconds": seconds,
            "killed": said,
            "p_values": values,
            "false_alarm": FALSE_ALARM,
            "fit": train(batches, size),
        }
    print(json.dumps(found, indent=1))
    out = pathlib.Path(arguments.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
