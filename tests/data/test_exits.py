"""A program that keeps an iterator over batches open exits."""

import subprocess
import sys
import threading

import pytest

from tfdp.data.sampling import exits

PROGRAM = """
import time
import numpy as np
import tfdp

class Slow:
    def __len__(self):
        return 100_000

    def __getitem__(self, i):
        end = time.perf_counter() + 2e-4
        while time.perf_counter() < end:  # Python at work, as in a `parse` of one's own
            pass
        return np.zeros(3), 0.0

batches = tfdp.data.poisson_batches(Slow(), 300, parse=lambda record: record)
iterators = [iter(batches) for _ in range(3)]
for iterator in iterators:
    next(iterator)
print("end of the program", flush=True)
"""


@pytest.mark.thorough
def test_iterators_that_are_open_do_not_keep_the_program():
    # What a thread is doing when the program ends is chance: of three, one is caught at work.
    run = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(run, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "end of the program" in done.stdout


def test_a_child_does_not_wait_for_the_batches_of_its_parent():
    given = exits.ended_at_exit(lambda: iter(range(3)))()
    exits._begin()  # a thread of the parent is at work
    changed = exits._changed
    try:
        exits._in_child()
        assert exits._making == 0 and exits._changed is not changed
        assert list(given) == [0, 1, 2]
    finally:
        exits._changed = changed


def test_an_exit_waits_for_the_batch_that_is_made_and_no_other_is_begun(monkeypatch):
    monkeypatch.setattr(exits, "_exiting", False)
    at_work, go_on = threading.Event(), threading.Event()

    def batches():
        at_work.set()
        assert go_on.wait(20)
        yield 1
        yield 2

    given = []
    reader = threading.Thread(target=lambda: given.extend(exits.ended_at_exit(batches)()))
    reader.start()
    assert at_work.wait(20)
    leaving = threading.Thread(target=exits._exit)
    leaving.start()
    leaving.join(0.3)
    assert leaving.is_alive()  # a batch is being made
    go_on.set()
    leaving.join(20)
    reader.join(20)
    assert not leaving.is_alive() and given == [1]
