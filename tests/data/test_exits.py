"""A program that keeps an iterator over batches open exits."""

import subprocess
import sys

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


def test_iterators_that_are_open_do_not_keep_the_program():
    # What a thread is doing when the program ends is chance: of three, one is caught at work.
    run = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(run, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "end of the program" in done.stdout


def test_a_child_does_not_wait_for_the_batches_of_its_parent():
    from tfdp.data import exits

    given = exits.ended_at_exit(lambda: iter(range(3)))()
    exits._begin()  # a thread of the parent is at work
    changed = exits._changed
    try:
        exits._in_child()
        assert exits._making == 0 and exits._changed is not changed
        assert list(given) == [0, 1, 2]
    finally:
        exits._changed = changed
