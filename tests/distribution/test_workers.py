"""Two processes that train together over the loopback, and one that is lost and comes back."""

import csv
import json
import os
import pathlib
import runpy
import signal
import socket
import subprocess
import sys

import numpy as np
import pytest

import tfdp

ROOT = pathlib.Path(__file__).resolve().parents[2]
WORKER = pathlib.Path(__file__).with_name("worker.py")
EPOCHS = 4


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def start(folder, lost):
    ports = ",".join(map(str, free_ports(2)))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    return [
        subprocess.Popen(
            [sys.executable, str(WORKER), str(i), ports, str(folder), str(EPOCHS),
             str(lost if i == 1 else -1)],
            env=environment, stderr=(folder / f"errors{i}.txt").open("w"),
        )
        for i in range(2)
    ]  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Losses of each epoch and the results of two workers, of which one was lost in epoch 3."""
    folder = tmp_path_factory.mktemp("workers")
    first, second = start(folder, lost=2)
    try:
        assert second.wait(120) == -signal.SIGKILL
        first.send_signal(signal.SIGKILL)  # as a cluster does, when one of its workers is gone
        first.wait()
        assert json.loads((folder / "backup" / "training_metadata.json").read_text())["epoch"] == 2
        restarted = start(folder, lost=-1)
        for i, worker in enumerate(restarted):
            assert worker.wait(120) == 0, (folder / f"errors{i}.txt").read_text()[-2000:]
    finally:
        for worker in [first, second, *locals().get("restarted", [])]:
            worker.kill()
    losses = [
        [float(row["loss"]) for row in csv.DictReader((folder / f"log{i}.csv").open())]
        for i in range(2)
    ]
    return losses, [json.loads((folder / f"result{i}.json").read_text()) for i in range(2)]


def test_losses_weights_and_ledger_are_those_of_one_process(run):
    # Both workers, one of them lost and restarted, against one process that was never stopped.
    losses, results = run
    worker = runpy.run_path(str(WORKER))
    model = worker["former"]()
    n = worker["N"]
    batches = tfdp.data.poisson_batches(worker["sequences"](), n, steps_per_epoch=2)
    history = model.fit(batches, epochs=EPOCHS, verbose=0).history
    for i, result in enumerate(results):
        np.testing.assert_allclose(losses[i], history["loss"], rtol=1e-6)
        assert result["ledger"] == json.loads(json.dumps(worker["ledger_of"](model)))
        for a, b in zip(result["weights"], model.get_weights(), strict=True):
            np.testing.assert_allclose(a, b.ravel(), atol=1e-6)
    assert results[0]["ledger"][0][2] == 2 * EPOCHS
    assert results[0]["statement"] == results[1]["statement"]
    # The workers' steps are the same runs, so that merging their records charges them once.
    assert results[0]["record"] == results[1]["record"]


def test_noise_of_two_workers_is_one_draw(run):
    _, results = run
    assert results[0]["noise"] == results[1]["noise"]
    for result in results:
        assert result["stddev"] == pytest.approx(2.0 * 3.0 / 6, rel=0.01)
