"""Two processes that train together over the loopback, and one that is lost and comes back."""

import csv
import json
import pathlib
import runpy
import signal
import socket

import numpy as np
import processes
import pytest

import tfdp

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
    code = WORKER.read_text()
    return [
        processes.Running(code, i, ports, folder, EPOCHS, lost if i == 1 else -1) for i in range(2)
    ]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Losses of each epoch and the results of two workers, of which one was lost in epoch 3."""
    folder = tmp_path_factory.mktemp("workers")
    running = start(folder, lost=2)
    try:
        first, second = running
        assert second.finish(120).returncode == -signal.SIGKILL
        first.process.kill()  # as a cluster does, when one of its workers is gone
        first.process.join()
        assert json.loads((folder / "backup" / "training_metadata.json").read_text())["epoch"] == 2
        running = start(folder, lost=-1)
        for worker in running:
            worker.finish(120).checked()
    finally:
        for worker in running:
            worker.process.kill()
    losses = [
        [float(row["loss"]) for row in csv.DictReader((folder / f"log{i}.csv").open())]
        for i in range(2)
    ]
    return losses, [json.loads((folder / f"result{i}.json").read_text()) for i in range(2)]


@pytest.mark.thorough
def test_losses_weights_and_ledger_are_those_of_one_process(run):
    # Both workers, one of them lost and restarted, against one process that was never stopped.
    losses, results = run
    worker = runpy.run_path(str(WORKER))
    model = worker["former"]()
    model.run_eagerly = True  # a trace takes longer than a few steps
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


@pytest.mark.thorough
def test_noise_of_two_workers_is_one_draw(run):
    _, results = run
    assert results[0]["noise"] == results[1]["noise"]
    for result in results:
        assert result["stddev"] == pytest.approx(2.0 * 3.0 / 6, rel=0.01)
